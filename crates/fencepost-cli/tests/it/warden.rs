//! fencepost itself is stopped or killed, and the command under its lock does not outlive the lease.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fencepost::clock::Clock;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::losing::turnstile_is_free;
use crate::sandbox::{Running, Sandbox, can_act, is_alive, state, until};
use crate::workers::{Entry, assert_no_overlap, folder, log, next_after, worker};

/// Long enough that a kill that is sent in time is also carried out in time on a busy machine.
const TTL: &str = "3s";

fn start(sandbox: &Sandbox, name: &str, folder: &Path) -> Running {
    let args = ["run", "--ttl", TTL, name, "--"].map(str::to_owned);
    let args: Vec<String> = args.into_iter().chain(worker(folder)).collect();
    Running::start(&mut sandbox.fencepost(args))
}

fn pid(id: &str) -> Pid {
    Pid::from_raw(id.parse().unwrap()).unwrap()
}

fn children(parent: &str) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    children.split_ascii_whitespace().map(str::to_owned).collect()
}

fn name_of(id: &str) -> String {
    fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default().trim().to_owned()
}

/// Returns the processes of a run: its warden, and its command.
fn warden_and_command(running: &Running) -> (String, String) {
    let all = children(&running.id().to_string());
    let (wardens, commands): (Vec<_>, Vec<_>) = all.into_iter().partition(|id| name_of(id) == "fp-warden");
    assert_eq!((wardens.len(), commands.len()), (1, 1), "{wardens:?} {commands:?}");
    (wardens[0].clone(), commands[0].clone())
}

/// Stops a fencepost, but not in the middle of a transaction: SQLite would block every other writer until it continues.
pub(crate) fn stop(sandbox: &Sandbox, running: &Running) {
    loop {
        running.send(Signal::STOP);
        until("it is stopped", || {
            let state = state(&running.id().to_string());
            assert!(!matches!(state, None | Some('Z')), "it has ended: {}", running.said());
            state == Some('T')
        });
        if turnstile_is_free(sandbox) {
            return;
        }
        running.send(Signal::CONT);
    }
}

/// Ten locks at a time, and on each of them ten holders in turn are stopped: a hundred times a successor acquires the lock
/// while the fencepost of the holder before is stopped.
#[test]
fn while_fencepost_is_stopped_the_warden_enforces_the_deadline() {
    std::thread::scope(|scope| {
        for lock in 0..10 {
            scope.spawn(move || stop_ten_holders(&format!("lock-{lock}"), lock));
        }
    });
}

fn stop_ten_holders(name: &str, seed: usize) {
    // A separate database: a shared one is nearly always being written to, and there would be no moment to stop.
    let sandbox = &Sandbox::new();
    let folder = folder(sandbox, name);
    let mut holder = start(sandbox, name, &folder);
    let mut token = next_after(&folder, 0, 1);
    for round in 0..10 {
        let mut next = start(sandbox, name, &folder);
        sandbox.until_waiting(name, 1);
        // At another point between two renewals each time.
        until("it has worked for a while", || {
            log(&folder).iter().filter(|entry| entry.token == token).count() > (seed * 7 + round * 31) % 200
        });
        let (_, command) = warden_and_command(&holder);
        stop(sandbox, &holder);
        token = next_after(&folder, token, 1);
        assert!(!can_act(&command), "it outlived its lock");
        holder.send(Signal::CONT);
        holder.expect(76);
        std::mem::swap(&mut holder, &mut next);
    }
    let log = log(&folder);
    assert_no_overlap(&log);
    assert!(log.iter().all(|entry| entry.passed), "the fence had nothing to do");
    holder.send(Signal::TERM);
    holder.expect(128 + 15);
}

/// `consul lock` #2022: the shell dies, the real worker lives.
#[test]
fn when_fencepost_is_killed_a_grandchild_is_gone_before_the_successor_enters() {
    let sandbox = Sandbox::new();
    let folder = folder(&sandbox, "log");
    let work = worker(&folder).join(" ");
    let script = format!("{work} & echo $! > worker; wait");
    let mut holder = sandbox.start(&["run", "--ttl", TTL, "a", "-c", &script]);
    let worker = sandbox.line("worker");
    let token = next_after(&folder, 0, 5);
    let (warden, command) = warden_and_command(&holder);
    let mut next = start(&sandbox, "a", &folder);
    sandbox.until_waiting("a", 1);
    holder.send(Signal::KILL);
    holder.wait();
    until("all of them are gone", || [&warden, &command, &worker].iter().all(|id| !is_alive(id)));
    next_after(&folder, token, 5);
    assert_no_overlap(&log(&folder));
    next.send(Signal::TERM);
    next.expect(128 + 15);
}

/// A holder that was stopped with its warden and its command, as when a virtual machine is paused, and its successor.
struct Paused {
    folder: PathBuf,
    holder: Running,
    warden: String,
    command: String,
    /// The token of the late holder, and that of its successor.
    late: u64,
    token: u64,
    next: Running,
}

impl Paused {
    fn new(sandbox: &Sandbox) -> Self {
        let folder = folder(sandbox, "log");
        let holder = start(sandbox, "a", &folder);
        let late = next_after(&folder, 0, 5);
        let (warden, command) = warden_and_command(&holder);
        let next = start(sandbox, "a", &folder);
        sandbox.until_waiting("a", 1);
        stop(sandbox, &holder);
        for id in [&warden, &command] {
            kill_process(pid(id), Signal::STOP).unwrap();
            until("it is stopped", || state(id) == Some('T'));
        }
        let token = next_after(&folder, late, 5);
        Self { folder, holder, warden, command, late, token, next }
    }

    /// Continues the command first: it runs alone until the others are continued.
    fn continue_command(&self) {
        kill_process_group(pid(&self.command), Signal::CONT).unwrap();
    }

    fn continue_others(&mut self) {
        kill_process(pid(&self.warden), Signal::CONT).unwrap();
        self.holder.send(Signal::CONT);
        until("the command is killed", || !is_alive(&self.command));
        self.holder.expect(76);
    }

    /// Prints how long the two commands ran at once, and checks that the fence rejected every effect of the late one.
    fn report(mut self, what: &str) {
        let log = log(&self.folder);
        let entered = log.iter().find(|entry| entry.token == self.token).unwrap().nanos;
        let late: Vec<&Entry> =
            log.iter().filter(|entry| entry.token == self.late && entry.nanos > entered).collect();
        let ran = late.first().zip(late.last()).map_or(0, |(first, last)| last.nanos - first.nanos);
        println!(
            "{what}: it ran for {:?}, and effects were refused: {}",
            Duration::from_nanos(ran),
            late.len()
        );
        assert!(late.iter().all(|entry| !entry.passed), "the fence let a late one through");
        self.next.send(Signal::TERM);
        self.next.expect(128 + 15);
    }
}

/// A virtual machine that is paused, or a laptop that sleeps: no process is left to enforce the deadline. A resource that
/// checks the token rejects the effect of the late holder.
#[test]
fn when_everything_is_stopped_the_fence_rejects_the_late_holder() {
    let sandbox = Sandbox::new();
    let mut paused = Paused::new(&sandbox);
    paused.continue_command();
    let is_late = |entry: &&Entry| entry.token == paused.late && !entry.passed;
    until("it is late", || log(&paused.folder).iter().filter(is_late).count() >= 5);
    paused.continue_others();
    paused.report("the command alone goes on");
}

/// Measures the overlap that cannot be ruled out: `-- --nocapture` shows it.
#[test]
fn when_everything_continues_at_once_the_overlap_is_short() {
    let sandbox = Sandbox::new();
    let mut paused = Paused::new(&sandbox);
    paused.continue_command();
    paused.continue_others();
    paused.report("everything goes on at once");
}

#[test]
fn a_warden_that_was_killed_is_replaced() {
    let sandbox = Sandbox::new();
    let folder = folder(&sandbox, "log");
    let mut holder = start(&sandbox, "a", &folder);
    let token = next_after(&folder, 0, 1);
    let (warden, command) = warden_and_command(&holder);
    kill_process(pid(&warden), Signal::KILL).unwrap();
    holder.until_said("has been replaced");
    until("it has its name", || {
        children(&holder.id().to_string()).iter().any(|id| name_of(id) == "fp-warden")
    });
    assert_ne!(warden_and_command(&holder).0, warden);
    let mut next = start(&sandbox, "a", &folder);
    sandbox.until_waiting("a", 1);
    stop(&sandbox, &holder);
    next_after(&folder, token, 1);
    assert!(!can_act(&command));
    assert_no_overlap(&log(&folder));
    holder.send(Signal::CONT);
    holder.expect(76);
    next.send(Signal::TERM);
    next.expect(128 + 15);
}

/// The second safeguard: the kernel kills the command's first process with fencepost.
#[test]
fn if_the_warden_cannot_act_the_command_still_ends_with_fencepost() {
    let sandbox = Sandbox::new();
    let mut holder =
        sandbox.start(&["run", "a", "-c", "echo $$ > ready; while [ -e locks.db ]; do sleep 0.02; done"]);
    let command = sandbox.line("ready");
    let (warden, _) = warden_and_command(&holder);
    // Before fencepost can replace it.
    holder.send(Signal::STOP);
    until("fencepost is stopped", || state(&holder.id().to_string()) == Some('T'));
    kill_process(pid(&warden), Signal::STOP).unwrap();
    until("it is stopped", || state(&warden) == Some('T'));
    holder.send(Signal::KILL);
    holder.wait();
    until("the command has ended", || !is_alive(&command));
    assert_eq!(state(&warden), Some('T'), "it was not the warden");
    kill_process(pid(&warden), Signal::CONT).unwrap();
    until("the warden has ended", || !is_alive(&warden));
}

/// A service manager that stops a service signals every process of it; the command has its kill-after all the same.
#[test]
fn a_warden_ignores_signals_that_are_meant_for_others() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &[]);
    let (warden, _) = warden_and_command(&holder);
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::TSTP] {
        kill_process(pid(&warden), signal).unwrap();
    }
    let command = fs::read(format!("/proc/{warden}/cmdline")).unwrap();
    assert!(!String::from_utf8_lossy(&command).contains("fencepost"), "killing by name must not find it");
    sandbox.let_go();
    holder.expect(0);
    assert_eq!(holder.said(), "", "no warden was replaced");
    assert!(!is_alive(&warden));
}

/// It would kill no process, and the kernel kills only the first process of the command with fencepost.
#[test]
fn a_warden_that_was_stopped_is_replaced() {
    let sandbox = Sandbox::new();
    let script = "sleep 600 & echo $! > worker; wait";
    let mut holder = sandbox.start(&["run", "a", "-c", script]);
    let worker = sandbox.line("worker");
    let (warden, _) = warden_and_command(&holder);
    kill_process(pid(&warden), Signal::STOP).unwrap();
    holder.until_said("has been replaced");
    assert!(!is_alive(&warden) && is_alive(&worker));
    holder.send(Signal::KILL);
    holder.wait();
    until("the worker has ended", || !is_alive(&worker));
}

/// A warden that was stopped applies all orders that arrived meanwhile before it decides: the end of the lease that it
/// knew is past by then, and its target is another.
#[test]
fn a_warden_that_continues_applies_its_orders_before_it_decides() {
    let (mut line, theirs) = UnixStream::pair().unwrap();
    let mut warden = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    let mut warden = warden.arg0("fp-warden").stdin(OwnedFd::from(theirs)).spawn().unwrap();
    line.read_exact(&mut [0; "ready\n".len()]).unwrap();
    let [mut spared, mut watched] = [(); 2].map(|()| Command::new("sleep").arg("600").spawn().unwrap());
    let clock = Clock::system();
    let soon = clock.now() + Duration::from_millis(500);
    writeln!(line, "process {}\nuntil {}", spared.id(), soon.as_nanos()).unwrap();
    let id = warden.id().to_string();
    kill_process(pid(&id), Signal::STOP).unwrap();
    until("it is stopped", || state(&id) == Some('T'));
    until("the end that it knows is past", || clock.now() > soon);
    writeln!(line, "until {}\nprocess {}", u64::MAX, watched.id()).unwrap();
    kill_process(pid(&id), Signal::CONT).unwrap();
    drop(line);
    assert_eq!(warden.wait().unwrap().code(), Some(3), "it has killed, because the line was closed");
    let can_act = |id: u32| can_act(&id.to_string());
    let found = (can_act(spared.id()), can_act(watched.id()));
    for process in [&mut spared, &mut watched] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert_eq!(found, (true, false), "it judged before it had heard");
}

/// Nothing is guaranteed about a process that leaves the command's group: it continues, and is not waited for.
#[test]
fn a_process_that_leaves_the_group_is_not_supervised() {
    let sandbox = Sandbox::new();
    let script = "exec >/dev/null 2>&1; setsid sh -c 'echo $$ > daemon; while [ -e go-on ]; do sleep 0.02; done' & \
                  until [ -s daemon ]; do sleep 0.01; done; exit 3";
    sandbox.write("go-on", "");
    sandbox.run(&["run", "a", "-c", script]).expect(3);
    let daemon = sandbox.line("daemon");
    assert!(is_alive(&daemon));
    sandbox.assert_free("a");
    fs::remove_file(sandbox.path("go-on")).unwrap();
    until("it ends", || !is_alive(&daemon));
}

/// A new warden has all orders, but fencepost dies before it is ready.
#[test]
fn a_warden_that_starts_after_fencepost_died_kills_all_the_same() {
    let sandbox = Sandbox::new();
    for round in 0..10 {
        let (lock, worker) = (format!("a{round}"), format!("worker{round}"));
        let script = format!("sleep 600 & echo $! > {worker}; wait");
        let mut holder = sandbox.start(&["run", &lock, "-c", &script]);
        let worker = sandbox.line(&worker);
        let (warden, _) = warden_and_command(&holder);
        kill_process(pid(&warden), Signal::KILL).unwrap();
        let id = holder.id().to_string();
        until("another warden is there", || {
            children(&id).iter().any(|id| *id != warden && name_of(id) != "sh")
        });
        holder.send(Signal::KILL);
        holder.wait();
        until("the worker has ended", || !is_alive(&worker));
    }
}
