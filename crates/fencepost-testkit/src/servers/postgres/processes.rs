//! The processes of a server: one that listens, and its children, of which each connection has one.

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::block_until;

/// Stops a process and all its children with SIGSTOP; returns the children.
pub(super) fn stop_all(parent: Pid) -> Vec<Pid> {
    // The parent first: when it is stopped, it starts no others.
    signal(parent, Signal::STOP);
    block_until("the process is stopped", || is_in(parent, &['T', 'Z', 'X']));
    let children = children(parent);
    for child in &children {
        signal(*child, Signal::STOP);
    }
    block_until("the children are stopped", || children.iter().all(|child| is_in(*child, &['T', 'Z', 'X'])));
    children
}

/// Continues a process and its children.
pub(super) fn continue_all(parent: Pid) {
    for process in children(parent).into_iter().chain([parent]) {
        signal(process, Signal::CONT);
    }
}

/// Waits until the processes have ended, whether or not their new parent has noticed it.
pub(super) fn wait_for_the_end(processes: &[Pid]) {
    block_until("the processes have ended", || processes.iter().all(|process| is_in(*process, &['Z', 'X'])));
}

pub(super) fn signal(process: Pid, signal: Signal) {
    // Fails if it has just ended.
    let _ = kill_process(process, signal);
}

fn children(parent: Pid) -> Vec<Pid> {
    let listed = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let listed = listed.unwrap_or_default();
    listed.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Returns whether a process is in one of these states of Linux, or gone.
fn is_in(process: Pid, states: &[char]) -> bool {
    let Ok(line) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return true };
    line.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(states))
}
