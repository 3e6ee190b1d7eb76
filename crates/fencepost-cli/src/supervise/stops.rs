//! A command that is stopped, and the foreground of the terminal meanwhile.

use rustix::process::Signal;

use super::Watch;
use crate::child::Group;
use crate::exit::Ended;
use crate::terminal::{self, AfterStop, Key, StopRequest};

impl Watch<'_> {
    pub(super) fn handle_stop(&mut self, group: &Group) {
        let Some(signal) = group.stopped_by() else {
            self.is_stopped = false;
            return;
        };
        if self.is_stopped {
            return;
        }
        self.is_stopped = true;
        let foreground = self.setup.terminal.as_ref().map(|terminal| terminal.foreground(group.id()));
        match terminal::after_stop(
            signal,
            foreground,
            self.stop_request(signal, group),
            terminal::has_shell(),
        ) {
            AfterStop::Continue => self.resume(group),
            AfterStop::GiveTerminal => {
                self.give_terminal(group);
                self.resume(group);
            }
            AfterStop::StopToo => self.stop_too(group),
            AfterStop::Report => self.report_stop(signal),
        }
    }

    /// Returns whether fencepost was asked to stop when the command was stopped by this signal.
    fn stop_request(&self, signal: Signal, group: &Group) -> StopRequest {
        let in_foreground = terminal::is_in_foreground();
        // A key signals the whole group: if the command has received it, this process receives it too.
        let shared = group.is_one_process() && signal == Signal::TSTP && in_foreground;
        match self.asked_to_stop || shared {
            true if in_foreground => StopRequest::Key,
            true => StopRequest::Signal,
            false => StopRequest::None,
        }
    }

    fn resume(&mut self, group: &Group) {
        self.is_stopped = false;
        self.asked_to_stop = false;
        self.warn_if_failed(group.signal(Signal::CONT));
    }

    /// Stops fencepost as well. If it is not continued before the lease is over, the warden kills the command.
    fn stop_too(&mut self, group: &Group) {
        match &self.setup.terminal {
            Some(terminal) => {
                terminal.take_back(group.id());
                terminal::stop_group();
            }
            None => terminal::stop_self(),
        }
    }

    /// Reports that the command is stopped: it holds the lock for as long as it is.
    fn report_stop(&self, signal: Signal) {
        let name = self.setup.guard.name();
        if matches!(signal, Signal::TTIN | Signal::TTOU) {
            self.setup
                .output
                .note(format_args!("the command needs the terminal and is stopped; it keeps lock {name:?}"));
            self.setup
                .output
                .note("hint: with --foreground it shares the terminal with the rest of a pipeline");
        } else {
            self.setup
                .output
                .note(format_args!("the command was stopped by a signal and keeps lock {name:?}"));
        }
    }

    pub(super) fn give_terminal(&self, group: &Group) {
        // A command that used the terminal before it had it is stopped, which is handled like every stop.
        if let Some(terminal) = &self.setup.terminal {
            terminal.give_to(group.id());
        }
    }

    /// Returns whether the command had the terminal.
    pub(super) fn take_back(&self, group: &Group, ended: Ended) -> bool {
        self.setup.terminal.as_ref().is_some_and(|terminal| match ended {
            Ended::Exited(_) => terminal.take_back(group.id()),
            Ended::Killed(_) => terminal.take_back_and_reset(group.id()),
        })
    }

    /// Returns the key that has terminated the command.
    pub(super) fn typed(&self, ended: Ended, had_terminal: bool) -> Option<Key> {
        let Ended::Killed(signal) = ended else { return None };
        let signal = Signal::from_named_raw(signal)?;
        if !matches!(signal, Signal::INT | Signal::QUIT) || !terminal::is_in_foreground() {
            return None;
        }
        let is_shared = self.asked_to_end || !had_terminal;
        Some(if is_shared { Key::ForAll(signal) } else { Key::ForCommand(signal) })
    }
}
