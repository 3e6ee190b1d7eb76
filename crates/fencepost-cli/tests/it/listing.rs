//! `fencepost list` and `fencepost show`.

use fencepost::Keep;
use futures_executor::block_on;
use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::terminal::Terminal;

fn json(sandbox: &Sandbox, args: &[&str]) -> Value {
    serde_json::from_str(&sandbox.run(args).expect(0).stdout()).unwrap()
}

#[test]
fn holders_and_waiters_are_listed() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("jobs/backup", &["--owner-label", "web-3", "--meta", "build=42"]);
    let mut waiter = sandbox.start(&["run", "-q", "--owner-label", "web-4", "jobs/backup", "true"]);
    sandbox.until_waiting("jobs/backup", 1);

    let ran = sandbox.run(&["list"]).expect(0);
    assert_eq!(ran.stderr(), format!("scope: this host ({})\n", sandbox.url()));
    let lines: Vec<Vec<String>> =
        ran.stdout().lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    assert_eq!(lines[0].join(" "), "NAME MODE HOLDER TOKEN SINCE HELD FOR TTL LEFT WAITING COMMAND");
    assert_eq!(lines[1][..3], ["jobs/backup", "exclusive", "web-3"]);
    assert_eq!(lines[1][lines[1].len() - 2..], ["1", "sh"]);
    assert_eq!(lines.len(), 2);

    let locks = json(&sandbox, &["list", "jobs/", "--json"]);
    let lock = &locks[0];
    assert_eq!(lock, &json(&sandbox, &["show", "jobs/backup", "--json"]).clone_times(lock));
    assert_eq!(lock["name"], "jobs/backup");
    assert_eq!(lock["scope"], "host");
    assert!(lock["holders"][0]["token"].is_u64());
    assert_eq!(lock["holders"][0]["meta"]["build"], "42");
    assert_eq!(lock["waiters"], 1);
    assert_eq!(lock["line"][0]["label"], "web-4");
    assert_eq!(json(&sandbox, &["list", "other", "--json"]), Value::Array(Vec::new()));

    let shown = sandbox.run(&["show", "jobs/backup"]).expect(0).stdout();
    for part in ["held by:  web-3", "  meta:   build=42", "waiting:  1", "  1. web-4, exclusive, for "] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    sandbox.let_go();
    holder.expect(0);
    waiter.expect(0);
}

/// Times differ between two snapshots; everything else must be the same.
trait CloneTimes {
    fn clone_times(&self, other: &Value) -> Value;
}

impl CloneTimes for Value {
    fn clone_times(&self, other: &Value) -> Value {
        let mut copy = self.clone();
        for field in ["held_for_ms", "ttl_left_ms"] {
            copy["holders"][0][field] = other["holders"][0][field].clone();
        }
        copy["line"][0]["waiting_for_ms"] = other["line"][0]["waiting_for_ms"].clone();
        copy
    }
}

#[test]
fn no_locks_are_listed_when_none_is_held() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    let ran = sandbox.run(&["list"]).expect(0);
    assert_eq!(ran.stdout(), "");
    assert!(ran.stderr().ends_with("no locks\n"), "{}", ran.stderr());
    assert_eq!(sandbox.run(&["list", "--json"]).expect(0).stdout(), "[]\n");
    let shown = sandbox.run(&["show", "a"]).expect(0).stdout();
    assert!(shown.contains("held by:  none"), "{shown}");
    assert_eq!(json(&sandbox, &["show", "a", "--json"])["holders"], Value::Array(Vec::new()));
}

#[test]
fn commands_that_only_inspect_create_no_database() {
    let sandbox = Sandbox::new();
    for args in [["list"].as_slice(), &["show", "a"], &["watch"], &["break", "a", "--yes"]] {
        let ran = sandbox.run(args).expect(125);
        let expected = format!("there is no database {}", sandbox.path("locks.db").display());
        assert!(
            ran.stderr().contains(&expected) && ran.stderr().contains("hint: check the path"),
            "{}",
            ran.stderr()
        );
    }
    assert_eq!(std::fs::read_dir(sandbox.path(".")).unwrap().count(), 0);
}

#[test]
fn more_than_a_page_is_listed_completely() {
    let sandbox = Sandbox::new();
    let client = sandbox.client();
    let names: Vec<String> = (0..1201).map(|number| format!("lock/{number:04}")).collect();
    let guards: Vec<_> = names.iter().map(|name| block_on(client.lock(name).acquire()).unwrap()).collect();
    let listed = json(&sandbox, &["list", "--json"]);
    let listed: Vec<&str> =
        listed.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap()).collect();
    assert_eq!(listed, names);
    assert_eq!(sandbox.run(&["list", "lock/11"]).expect(0).stdout().lines().count(), 101);
    drop(guards);
}

#[test]
fn a_cell_is_shown() {
    let sandbox = Sandbox::new();
    let client = sandbox.client();
    let guard = block_on(client.lock("a").acquire()).unwrap();
    block_on(guard.write_cell(*b"done: 42", Keep::Always)).unwrap();
    block_on(guard.release()).unwrap();
    let shown = sandbox.run(&["show", "a"]).expect(0).stdout();
    assert!(
        shown.contains("cell:     8 bytes, written with token ") && shown.contains(": done: 42\n"),
        "{shown}"
    );
    let cell = &json(&sandbox, &["show", "a", "--json"])["cell"];
    assert_eq!((&cell["text"], &cell["bytes"]), (&"done: 42".into(), &8.into()));
}

#[test]
fn a_label_cannot_write_to_the_terminal() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--owner-label", "evil\u{1b}[2J", "--meta", "x=\u{1b}]0;y\u{7}"]);
    for args in [["list"].as_slice(), &["show", "a"], &["run", "-n", "a", "true"]] {
        let ran = sandbox.run(args);
        assert!(!(ran.stdout() + &ran.stderr()).contains('\u{1b}'), "{args:?}");
    }
    sandbox.let_go();
    holder.expect(0);
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = sandbox.fencepost(["list", "--json"]).stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = sandbox.fencepost(["list", "--json"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn the_exit_code_tells_whether_a_lock_is_held() {
    let sandbox = Sandbox::new();
    let guard = block_on(sandbox.client().lock("a").acquire()).unwrap();
    for args in [["show", "a", "--exit-code"].as_slice(), &["show", "a", "--exit-code", "--json"]] {
        let ran = sandbox.run(args).expect(75);
        assert!(ran.stdout().contains(&guard.token().to_string()), "{}", ran.stdout());
        assert_eq!(ran.stderr(), "");
    }
    sandbox.run(&["show", "a"]).expect(0);
    sandbox.run(&["show", "b", "--exit-code"]).expect(0);
    block_on(guard.release()).unwrap();
    sandbox.run(&["show", "a", "--exit-code"]).expect(0);
    sandbox.run(&["show", "a", "--exit-code", "--url", "nonsense:"]).expect(125);
}

#[test]
fn without_a_database_a_lock_is_free() {
    let sandbox = Sandbox::new();
    for args in [["show", "a", "--exit-code"].as_slice(), &["show", "a", "--exit-code", "--json"]] {
        let ran = sandbox.run(args).expect(0);
        let remark =
            format!("there is no database {}: nothing is locked there\n", sandbox.path("locks.db").display());
        assert_eq!((ran.stdout().as_str(), ran.stderr().as_str()), ("", remark.as_str()));
    }
    sandbox.run(&["show", "a"]).expect(125);
    assert_eq!(std::fs::read_dir(sandbox.path(".")).unwrap().count(), 0);
}

#[test]
fn rows_are_cut_to_the_width_of_a_terminal_and_only_there() {
    let sandbox = Sandbox::new();
    let command = "/a/program/with/a/very/long/path/".repeat(4);
    let lock = sandbox.client().lock("jobs/backup").label("web-3").meta("command", command.as_str());
    let _guard = block_on(lock.acquire()).unwrap();
    assert!(sandbox.run(&["list"]).expect(0).stdout().contains(&command));
    let mut list = sandbox.on_path("sh");
    list.args(["-c", "stty cols 110 && exec fencepost list"]);
    let mut terminal = Terminal::start(&list);
    terminal.expect(0);
    terminal.until_shown("…");
    let screen = terminal.screen();
    let row = screen.lines().find(|line| line.starts_with("jobs/backup")).unwrap();
    assert_eq!((row.chars().count(), row.chars().last()), (110, Some('…')), "{screen}");
}
