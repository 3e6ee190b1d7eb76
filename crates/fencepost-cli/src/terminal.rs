//! The terminal, and whose turn it is there: handing it to the command, taking it back, and stopping together.
//!
//! It is handed over only if stdin, stdout and stderr are all the terminal and our group is its foreground. In a
//! pipeline the foreground belongs to all of its programs, a pager among them, and stays with them.

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
    /// Let it go on.
    Continue,
    /// Give it the terminal, and let it go on.
    HandOver,
    /// Stop as well, and let the shell have the terminal.
    StopToo,
    /// Say that it stands still.
    Tell,
}

/// Whether we were told to stop, as the command was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    No,
    /// By a signal that somebody has sent.
    BySignal,
    /// By a key that was typed at the terminal, whose foreground is our group.
    ByKey,
}

/// A key that ends programs, and has ended the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// The command had the terminal: the rest of our group has not heard of it.
    ForCommand(Signal),
    /// Our whole group has heard of it.
    ForAll(Signal),
}

impl Key {
    pub(crate) fn signal(self) -> Signal {
        let (Self::ForCommand(signal) | Self::ForAll(signal)) = self;
        signal
    }
}

/// Who has the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreground {
    /// Our group.
    Ours,
    /// The command's.
    Theirs,
    /// Somebody else's: we run in the background.
    Others,
}

/// The terminal that we were started at.
pub(crate) struct Terminal {
    own: Pid,
    /// How it was before the command had it.
    modes: OnceCell<Termios>,
}

impl Terminal {
    /// The terminal, if stdin, stdout and stderr are all it.
    pub(crate) fn at_hand() -> Option<Self> {
        let all = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
        // One that is not this session's has no foreground that we could ask for.
        let controls = all && tcgetpgrp(stdin()).is_ok();
        // A group that we cannot name is one that we could not give it back to.
        own_group().filter(|_| controls).map(|own| Self { own, modes: OnceCell::new() })
    }

    pub(crate) fn foreground(&self, group: Pid) -> Foreground {
        match tcgetpgrp(stdin()) {
            Ok(found) if found == self.own => Foreground::Ours,
            Ok(found) if found == group => Foreground::Theirs,
            _ => Foreground::Others,
        }
    }

    /// Gives the terminal to a group, if it is ours to give.
    pub(crate) fn hand_over(&self, group: Pid) {
        if self.foreground(group) == Foreground::Ours {
            if let (None, Ok(modes)) = (self.modes.get(), tcgetattr(stdin())) {
                // A shell that edits its lines has other modes while we run in the background.
                let _ = self.modes.set(modes);
            }
            let _ = tcsetpgrp(stdin(), group);
        }
    }

    /// Takes the terminal back from a group. Returns whether that had it.
    pub(crate) fn take_back(&self, group: Pid) -> bool {
        let had_it = self.foreground(group) == Foreground::Theirs;
        if had_it {
            let _ = tcsetpgrp(stdin(), self.own);
        }
        had_it
    }

    /// Takes the terminal back from a group that was killed and could not tidy up.
    pub(crate) fn take_back_and_tidy(&self, group: Pid) -> bool {
        let had_it = self.take_back(group);
        if let (true, Some(modes)) = (had_it, self.modes.get()) {
            let _ = tcsetattr(stdin(), OptionalActions::Drain, modes);
        }
        had_it
    }
}

/// Stops our whole group: a script that we are part of stops with us, as it would with the command.
pub(crate) fn stop_together() {
    let _ = kill_current_process_group(Signal::STOP);
}

/// Ends as the command did. A script that we are part of ends with it, as it would without us: some shells do when they
/// get the signal, others look whether we were ended by it. Returns if that is not how this process can end.
pub(crate) fn end_by(key: Key) {
    if key.signal() == Signal::INT {
        end_by_interrupt();
    }
    let _ = match key {
        Key::ForCommand(signal) => kill_current_process_group(signal),
        Key::ForAll(Signal::INT) => kill_process(getpid(), Signal::INT),
        // It would leave a core of fencepost behind.
        Key::ForAll(_) => Ok(()),
    };
}

/// Stops this process alone, until somebody continues it.
pub(crate) fn stop_ourselves() {
    let _ = kill_process(getpid(), Signal::STOP);
}

/// What to do when the command was stopped by this signal.
pub(crate) fn after_stop(
    signal: Signal,
    foreground: Option<Foreground>,
    told: Told,
    shell: bool,
) -> AfterStop {
    let wants_the_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
    match foreground {
        Some(Foreground::Ours) if wants_the_terminal => AfterStop::HandOver,
        // It asked for the terminal just before it got it.
        Some(Foreground::Theirs) if wants_the_terminal => AfterStop::Continue,
        Some(_) if shell => AfterStop::StopToo,
        // There is nobody who could continue it. Some programs answer Ctrl-Z by stopping themselves for good: a
        // fencepost under this one, too.
        Some(Foreground::Theirs) => AfterStop::Continue,
        Some(_) if signal == Signal::TSTP => AfterStop::Continue,
        None if told != Told::No && shell => AfterStop::StopToo,
        None if told == Told::ByKey && signal == Signal::TSTP => AfterStop::Continue,
        _ => AfterStop::Tell,
    }
}

/// Whether there is a shell above us that continues what it sees stopped: the leader of our session, in another group.
pub(crate) fn has_shell() -> bool {
    let leader = getsid(None).ok().and_then(seen).and_then(|session| getpgid(Some(session)).ok());
    leader.is_some_and(|group| group != getpgrp())
}

/// Whether what is typed at our terminal reaches our group.
pub(crate) fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).ok().is_some_and(|found| Some(found) == own_group()))
}

fn own_group() -> Option<Pid> {
    seen(getpgrp()).and_then(|group| Pid::from_raw(group.as_raw()))
}

/// A group or session, unless its leader is outside of our PID namespace, as that of a `docker exec` or `unshare` is:
/// there it has no number, and the kernel says 0.
fn seen(id: nix::unistd::Pid) -> Option<nix::unistd::Pid> {
    (id.as_raw() != 0).then_some(id)
}

/// From now on this thread may write to the terminal, and set its foreground, also from the background. Returns the
/// signal mask as it was.
pub(crate) fn may_speak_from_the_background() -> SigSet {
    let before = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
    let mut quiet = SigSet::empty();
    quiet.add(NixSignal::SIGTTOU);
    // If this fails, we are stopped when we speak, as every other program would be.
    let _ = quiet.thread_block();
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_the_terminal_gets_it_when_it_is_ours_to_give() {
        for signal in [Signal::TTIN, Signal::TTOU] {
            let after = |foreground| after_stop(signal, foreground, Told::No, true);
            assert_eq!(after(Some(Foreground::Ours)), AfterStop::HandOver);
            assert_eq!(after(Some(Foreground::Theirs)), AfterStop::Continue);
            assert_eq!(after(Some(Foreground::Others)), AfterStop::StopToo);
            assert_eq!(after(None), AfterStop::Tell);
        }
    }

    #[test]
    fn who_is_stopped_at_a_terminal_is_not_alone() {
        for signal in [Signal::TSTP, Signal::STOP] {
            for foreground in [Foreground::Ours, Foreground::Theirs, Foreground::Others] {
                assert_eq!(after_stop(signal, Some(foreground), Told::No, true), AfterStop::StopToo);
            }
        }
    }

    #[test]
    fn without_a_shell_nobody_stops_for_ever() {
        let after = |signal, foreground, told| after_stop(signal, foreground, told, false);
        let (ours, theirs) = (Some(Foreground::Ours), Some(Foreground::Theirs));
        assert_eq!(after(Signal::TSTP, theirs, Told::No), AfterStop::Continue);
        assert_eq!(after(Signal::STOP, theirs, Told::No), AfterStop::Continue);
        assert_eq!(after(Signal::TSTP, ours, Told::No), AfterStop::Continue);
        assert_eq!(after(Signal::STOP, ours, Told::No), AfterStop::Tell);
        assert_eq!(after(Signal::TSTP, None, Told::ByKey), AfterStop::Continue);
        assert_eq!(after(Signal::TSTP, None, Told::BySignal), AfterStop::Tell);
        assert_eq!(after(Signal::TTIN, None, Told::ByKey), AfterStop::Tell, "it would only ask again");
    }

    #[test]
    fn in_a_pipeline_we_stop_if_we_were_told_to() {
        for told in [Told::BySignal, Told::ByKey] {
            assert_eq!(after_stop(Signal::TSTP, None, told, true), AfterStop::StopToo);
            assert_eq!(after_stop(Signal::TTIN, None, told, true), AfterStop::StopToo);
        }
        assert_eq!(after_stop(Signal::TSTP, None, Told::No, true), AfterStop::Tell);
    }
}
