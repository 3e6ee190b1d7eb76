//! The foreground of the terminal: giving it to the command, taking it back, and stopping together with the command.
//!
//! It is given to the command only if stdin, stdout and stderr are all the terminal and the group of fencepost is its
//! foreground. In a pipeline the foreground belongs to all of its programs, a pager among them, and stays with them.

use std::cell::OnceCell;
use std::io::{self, IsTerminal};

use crate::unchecked::end_by_interrupt;
use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::unistd::{getpgid, getpgrp, getsid};
use rustix::process::{Pid, Signal, getpid, kill_current_process_group, kill_process};
use rustix::stdio::stdin;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// What to do about a command that was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterStop {
    /// Continue it.
    Continue,
    /// Give it the terminal, and continue it.
    GiveTerminal,
    /// Stop fencepost as well, and leave the terminal to the shell.
    StopToo,
    /// Report that it is stopped.
    Report,
}

/// Whether fencepost received a request to stop, as the command did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopRequest {
    None,
    /// A signal from another process.
    Signal,
    /// A key that was typed at the terminal, whose foreground is the group of fencepost.
    Key,
}

/// A key that terminates programs, and has terminated the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// The command had the terminal: the group of fencepost has not received the signal.
    ForCommand(Signal),
    /// The whole group of fencepost has received the signal.
    ForAll(Signal),
}

impl Key {
    pub(crate) fn signal(self) -> Signal {
        let (Self::ForCommand(signal) | Self::ForAll(signal)) = self;
        signal
    }
}

/// The group that has the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreground {
    /// That of fencepost.
    Ours,
    /// That of the command.
    Commands,
    /// Another: fencepost runs in the background.
    Other,
}

/// The terminal that fencepost was started at.
pub(crate) struct Terminal {
    own: Pid,
    /// Its modes before the command had it.
    modes: OnceCell<Termios>,
}

impl Terminal {
    /// Returns the controlling terminal, if stdin, stdout and stderr are all that terminal.
    pub(crate) fn controlling() -> Option<Self> {
        let all = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
        // The foreground of another session's terminal cannot be read.
        let controls = all && tcgetpgrp(stdin()).is_ok();
        // The terminal could not be given back to a group without a number.
        own_group().filter(|_| controls).map(|own| Self { own, modes: OnceCell::new() })
    }

    pub(crate) fn foreground(&self, group: Pid) -> Foreground {
        match tcgetpgrp(stdin()) {
            Ok(found) if found == self.own => Foreground::Ours,
            Ok(found) if found == group => Foreground::Commands,
            _ => Foreground::Other,
        }
    }

    /// Gives the terminal to a group, if the group of fencepost has it.
    pub(crate) fn give_to(&self, group: Pid) {
        if self.foreground(group) == Foreground::Ours {
            if let (None, Ok(modes)) = (self.modes.get(), tcgetattr(stdin())) {
                // While fencepost runs in the background, a shell with line editing has other modes.
                let _ = self.modes.set(modes);
            }
            let _ = tcsetpgrp(stdin(), group);
        }
    }

    /// Takes the terminal back from a group. Returns whether that group had it.
    pub(crate) fn take_back(&self, group: Pid) -> bool {
        let had_it = self.foreground(group) == Foreground::Commands;
        if had_it {
            let _ = tcsetpgrp(stdin(), self.own);
        }
        had_it
    }

    /// Takes the terminal back from a group that was killed, and restores the modes.
    pub(crate) fn take_back_and_reset(&self, group: Pid) -> bool {
        let had_it = self.take_back(group);
        if let (true, Some(modes)) = (had_it, self.modes.get()) {
            let _ = tcsetattr(stdin(), OptionalActions::Drain, modes);
        }
        had_it
    }
}

/// Stops the whole group of fencepost: a script that it is part of stops too, as it would with the command.
pub(crate) fn stop_group() {
    let _ = kill_current_process_group(Signal::STOP);
}

/// Ends as the command did, so that a script that fencepost is part of ends too, as it would without fencepost: some shells
/// end when they receive the signal, others when a child was terminated by it. Returns if this process cannot end so.
pub(crate) fn end_by(key: Key) {
    if key.signal() == Signal::INT {
        end_by_interrupt();
    }
    let _ = match key {
        Key::ForCommand(signal) => kill_current_process_group(signal),
        Key::ForAll(Signal::INT) => kill_process(getpid(), Signal::INT),
        // It would leave a core file of fencepost.
        Key::ForAll(_) => Ok(()),
    };
}

/// Stops this process alone.
pub(crate) fn stop_self() {
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Returns what to do about a command that was stopped by this signal.
pub(crate) fn after_stop(
    signal: Signal,
    foreground: Option<Foreground>,
    request: StopRequest,
    has_shell: bool,
) -> AfterStop {
    let needs_the_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
    match foreground {
        Some(Foreground::Ours) if needs_the_terminal => AfterStop::GiveTerminal,
        // It asked for the terminal just before it got it.
        Some(Foreground::Commands) if needs_the_terminal => AfterStop::Continue,
        Some(_) if has_shell => AfterStop::StopToo,
        // No shell could continue it. Some programs react to Ctrl-Z by stopping themselves with STOP: a fencepost below
        // this one, too.
        Some(Foreground::Commands) => AfterStop::Continue,
        Some(_) if signal == Signal::TSTP => AfterStop::Continue,
        None if request != StopRequest::None && has_shell => AfterStop::StopToo,
        None if request == StopRequest::Key && signal == Signal::TSTP => AfterStop::Continue,
        _ => AfterStop::Report,
    }
}

/// Returns whether there is a shell that continues stopped jobs: the leader of this session, in another group.
pub(crate) fn has_shell() -> bool {
    let leader = getsid(None).ok().and_then(visible).and_then(|session| getpgid(Some(session)).ok());
    leader.is_some_and(|group| group != getpgrp())
}

/// Returns whether keys typed at the controlling terminal reach the group of fencepost.
pub(crate) fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).ok().is_some_and(|found| Some(found) == own_group()))
}

pub(crate) fn own_group() -> Option<Pid> {
    visible(getpgrp()).and_then(|group| Pid::from_raw(group.as_raw()))
}

/// Returns a group or session unless its leader is outside of this PID namespace, as that of a `docker exec` or `unshare`
/// is: there it has no number, and the kernel returns 0.
fn visible(id: nix::unistd::Pid) -> Option<nix::unistd::Pid> {
    (id.as_raw() != 0).then_some(id)
}

/// Allows this thread to write to the terminal and to set its foreground from the background, too. Returns the signal mask
/// as it was.
pub(crate) fn allow_background_output() -> SigSet {
    let before = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
    let mut blocked = SigSet::empty();
    blocked.add(NixSignal::SIGTTOU);
    // If this fails, output from the background stops this process, as it would any other.
    let _ = blocked.thread_block();
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_needs_the_terminal_gets_it_if_fencepost_has_it() {
        for signal in [Signal::TTIN, Signal::TTOU] {
            let after = |foreground| after_stop(signal, foreground, StopRequest::None, true);
            assert_eq!(after(Some(Foreground::Ours)), AfterStop::GiveTerminal);
            assert_eq!(after(Some(Foreground::Commands)), AfterStop::Continue);
            assert_eq!(after(Some(Foreground::Other)), AfterStop::StopToo);
            assert_eq!(after(None), AfterStop::Report);
        }
    }

    #[test]
    fn fencepost_stops_with_a_command_that_is_stopped_at_a_terminal() {
        for signal in [Signal::TSTP, Signal::STOP] {
            for foreground in [Foreground::Ours, Foreground::Commands, Foreground::Other] {
                assert_eq!(after_stop(signal, Some(foreground), StopRequest::None, true), AfterStop::StopToo);
            }
        }
    }

    #[test]
    fn without_a_shell_no_process_stops_for_ever() {
        let after = |signal, foreground, request| after_stop(signal, foreground, request, false);
        let (ours, commands) = (Some(Foreground::Ours), Some(Foreground::Commands));
        assert_eq!(after(Signal::TSTP, commands, StopRequest::None), AfterStop::Continue);
        assert_eq!(after(Signal::STOP, commands, StopRequest::None), AfterStop::Continue);
        assert_eq!(after(Signal::TSTP, ours, StopRequest::None), AfterStop::Continue);
        assert_eq!(after(Signal::STOP, ours, StopRequest::None), AfterStop::Report);
        assert_eq!(after(Signal::TSTP, None, StopRequest::Key), AfterStop::Continue);
        assert_eq!(after(Signal::TSTP, None, StopRequest::Signal), AfterStop::Report);
        assert_eq!(
            after(Signal::TTIN, None, StopRequest::Key),
            AfterStop::Report,
            "it would only be stopped again"
        );
    }

    #[test]
    fn in_a_pipeline_fencepost_stops_if_it_was_asked_to() {
        for request in [StopRequest::Signal, StopRequest::Key] {
            assert_eq!(after_stop(Signal::TSTP, None, request, true), AfterStop::StopToo);
            assert_eq!(after_stop(Signal::TTIN, None, request, true), AfterStop::StopToo);
        }
        assert_eq!(after_stop(Signal::TSTP, None, StopRequest::None, true), AfterStop::Report);
    }
}
