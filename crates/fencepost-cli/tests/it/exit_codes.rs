//! Every row of the table of exit codes.

use crate::sandbox::Sandbox;

#[test]
fn the_commands_own_code_comes_through() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 2, 7, 75, 125, 255] {
        sandbox.run(&["run", "a", "--", "sh", "-c", &format!("exit {code}")]).expect(code);
        sandbox.assert_free("a");
    }
}

#[test]
fn a_command_that_a_signal_killed_is_128_plus_its_number() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "-c", "kill -KILL $$"]).expect(128 + 9);
    sandbox.run(&["run", "a", "-c", "kill -TERM $$"]).expect(128 + 15);
}

#[test]
fn a_command_that_is_not_found_is_127_and_frees_the_lock() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "a", "--", "no-such-command-anywhere"]).expect(127);
    assert!(ran.stderr().starts_with("fencepost: error: could not execute \"no-such-command-anywhere\""));
    sandbox.assert_free("a");
}

#[test]
fn a_command_that_cannot_be_executed_is_126_and_frees_the_lock() {
    let sandbox = Sandbox::new();
    sandbox.write("plain.txt", "not a program");
    sandbox.run(&["run", "a", "--", "./plain.txt"]).expect(126);
    let ran = sandbox.run(&["run", "a", "--", "./"]).expect(126);
    assert!(ran.stderr().contains("could not execute \"./\": "), "{}", ran.stderr());
    sandbox.assert_free("a");
}

/// As with flock, timeout and the shell itself.
#[test]
fn a_script_that_names_no_interpreter_is_given_to_the_shell() {
    let sandbox = Sandbox::new();
    sandbox.write("script", "echo \"$FENCEPOST_LOCK_NAME\"; exit 5\n");
    sandbox.run(&["run", "a", "--", "chmod", "+x", "script"]).expect(0);
    let ran = sandbox.run(&["run", "a", "--", "./script"]).expect(5);
    assert_eq!(ran.stdout(), "a\n");
}

#[test]
fn a_run_that_does_not_wait_or_has_waited_enough_exits_with_75_and_the_reason() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--owner-label", "the holder"]);
    for options in [["-n"].as_slice(), &["--nonblock"], &["-w", "0"], &["-w", "100ms"], &["--timeout", "0.1"]]
    {
        let args: Vec<&str> =
            ["run"].iter().chain(options).chain(&["a", "--", "touch", "entered"]).copied().collect();
        let ran = sandbox.run(&args).expect(75);
        assert!(ran.stderr().contains("\"a\" is held by the holder for "), "{}", ran.stderr());
    }
    assert!(!sandbox.path("entered").exists());
    assert_eq!(sandbox.inspect("a").waiter_count, 0);
    sandbox.let_go();
    holder.expect(0);
}

#[test]
fn the_code_of_a_conflict_can_be_chosen() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &[]);
    sandbox.run(&["run", "-n", "-E", "9", "a", "true"]).expect(9);
    sandbox.run(&["run", "-n", "--conflict-exit-code", "0", "a", "true"]).expect(0);
    let skipped = sandbox.run(&["run", "--skip-ok", "a", "--", "touch", "entered"]).expect(0);
    assert_eq!(skipped.stderr(), "", "cron would send it by mail");
    let quiet = sandbox.run(&["run", "-n", "-q", "a", "true"]).expect(75);
    assert_eq!(quiet.stderr(), "");
    assert!(!sandbox.path("entered").exists());
    sandbox.let_go();
    holder.expect(0);
}

#[test]
fn misuse_is_125() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(600);
    let cases: [(&[&str], &str); 19] = [
        (&["run", "a", "--tll", "5s", "--", "touch", "entered"], "--tll"),
        (&["run", "--bogus", "a", "touch", "entered"], "--bogus"),
        (&["run", "a"], "CMD"),
        (&["run", "", "touch", "entered"], "must not be empty"),
        (&["run", "a\nb", "touch", "entered"], "control characters"),
        (&["run", "--ttl", "5min", "a", "touch", "entered"], "there is no unit \"min\""),
        (&["run", "--ttl", "999ms", "a", "touch", "entered"], "--ttl 999ms is out of range: from 1s to 24h"),
        (&["run", "--ttl", "0", "a", "touch", "entered"], "--ttl 0s is out of range: from 1s to 24h"),
        (&["run", "--ttl", "25h", "a", "touch", "entered"], "--ttl 1d1h is out of range: from 1s"),
        (&["run", "--ttl", "-1s", "a", "touch", "entered"], "'--ttl <DUR>': it must not be negative"),
        (
            &["run", "--ttl", "abc", "a", "touch", "entered"],
            "'--ttl <DUR>': every part must begin with a number",
        ),
        (&["run", "--wait", "-1", "a", "touch", "entered"], "'--wait <DUR>': it must not be negative"),
        (&["run", &long, "touch", "entered"], "a lock's name may have 512 bytes, this one has 600"),
        (&["run", "a\u{1b}[2J", "touch", "entered"], "'a\\u{1b}[2J'"),
        (&["run", "--ttl", "9", "--kill-after", "4", "a", "touch", "entered"], "at most 3s for a ttl of 9s"),
        (&["run", "--semaphore", "0", "a", "touch", "entered"], "0"),
        (&["run", "-c", "touch entered", "a", "touch", "entered"], "cannot be used with"),
        (&["backup"], "backup"),
        (&["show"], "NAME"),
    ];
    for (args, reason) in cases {
        let ran = sandbox.run(args).expect(125);
        let said = ran.stderr();
        assert!(said.starts_with("fencepost: error: ") && said.contains(reason), "{args:?}: {said}");
        assert!(!said.contains(&long[..100]) && !said.contains('\u{1b}'), "{args:?}: {said}");
        assert_eq!(ran.stdout(), "");
    }
    assert!(!sandbox.path("entered").exists());
}

#[test]
fn a_backend_that_cannot_be_used_is_125() {
    let sandbox = Sandbox::new();
    sandbox.write("garbage.db", &"this is not a database ".repeat(100));
    std::fs::create_dir(sandbox.path("folder")).unwrap();
    let at = |name: &str| format!("sqlite:{}", sandbox.path(name).display());
    for url in ["nonsense", "gopher:x", "sqlite:/no/such/folder/x.db", &at("garbage.db"), &at("folder")] {
        for args in [["run", "--url", url, "a", "touch", "entered"].as_slice(), &["list", "--url", url]] {
            let ran = sandbox.run(args).expect(125);
            assert!(ran.stderr().starts_with("fencepost: error: "), "{args:?}: {}", ran.stderr());
        }
    }
    assert!(!sandbox.path("entered").exists());
    assert!(sandbox.read("garbage.db").starts_with("this is not a database"), "it was left as it was");
}

#[test]
fn clients_that_disagree_about_a_semaphore_are_rejected() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--semaphore", "2"]);
    sandbox.run(&["run", "-n", "--semaphore", "2", "a", "true"]).expect(0);
    sandbox.run(&["run", "-n", "--semaphore", "3", "a", "true"]).expect(125);
    sandbox.let_go();
    holder.expect(0);
}

#[test]
fn help_and_version_are_no_failures() {
    let sandbox = Sandbox::new();
    for args in [["--help"].as_slice(), &["-h"], &["run", "--help"], &["list", "-h"], &["show", "--help"]] {
        let ran = sandbox.run(args).expect(0);
        assert!(ran.stdout().contains("Usage: fencepost"), "{}", ran.stdout());
        assert_eq!(ran.stderr(), "");
    }
    let version = sandbox.run(&["--version"]).expect(0);
    assert_eq!(version.stdout(), format!("fencepost {}\n", env!("CARGO_PKG_VERSION")));
    let alone = sandbox.run(&[]).expect(125);
    assert!(alone.stderr().contains("Usage: fencepost"), "{}", alone.stderr());
}

#[test]
fn the_help_of_run_has_examples() {
    let help = Sandbox::new().run(&["run", "--help"]).expect(0).stdout();
    for part in [
        "EXAMPLES",
        "* * * *",
        "--skip-ok",
        "EXIT CODES",
        "  125 ",
        "  76 ",
        "FENCEPOST_TOKEN",
        "FENCEPOST_URL_FILE",
    ] {
        assert!(help.contains(part), "{part} is missing");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 100), "no line is too long");
}
