//! `fencepost break`: the holder is shown and confirmed, and no other is broken.

use std::os::unix::process::ExitStatusExt;

use fencepost::{Guard, Mode};
use futures_executor::block_on;
use rustix::process::Signal;
use serde_json::Value;

use crate::sandbox::{Sandbox, until};
use crate::terminal::Terminal;

const QUESTION: &str = "type the name of the lock: ";

/// Acquires the lock within this process.
fn held(sandbox: &Sandbox, name: &str, label: &str) -> Guard {
    block_on(sandbox.client().lock(name).label(label.to_owned()).acquire()).unwrap()
}

/// Starts `fencepost break` on a terminal, and waits until it asks.
fn asked(sandbox: &Sandbox, args: &[&str]) -> Terminal {
    let terminal = Terminal::start(&sandbox.fencepost(args));
    terminal.until_shown(QUESTION);
    terminal
}

fn is_held(sandbox: &Sandbox, name: &str, guard: &Guard) -> bool {
    sandbox.inspect(name).holders.iter().any(|holder| holder.token == Some(guard.token()))
}

#[test]
fn the_holder_is_shown_and_broken_when_the_name_is_typed() {
    let sandbox = Sandbox::new();
    let guard = held(&sandbox, "backup", "web-3");
    let mut terminal = asked(&sandbox, &["break", "backup"]);
    let screen = terminal.screen();
    for part in [
        "lock:     backup\n",
        "held by:  web-3\n",
        "a program that uses the library is not\nstopped",
        "within 10s",
        "`Guard::lost`",
    ] {
        assert!(screen.contains(part), "{part:?} is missing in {screen}");
    }
    assert!(is_held(&sandbox, "backup", &guard));
    terminal.type_text("backup\n");
    terminal.expect(0);
    terminal.until_shown(&format!("broke \"backup\": token {}, held by web-3 for ", guard.token()));
    sandbox.assert_free("backup");
    until("the guard is lost", || !guard.is_valid() || guard.lost_reason().is_some());
}

#[test]
fn another_name_breaks_nothing() {
    let sandbox = Sandbox::new();
    let guard = held(&sandbox, "backup", "web-3");
    for answer in ["backups\n", "yes\n", "\n", "\x04"] {
        let mut terminal = asked(&sandbox, &["break", "backup"]);
        terminal.type_text(answer);
        terminal.expect(125);
        terminal.until_shown("nothing was broken");
    }
    assert!(is_held(&sandbox, "backup", &guard));
}

#[test]
fn an_interrupted_question_breaks_nothing() {
    let sandbox = Sandbox::new();
    let guard = held(&sandbox, "backup", "web-3");
    let mut terminal = asked(&sandbox, &["break", "backup"]);
    terminal.type_text("backup\x03");
    assert_eq!(terminal.wait().signal(), Some(Signal::INT.as_raw()));
    assert!(is_held(&sandbox, "backup", &guard));
}

#[test]
fn a_holder_after_the_question_is_not_broken() {
    let sandbox = Sandbox::new();
    let shown = held(&sandbox, "backup", "web-3");
    let mut terminal = asked(&sandbox, &["break", "backup"]);
    block_on(shown.release()).unwrap();
    let later = held(&sandbox, "backup", "web-4");
    terminal.type_text("backup\n");
    terminal.expect(125);
    terminal.until_shown("nothing was broken: lock \"backup\" is not held with token ");
    assert!(is_held(&sandbox, "backup", &later));
}

#[test]
fn without_a_terminal_yes_is_required() {
    let sandbox = Sandbox::new();
    let guard = held(&sandbox, "backup", "web-3");
    let ran = sandbox.run(&["break", "backup"]).expect(125);
    assert!(ran.stderr().contains("hint: give --yes"), "{}", ran.stderr());
    assert!(is_held(&sandbox, "backup", &guard));

    let ran = sandbox.run(&["break", "backup", "--yes"]).expect(0);
    let token = guard.token();
    assert!(ran.stdout().starts_with(&format!("broke \"backup\": token {token}, held by web-3 for ")));
    assert!(ran.stderr().contains("held by:  web-3\n") && !ran.stderr().contains(QUESTION));
    sandbox.assert_free("backup");
}

#[test]
fn only_the_holder_with_the_token_is_broken() {
    let sandbox = Sandbox::new();
    let client = sandbox.client();
    let lock = client.lock("a").mode(Mode::Shared);
    let [one, two] = ["one", "two"].map(|label| block_on(lock.clone().label(label).acquire()).unwrap());
    let [first, second] = [one.token().to_string(), two.token().to_string()];

    let ran = sandbox.run(&["break", "a", "--yes"]).expect(125);
    for part in [&first, &second, "held by one", "held by two", "hint: choose one with --token N"] {
        assert!(ran.stderr().contains(part), "{part:?} is missing in {}", ran.stderr());
    }
    sandbox.run(&["break", "a", "--yes", "--token", "1"]).expect(125);
    assert!(is_held(&sandbox, "a", &one) && is_held(&sandbox, "a", &two));

    sandbox.run(&["break", "a", "--yes", "--token", &second]).expect(0);
    assert!(is_held(&sandbox, "a", &one) && !is_held(&sandbox, "a", &two));
}

#[test]
fn a_lock_without_a_holder_cannot_be_broken() {
    let sandbox = Sandbox::new();
    drop(held(&sandbox, "a", "web-3"));
    until("it is free", || sandbox.inspect("a").is_idle());
    let ran = sandbox.run(&["break", "a", "--yes"]).expect(0);
    assert_eq!((ran.stdout(), ran.stderr()), (String::new(), "no client holds \"a\"\n".into()));
    let ran = sandbox.run(&["break", "a", "--yes", "--token", "7"]).expect(125);
    assert!(ran.stderr().contains("no client holds \"a\", with token 7 or another"), "{}", ran.stderr());
}

#[test]
fn the_successor_gets_a_broken_lock_and_the_command_of_the_old_holder_is_stopped() {
    let sandbox = Sandbox::new();
    let mut old = sandbox.hold("a", &[]);
    let mut successor = sandbox.start(&["run", "-q", "a", "true"]);
    sandbox.until_waiting("a", 1);
    let said = sandbox.run(&["break", "a", "--yes"]).expect(0).stderr();
    for part in [
        "It says that it runs the command sh.",
        "within 10s",
        "If it is `fencepost run`, it then stops the command",
        "exits with 76",
        "only by a fence",
    ] {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
    successor.expect(0);
    old.expect(76);
}

/// Any client may record a command: `fencepost hold` and programs that use the library are not stopped.
#[test]
fn a_command_in_the_metadata_does_not_make_a_run() {
    let sandbox = Sandbox::new();
    let lock = sandbox.client().lock("a").meta("command", "import.sh");
    let _guard = block_on(lock.acquire()).unwrap();
    let said = sandbox.run(&["break", "a", "--yes"]).expect(0).stderr();
    assert!(said.contains("It says that it runs the command import.sh."), "{said}");
    assert!(said.contains("any other program is not stopped"), "{said}");
    assert!(!said.contains("The holder is `fencepost run`"), "{said}");
}

#[test]
fn a_label_cannot_write_to_the_terminal() {
    let sandbox = Sandbox::new();
    let client = sandbox.client();
    let hostile = "evil\u{1b}[2J\u{9b}31m\u{202e}";
    let lock = client.lock("a").mode(Mode::Shared).label(hostile).meta("x", "\u{1b}]0;y\u{7}");
    let _one = block_on(lock.acquire()).unwrap();
    let mut terminal = asked(&sandbox, &["break", "a"]);
    terminal.type_text("no\n");
    terminal.expect(125);
    let two = block_on(lock.acquire()).unwrap();
    let several = sandbox.run(&["break", "a", "--yes"]).expect(125);
    let broken = sandbox.run(&["break", "a", "--yes", "--token", &two.token().to_string()]).expect(0);
    for said in [terminal.screen(), several.stderr(), broken.stderr(), broken.stdout()] {
        assert!(said.contains("evil\\u{1b}[2J"), "{said}");
        assert!(!said.contains(['\u{1b}', '\u{9b}', '\u{7}', '\u{202e}']), "{said}");
    }
}

#[test]
fn the_result_has_a_json_form() {
    let sandbox = Sandbox::new();
    let guard = held(&sandbox, "a", "web-3");
    let json = |args: &[&str]| serde_json::from_str::<Value>(&sandbox.run(args).expect(0).stdout()).unwrap();
    let shown = json(&["show", "a", "--json"])["holders"][0].clone();
    let mut broken = json(&["break", "a", "--yes", "--json"]);
    assert_eq!((&broken["lock"], &broken["broken"]), (&"a".into(), &true.into()));
    assert_eq!(broken["token"], guard.token().get());
    for time in ["held_for_ms", "ttl_left_ms"] {
        broken["holder"][time] = shown[time].clone();
    }
    assert_eq!(broken["holder"], shown);
    let free = json(&["break", "a", "--yes", "--json"]);
    assert_eq!(free, serde_json::json!({ "lock": "a", "token": null, "holder": null, "broken": false }));
    let refused = sandbox.run(&["break", "a", "--yes", "--json", "--token", "7"]).expect(125);
    assert_eq!(refused.stdout(), "");
}
