//! What passes between the user and the command: arguments, streams, environment.

use std::io::Write;
use std::process::Stdio;

use crate::sandbox::{Sandbox, until};

#[test]
fn stdin_and_stdout_are_the_commands() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.fencepost(["run", "a", "--", "tr", "a-z", "A-Z"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through the lock\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"THROUGH THE LOCK\n");
    assert_eq!(output.stderr, b"", "fencepost has nothing to say when all is well");
}

#[test]
fn the_options_of_the_command_are_never_parsed() {
    let sandbox = Sandbox::new();
    for args in [
        ["run", "a", "--", "echo", "-v", "--url", "x", "-n", "--help"].as_slice(),
        &["run", "a", "echo", "-v", "--url", "x", "-n", "--help"],
    ] {
        let ran = sandbox.run(args).expect(0);
        assert_eq!(ran.stdout(), "-v --url x -n --help\n");
        assert_eq!(ran.stderr(), "");
    }
    assert_eq!(sandbox.run(&["run", "a", "sh", "-c", "echo $0 $1", "--", "-s"]).stdout(), "-- -s\n");
}

#[test]
fn a_string_is_given_to_the_shell() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "a", "-c", "echo one; echo two | tr o 0; exit 3"]).expect(3);
    assert_eq!(ran.stdout(), "one\ntw0\n");
}

#[test]
fn the_command_knows_its_lock() {
    let sandbox = Sandbox::new();
    let script = "env | grep '^FENCEPOST_' | grep -v '^FENCEPOST_URL='";
    let args = ["run", "--ttl", "7s", "--owner-label", "me", "invoice/42", "-c", script];
    let first = sandbox.run(&args).expect(0).stdout();
    let second = sandbox.run(&args).expect(0).stdout();
    let value = |text: &str, name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        found.unwrap_or_else(|| panic!("{name} is missing in {text}")).to_owned()
    };
    assert_eq!(value(&first, "FENCEPOST_LOCK_NAME"), "invoice/42");
    assert_eq!(value(&first, "FENCEPOST_OWNER_LABEL"), "me");
    assert_eq!(value(&first, "FENCEPOST_TTL_MS"), "7000");
    assert_eq!(value(&first, "FENCEPOST_BACKEND"), sandbox.url());
    assert_eq!(value(&first, "FENCEPOST_STORAGE_ID"), value(&second, "FENCEPOST_STORAGE_ID"));
    assert_eq!(value(&first, "FENCEPOST_STORAGE_ID").len(), 32);
    let acquired = value(&first, "FENCEPOST_ACQUIRED_AT");
    assert!(acquired.len() == 20 && acquired.starts_with("20") && acquired.ends_with('Z'), "{acquired}");
    let token = |text: &str| value(text, "FENCEPOST_TOKEN").parse::<u64>().unwrap();
    assert!(token(&second) > token(&first));
    assert_eq!(first.lines().count(), 8, "and nothing that permits release: {first}");
}

#[test]
fn a_verbose_run_reports_scope_token_and_release() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(&["run", "-v", "a", "true"]).expect(0).stderr();
    for part in [
        format!("fencepost: scope: this host ({})", sandbox.url()),
        "fencepost: holding \"a\" with token ".into(),
        "fencepost: released \"a\"".into(),
    ] {
        assert!(said.contains(&part), "{part} is missing in {said}");
    }
}

#[test]
fn the_url_can_come_from_a_file() {
    let sandbox = Sandbox::new();
    sandbox.write("url", &format!("sqlite:{}\n", sandbox.path("other.db").display()));
    let mut command = sandbox.fencepost(["run", "a", "-c", "echo $FENCEPOST_BACKEND"]);
    let output = command.env_remove("FENCEPOST_URL").env("FENCEPOST_URL_FILE", "url").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).trim().ends_with("other.db"));
    assert!(sandbox.path("other.db").exists() && !sandbox.path("locks.db").exists());
}

#[test]
fn without_a_url_the_lock_lives_in_the_users_state_folder() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.fencepost(["run", "a", "-c", "echo $FENCEPOST_BACKEND"]);
    let output =
        command.env_remove("FENCEPOST_URL").env("XDG_STATE_HOME", sandbox.path("state")).output().unwrap();
    let at = format!("sqlite:{}\n", sandbox.path("state/fencepost/locks.db").display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), at);
}

#[test]
fn a_backend_of_one_host_is_rejected_where_a_shared_one_is_required() {
    let sandbox = Sandbox::new();
    for args in [["run", "a", "touch", "entered"].as_slice(), &["list"], &["show", "a"]] {
        let output = sandbox.fencepost(args).env("FENCEPOST_REQUIRE_SHARED", "1").output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{args:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("reaches no further than this host") && said.contains("\nhint: "), "{said}");
    }
    assert!(!sandbox.path("entered").exists());
    let allowed =
        sandbox.fencepost(["run", "a", "true"]).env("FENCEPOST_REQUIRE_SHARED", "0").output().unwrap();
    assert_eq!(allowed.status.code(), Some(0));
}

#[test]
fn readers_share_and_a_writer_does_not() {
    let sandbox = Sandbox::new();
    let mut reader = sandbox.hold("a", &["-s"]);
    sandbox.run(&["run", "-n", "-s", "a", "true"]).expect(0);
    sandbox.run(&["run", "-n", "-x", "a", "true"]).expect(75);
    sandbox.let_go();
    reader.expect(0);
    sandbox.run(&["run", "-n", "-e", "a", "true"]).expect(0);
}

#[test]
fn a_semaphore_grants_its_number_of_permits() {
    let sandbox = Sandbox::new();
    let script =
        |name: &str| format!("echo x > {name}; while [ -e locks.db ] && ! [ -e go ]; do sleep 0.02; done");
    let start = |name: &str| sandbox.start(&["run", "--semaphore", "2", "a", "-c", &script(name)]);
    let (mut one, mut two) = (start("one"), start("two"));
    sandbox.line("one");
    sandbox.line("two");
    sandbox.run(&["run", "-n", "--semaphore", "2", "a", "true"]).expect(75);
    sandbox.let_go();
    one.expect(0);
    two.expect(0);
    until("the lock is free", || sandbox.inspect("a").is_idle());
}
