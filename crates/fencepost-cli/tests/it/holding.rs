//! `fencepost hold`: a lock without a command.

use std::fs::File;
use std::io::PipeWriter;
use std::process::Command;

use fencepost_testkit::servers::free_port;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::events::{events, kinds};
use crate::losing::break_it;
use crate::sandbox::{Ran, Running, Sandbox, until};
use crate::terminal::{CTRL_C, CTRL_Z, PROMPT, Terminal};

/// A `fencepost hold` that writes to the file `out`, and the open end of its stdin.
struct Holding<'a> {
    sandbox: &'a Sandbox,
    process: Running,
    stdin: Option<PipeWriter>,
}

impl<'a> Holding<'a> {
    fn start(sandbox: &'a Sandbox, args: &[&str]) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let out = File::create(sandbox.path("out")).unwrap();
        let mut command = sandbox.fencepost(["hold"].iter().chain(args));
        command.stdin(reader);
        let process = Running::start_into(&mut command, out.into());
        Self { sandbox, process, stdin: Some(writer) }
    }

    fn printed(&self) -> String {
        self.sandbox.line("out")
    }

    fn close_stdin(&mut self) {
        self.stdin = None;
    }
}

fn token(sandbox: &Sandbox, name: &str) -> String {
    sandbox.inspect(name).holders[0].token.unwrap().to_string()
}

#[test]
fn the_token_is_printed_and_the_end_of_stdin_releases() {
    let sandbox = Sandbox::new();
    let mut holding = Holding::start(&sandbox, &["a", "--owner-label", "me", "--meta", "build=42"]);
    assert_eq!(holding.printed(), token(&sandbox, "a"));
    let holder = &sandbox.inspect("a").holders[0];
    assert_eq!((&*holder.label, holder.meta.len()), ("me", 1), "there is no command to record");
    assert!(!holding.process.has_ended());
    holding.close_stdin();
    holding.process.expect(0);
    assert_eq!(holding.process.said(), "");
    sandbox.assert_free("a");
}

#[test]
fn what_is_written_to_stdin_is_discarded() {
    use std::io::Write;

    let sandbox = Sandbox::new();
    let mut holding = Holding::start(&sandbox, &["a", "--ttl", "1s", "--status-file", "events"]);
    holding.printed();
    let input = vec![b'x'; 1 << 20];
    holding.stdin.as_mut().unwrap().write_all(&input).unwrap();
    until("it was renewed", || sandbox.read("events").contains("renewed"));
    holding.close_stdin();
    holding.process.expect(0);
}

#[test]
fn json_has_what_identifies_the_grant() {
    let sandbox = Sandbox::new();
    let mut holding = Holding::start(&sandbox, &["--json", "--ttl", "7s", "--owner-label", "me", "a"]);
    let held: Value = serde_json::from_str(&holding.printed()).unwrap();
    assert_eq!(held["token"].to_string(), token(&sandbox, "a"));
    assert_eq!((&held["name"], &held["label"], &held["ttl_ms"]), (&"a".into(), &"me".into(), &7000.into()));
    assert_eq!(held["storage_id"].as_str().unwrap().len(), 32);
    holding.close_stdin();
    holding.process.expect(0);
}

#[test]
fn a_signal_releases_and_is_the_exit_code() {
    let sandbox = Sandbox::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut holding = Holding::start(&sandbox, &["a"]);
        holding.printed();
        holding.process.send(signal);
        holding.process.expect(128 + signal.as_raw());
        sandbox.assert_free("a");
    }
}

#[test]
fn a_lost_lock_is_76_and_the_reason_is_printed() {
    let sandbox = Sandbox::new();
    let mut holding = Holding::start(&sandbox, &["--ttl", "3s", "a"]);
    holding.printed();
    break_it(&sandbox, "a");
    holding.process.expect(76);
    assert!(holding.process.said().contains("error: lock \"a\" was lost: "), "{}", holding.process.said());
    sandbox.assert_free("a");
}

#[test]
fn a_lock_that_was_lost_before_the_end_of_stdin_is_found_by_the_release() {
    let sandbox = Sandbox::new();
    // A ttl so long that no renewal finds out.
    let mut holding = Holding::start(&sandbox, &["--ttl", "10m", "a"]);
    holding.printed();
    holding.process.send(Signal::STOP);
    break_it(&sandbox, "a");
    holding.close_stdin();
    holding.process.send(Signal::CONT);
    holding.process.expect(76);
}

#[test]
fn a_lock_that_is_not_acquired_prints_no_token() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--owner-label", "the holder"]);
    for (args, code) in [
        (["-n", "a"].as_slice(), 75),
        (&["-w", "100ms", "a"], 75),
        (&["-n", "-E", "9", "a"], 9),
        (&["-n", "--shared", "a"], 75),
    ] {
        let mut holding = Holding::start(&sandbox, args);
        holding.process.expect(code);
        assert!(holding.process.said().contains("\"a\" is held by the holder"), "{}", holding.process.said());
        assert_eq!(sandbox.read("out"), "");
    }
    for args in [["--ttl", "500ms", "b"].as_slice(), &["--url", "nonsense:", "b"], &["b", "true"], &[""]] {
        let mut holding = Holding::start(&sandbox, args);
        holding.process.expect(125);
        assert_eq!(sandbox.read("out"), "");
    }
    sandbox.let_go();
    holder.expect(0);
}

/// The script that wanted the lock is gone.
#[test]
fn the_end_of_stdin_ends_the_wait() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &[]);
    let mut holding = Holding::start(&sandbox, &["-q", "a"]);
    sandbox.until_waiting("a", 1);
    holding.close_stdin();
    holding.process.expect(75);
    assert_eq!((sandbox.inspect("a").waiter_count, sandbox.read("out")), (0, String::new()));
    sandbox.let_go();
    holder.expect(0);
}

/// It does not mean that another client holds the lock.
#[test]
fn the_end_of_stdin_before_the_grant_is_reported_and_no_success() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &[]);
    for (options, code) in [(["--skip-ok", "-w", "10m"], 75), (["-v", "-E", "9"], 9)] {
        let mut holding = Holding::start(&sandbox, &[&options[..], &["a"]].concat());
        sandbox.until_waiting("a", 1);
        holding.close_stdin();
        holding.process.expect(code);
        let said = holding.process.said();
        assert!(said.contains("stdin ended before lock \"a\" was acquired"), "{said}");
    }
    sandbox.let_go();
    holder.expect(0);
}

#[test]
fn the_end_of_stdin_during_an_outage_is_an_error() {
    let sandbox = Sandbox::new();
    let url = format!("redis://127.0.0.1:{}", free_port());
    let mut holding = Holding::start(&sandbox, &["-v", "-w", "10m", "--skip-ok", "--url", &url, "a"]);
    holding.process.until_said("retrying");
    holding.close_stdin();
    holding.process.expect(125);
    let said = holding.process.said();
    assert!(said.contains("fencepost: error: gave up connecting after "), "{said}");
}

#[test]
fn a_signal_ends_the_wait() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &[]);
    let mut holding = Holding::start(&sandbox, &["-q", "a"]);
    sandbox.until_waiting("a", 1);
    holding.process.send(Signal::TERM);
    holding.process.expect(128 + 15);
    assert_eq!(sandbox.inspect("a").waiter_count, 0);
    sandbox.let_go();
    holder.expect(0);
}

#[test]
fn readers_share_and_permits_are_counted() {
    let sandbox = Sandbox::new();
    let mut first = Holding::start(&sandbox, &["--shared", "a"]);
    first.printed();
    sandbox.run(&["run", "-n", "--shared", "a", "true"]).expect(0);
    sandbox.run(&["run", "-n", "a", "true"]).expect(75);
    let mut second = Holding::start(&sandbox, &["--semaphore", "1", "b"]);
    second.printed();
    sandbox.run(&["run", "-n", "--semaphore", "1", "b", "true"]).expect(75);
    for holding in [&mut first, &mut second] {
        holding.close_stdin();
        holding.process.expect(0);
    }
}

#[test]
fn a_stdin_that_has_ended_already_is_refused_unless_only_a_signal_counts() {
    let sandbox = Sandbox::new();
    let null = sandbox.run(&["hold", "a"]).expect(125);
    let closed = sandbox.on_path("sh").args(["-c", "fencepost hold a <&-"]).output().unwrap();
    for ran in [null, Ran(closed).expect(125)] {
        assert!(
            ran.stderr().contains("hint: ") && ran.stderr().contains("--until-signal"),
            "{}",
            ran.stderr()
        );
        assert_eq!(ran.stdout(), "");
    }
    let out = File::create(sandbox.path("out")).unwrap();
    let mut holding =
        Running::start_into(&mut sandbox.fencepost(["hold", "--until-signal", "a"]), out.into());
    assert_eq!(sandbox.line("out"), token(&sandbox, "a"));
    holding.send(Signal::TERM);
    holding.expect(128 + 15);
    sandbox.assert_free("a");
}

#[test]
fn events_are_those_of_a_run_without_a_command() {
    let sandbox = Sandbox::new();
    let mut holding = Holding::start(&sandbox, &["--status-file", "events", "a"]);
    holding.printed();
    holding.close_stdin();
    holding.process.expect(0);
    let events = events(&sandbox.read("events"));
    let mut kinds = kinds(&events);
    // On a busy machine it may have to wait for the database.
    kinds.retain(|kind| !["waiting", "renewed"].contains(kind));
    assert_eq!(kinds, ["acquired", "released", "exit"]);
    let exit = events.last().unwrap();
    assert_eq!((&exit["code"], &exit["reason"]), (&0.into(), &"done".into()));
}

#[test]
fn a_hold_within_a_run_of_the_same_lock_is_told_so() {
    let sandbox = Sandbox::new();
    let mut outer = sandbox.on_path("fencepost");
    let output = outer.args(["run", "a", "--", "fencepost", "hold", "--until-signal", "a"]).output().unwrap();
    let ran = Ran(output).expect(125);
    assert!(ran.stderr().contains("it could only wait for itself"), "{}", ran.stderr());
}

/// The commands of an example in the help, without their indentation.
fn example(sandbox: &Sandbox, title: &str) -> String {
    let help = sandbox.run(&["hold", "--help"]).expect(0).stdout();
    let lines = help.lines().skip_while(|line| line.trim() != title).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    assert!(lines.len() > 1, "{title:?} is missing in {help}");
    lines.join("\n")
}

fn run_example(program: &str, title: &str) {
    let sandbox = Sandbox::new();
    sandbox.write("deploy.sh", "#!/bin/sh\necho \"$2\" > given\nfencepost show deploy > shown\n");
    sandbox.run(&["run", "x", "--", "chmod", "+x", "deploy.sh"]).expect(0);
    sandbox.write("script", &(example(&sandbox, title) + "\necho code $? > code\n"));
    let output = Ran(sandbox.on_path(program).arg("script").output().unwrap()).expect(0);
    assert_eq!((output.stdout(), output.stderr()), (String::new(), String::new()));
    assert!(sandbox.read("shown").contains(&format!("token:  {}\n", sandbox.line("given"))));
    assert_eq!(sandbox.line("code"), "code 0");
    sandbox.assert_free("deploy");
}

#[test]
fn the_example_for_bash_works() {
    run_example("bash", "A section of a bash script:");
}

#[test]
fn the_example_for_other_shells_works() {
    run_example("sh", "The same in any POSIX shell, with two named pipes:");
}

#[test]
fn a_script_that_is_killed_releases_the_lock() {
    let sandbox = Sandbox::new();
    let script = "coproc LOCK { exec fencepost hold a; }; read -r token <&\"${LOCK[0]}\"; echo $token > token; \
                  read -r never < gate";
    let mut bash: Command = sandbox.on_path("bash");
    sandbox.run(&["run", "x", "--", "mkfifo", "gate"]).expect(0);
    let mut running = Running::start(bash.args(["-c", script]));
    assert_eq!(sandbox.line("token"), token(&sandbox, "a"));
    running.send(Signal::KILL);
    running.wait();
    until("it is released", || sandbox.inspect("a").is_idle());
}

#[test]
fn on_a_terminal_the_end_of_input_releases() {
    let sandbox = Sandbox::new();
    let mut terminal = Terminal::start(&sandbox.fencepost(["hold", "a"]));
    terminal.until_shown("holding \"a\" until end of input (Ctrl-D) or a signal");
    terminal.until_shown(&token(&sandbox, "a"));
    terminal.type_text("\x04");
    terminal.expect(0);
    sandbox.assert_free("a");
}

/// It must not read from there: it would be stopped, and the lease would expire.
#[test]
fn in_the_background_of_a_terminal_only_a_signal_ends_it() {
    let sandbox = Sandbox::new();
    let mut terminal = Terminal::with_shell(&sandbox);
    terminal.type_line("fencepost hold --ttl 1s --status-file events a & echo $! > id");
    terminal.until_next("until a signal");
    until("it was renewed", || sandbox.read("events").matches("renewed").count() > 1);
    let id = sandbox.line("id").parse().ok().and_then(Pid::from_raw).unwrap();
    kill_process(id, Signal::TERM).unwrap();
    terminal.type_line("wait $!");
    terminal.until_next(PROMPT);
    until("it is released", || sandbox.inspect("a").is_idle());
    terminal.type_line("fencepost hold a; echo not reached");
    terminal.until_next("end of input");
    terminal.type_text(CTRL_C);
    terminal.until_next(PROMPT);
    sandbox.assert_free("a");
}

#[test]
fn a_hold_that_is_moved_to_the_background_keeps_the_lock() {
    let sandbox = Sandbox::new();
    let mut terminal = Terminal::with_shell(&sandbox);
    let shell = terminal.foreground();
    terminal.type_line("fencepost hold --ttl 6s --status-file events a");
    terminal.until_next("end of input");
    terminal.type_text(CTRL_Z);
    terminal.until_next("Stopped");
    terminal.until_next(PROMPT);
    terminal.type_line("bg");
    terminal.until_next(PROMPT);
    let renewals = || sandbox.read("events").matches("renewed").count();
    let before = renewals();
    until("it is renewed in the background", || renewals() > before + 1);
    terminal.type_line("fg");
    until("it has the terminal", || terminal.foreground() != shell);
    terminal.type_text("\x04");
    terminal.expect_code(0);
    sandbox.assert_free("a");
}
