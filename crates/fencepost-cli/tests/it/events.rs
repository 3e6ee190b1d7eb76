//! Life-cycle events for programs, and the schema that describes them.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::losing::break_it;
use crate::sandbox::{Running, Sandbox, is_alive, until};

const SCHEMA: &str = include_str!("../../../../docs/reference/status.schema.json");
const FENCEPOST: &str = env!("CARGO_BIN_EXE_fencepost");

/// Parses the events in a text, and checks each against the schema.
pub(crate) fn events(text: &str) -> Vec<Value> {
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    events.iter().for_each(assert_as_described);
    events
}

pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

#[track_caller]
fn assert_as_described(event: &Value) {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let described = &schema["$defs"][event["event"].as_str().unwrap()];
    assert!(described.is_object(), "the schema does not know {event}");
    for required in [&schema["required"], &described["required"]] {
        for field in required.as_array().unwrap() {
            assert!(event.get(field.as_str().unwrap()).is_some(), "{field} is missing in {event}");
        }
    }
    for (field, value) in event.as_object().unwrap() {
        let property = [&described["properties"][field], &schema["properties"][field]];
        let property = property.into_iter().find(|property| property.is_object());
        assert!(
            fits(property.unwrap_or_else(|| panic!("{field} is not described: {event}")), value),
            "{event}"
        );
    }
}

fn fits(property: &Value, value: &Value) -> bool {
    if let Some(expected) = property.get("const") {
        return value == expected;
    }
    if let Some(allowed) = property.get("enum").and_then(Value::as_array) {
        return allowed.contains(value);
    }
    let kind = match value {
        Value::Null => "null",
        Value::Number(number) if number.is_u64() => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        _ => return false,
    };
    match &property["type"] {
        Value::Array(kinds) => kinds.iter().any(|allowed| allowed == kind),
        allowed => allowed == kind,
    }
}

#[test]
fn a_run_is_reported_from_its_beginning_to_its_end() {
    let sandbox = Sandbox::new();
    let script = "echo $FENCEPOST_TOKEN > token; exit 7";
    sandbox.run(&["run", "--status-file", "events", "--owner-label", "me", "a", "-c", script]).expect(7);
    let events = events(&sandbox.read("events"));
    assert_eq!(kinds(&events), ["acquired", "child-start", "child-exit", "released", "exit"]);
    assert_eq!(events[0]["token"].to_string(), sandbox.line("token"));
    assert_eq!((&events[0]["label"], &events[0]["lock"]), (&"me".into(), &"a".into()));
    assert_eq!(events[2]["code"], 7);
    assert_eq!(events[3]["outcome"], "released");
    assert_eq!((&events[4]["code"], &events[4]["reason"]), (&7.into(), &"child".into()));
}

#[test]
fn a_waiter_reports_the_holder_and_the_signal_that_ended_it() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--owner-label", "the holder"]);
    let mut waiter = sandbox.start(&["run", "-q", "--status-file", "events", "a", "true"]);
    until("it waits", || sandbox.read("events").contains("\"ahead\":0"));
    waiter.send(Signal::TERM);
    waiter.expect(128 + 15);
    assert_eq!(waiter.said(), "");
    let events = events(&sandbox.read("events"));
    let [.., waiting, exit] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(waiting["holders"][0]["label"], "the holder");
    assert_eq!(exit["reason"], "signalled");
    sandbox.let_go();
    holder.expect(0);
}

#[test]
fn renewals_and_a_loss_are_reported() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--ttl", "1s", "--status-file", "events"]);
    until("it was renewed", || sandbox.read("events").contains("renewed"));
    break_it(&sandbox, "a");
    holder.expect(76);
    let events = events(&sandbox.read("events"));
    let kinds = kinds(&events);
    assert_eq!(kinds[..3], ["acquired", "child-start", "renewed"]);
    assert_eq!(kinds[kinds.len() - 3..], ["lost", "child-exit", "exit"]);
    assert_eq!(events[kinds.len() - 1]["reason"], "lost");
    assert_eq!(kinds.iter().filter(|kind| **kind == "lost").count(), 1);
}

/// The exit code of every other end is ambiguous; the reason is not.
#[test]
fn every_end_has_its_reason() {
    let sandbox = Sandbox::new();
    for (args, code, reason) in [
        (["--", "/nonexistent/command"].as_slice(), 127, "not-found"),
        (&["--", "/"], 126, "cannot-execute"),
        (&["--max-run", "10ms", "--", "sleep", "60"], 124, "max-run"),
        (&["-c", "exit 75"], 75, "child"),
        (&["-c", "kill -9 $$"], 137, "child"),
        (&["--ttl", "1s", "-c", &format!("{FENCEPOST} run a true")], 125, "child"),
    ] {
        sandbox.write("events", "");
        let all: Vec<&str> = ["run", "--status-file", "events", "a"].iter().chain(args).copied().collect();
        sandbox.run(&all).expect(code);
        let events = events(&sandbox.read("events"));
        let last = events.last().unwrap();
        assert_eq!((&last["code"], &last["reason"]), (&code.into(), &reason.into()), "{args:?}");
    }
    let mut holder = sandbox.hold("a", &[]);
    sandbox.write("events", "");
    sandbox.run(&["run", "-n", "--status-file", "events", "a", "true"]).expect(75);
    assert_eq!(events(&sandbox.read("events"))[0]["reason"], "not-acquired");
    sandbox.let_go();
    holder.expect(0);
    sandbox.write("events", "");
    sandbox.run(&["run", "--url", "nonsense:", "--status-file", "events", "a", "true"]).expect(125);
    assert_eq!(events(&sandbox.read("events"))[0]["reason"], "failed");
}

#[test]
fn a_descriptor_of_the_shell_gets_the_events_and_the_command_does_not_get_it() {
    let sandbox = Sandbox::new();
    let script =
        format!("exec 7>events; {FENCEPOST} run --status-fd 7 a -- sh -c 'ls /proc/self/fd > descriptors'");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(sandbox.path("")).env("FENCEPOST_URL", sandbox.url());
    assert_eq!(shell.status().unwrap().code(), Some(0));
    assert_eq!(*kinds(&events(&sandbox.read("events"))).last().unwrap(), "exit");
    assert!(
        !sandbox.read("descriptors").lines().any(|number| number == "7"),
        "{}",
        sandbox.read("descriptors")
    );
}

#[test]
fn an_unusable_destination_is_rejected_before_anything_is_locked() {
    let sandbox = Sandbox::new();
    for (args, said) in [
        (["--status-fd", "7"], "--status-fd 7 is not open"),
        (["--status-fd", "2"], "2 is not in 3.."),
        (["--status-fd", "x"], "invalid value"),
        (["--status-file", "/nonexistent/events"], "could not open --status-file"),
    ] {
        let all: Vec<&str> = ["run"].iter().chain(&args).chain(&["a", "touch", "entered"]).copied().collect();
        let ran = sandbox.run(&all).expect(125);
        assert!(ran.stderr().contains(said), "{}", ran.stderr());
    }
    let script = format!("{FENCEPOST} run --status-fd 7 a touch entered 7</dev/null");
    let read_only = Command::new("sh").args(["-c", &script]).current_dir(sandbox.path("")).output().unwrap();
    assert_eq!(read_only.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&read_only.stderr).contains("for reading only"));
    assert!(!sandbox.path("entered").exists());
}

/// A reader that does not read from its pipe delays neither the deadline nor the end.
#[test]
fn a_reader_that_does_not_read_changes_nothing() {
    let sandbox = Sandbox::new();
    let (_reader, writer) = std::io::pipe().unwrap();
    fill(&writer);
    let mut shell = Command::new("sh");
    let command = "'echo $$ > ready; exec sleep 600'";
    let script = format!("exec {FENCEPOST} run --ttl 1s --status-fd 7 a -c {command} 7>&1 >/dev/null");
    shell.args(["-c", &script]);
    shell.current_dir(sandbox.path("")).env("FENCEPOST_URL", sandbox.url()).stderr(Stdio::null());
    let mut running = shell.stdout(OwnedFd::from(writer)).spawn().unwrap();
    let command = sandbox.line("ready");
    break_it(&sandbox, "a");
    until("the command is stopped", || !is_alive(&command));
    until("fencepost ends", || running.try_wait().unwrap().is_some());
    assert_eq!(running.wait().unwrap().code(), Some(76));
}

/// The same for messages on stderr: a pager that was paused, Ctrl-S.
#[test]
fn a_stderr_without_a_reader_changes_nothing() {
    let sandbox = Sandbox::new();
    let (_reader, writer) = std::io::pipe().unwrap();
    fill(&writer);
    let script = "trap '' TERM; echo $$ > ready; while [ -e locks.db ]; do sleep 0.02; done";
    let limits = ["run", "--max-run", "300ms", "--kill-after", "100ms", "--ttl", "600s", "a", "-c", script];
    let mut running = sandbox.fencepost(limits).stderr(OwnedFd::from(writer)).spawn().unwrap();
    let command = sandbox.line("ready");
    until("the command is killed", || !is_alive(&command));
    until("fencepost ends", || running.try_wait().unwrap().is_some());
    assert_eq!(running.wait().unwrap().code(), Some(124));
}

/// A named pipe without a reader is an error, and is not waited for.
#[test]
fn a_pipe_without_a_reader_is_rejected() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "mkfifo", "events"]).expect(0);
    let ran = sandbox.run(&["run", "--status-file", "events", "a", "touch", "entered"]).expect(125);
    assert!(ran.stderr().contains("could not open --status-file"), "{}", ran.stderr());
    assert!(!sandbox.path("entered").exists());
}

/// A non-blocking descriptor is full for a moment: the events continue afterwards.
#[test]
fn a_slow_reader_gets_later_events() {
    let sandbox = Sandbox::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    fill(&writer);
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut shell = Command::new("sh");
    let hold = "'echo $$ > ready; while [ -e locks.db ] && ! [ -e go ]; do sleep 0.02; done'";
    let script = format!("exec {FENCEPOST} run --status-fd 7 a -c {hold} 7>&1 >/dev/null");
    shell.args(["-c", &script]).current_dir(sandbox.path("")).env("FENCEPOST_URL", sandbox.url());
    let mut running = shell.stdout(OwnedFd::from(writer)).spawn().unwrap();
    drop(shell);
    sandbox.line("ready");
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
        text
    });
    sandbox.let_go();
    until("fencepost ends", || running.try_wait().unwrap().is_some());
    let text = reading.join().unwrap();
    assert_eq!(*kinds(&events(text.trim_start())).last().unwrap(), "exit");
}

fn fill(pipe: &std::io::PipeWriter) {
    let flags = rustix::fs::fcntl_getfl(pipe).unwrap();
    rustix::fs::fcntl_setfl(pipe, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::write(pipe, &[b'\n'; 4096]).is_ok() {}
    while rustix::io::write(pipe, b"\n").is_ok() {}
    rustix::fs::fcntl_setfl(pipe, flags).unwrap();
}

#[test]
fn events_of_several_runs_share_a_file() {
    let sandbox = Sandbox::new();
    let start = || sandbox.start(&["run", "--status-file", "events", "a", "true"]);
    let mut runs: Vec<Running> = (0..8).map(|_| start()).collect();
    for run in &mut runs {
        run.expect(0);
    }
    let events = events(&sandbox.read("events"));
    assert_eq!(kinds(&events).iter().filter(|kind| **kind == "acquired").count(), 8);
}
