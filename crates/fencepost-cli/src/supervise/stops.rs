//! A command that is stopped, and whose the terminal is meanwhile.

use rustix::process::Signal;

use super::Watch;
use crate::child::Group;
use crate::exit::Ended;
use crate::terminal::{self, AfterStop, Key, Told};

impl Watch<'_> {
    pub(super) fn notice_a_stop(&mut self, group: &Group) {
        let Some(signal) = group.stopped_by() else {
            self.stands_still = false;
            return;
        };
        if self.stands_still {
            return;
        }
        self.stands_still = true;
        let foreground = self.post.terminal.as_ref().map(|terminal| terminal.foreground(group.id()));
        match terminal::after_stop(
            signal,
            foreground,
            self.told_to_stop(signal, group),
            terminal::has_shell(),
        ) {
            AfterStop::Continue => self.go_on(group),
            AfterStop::HandOver => {
                self.hand_over(group);
                self.go_on(group);
            }
            AfterStop::StopToo => self.stop_too(group),
            AfterStop::Tell => self.tell_of_a_stop(signal),
        }
    }

    /// Whether we were told to stop, when the command was stopped by this signal.
    fn told_to_stop(&self, signal: Signal, group: &Group) -> Told {
        let in_foreground = terminal::is_in_foreground();
        // A key reaches everybody in our group: if it has reached the command, it is on its way to us.
        let shared = group.is_one_process() && signal == Signal::TSTP && in_foreground;
        match self.asked_to_stop || shared {
            true if in_foreground => Told::ByKey,
            true => Told::BySignal,
            false => Told::No,
        }
    }

    fn go_on(&mut self, group: &Group) {
        self.stands_still = false;
        self.asked_to_stop = false;
        self.warn_if_refused(group.signal(Signal::CONT));
    }

    /// Stops as well. The lease runs out if this takes too long; the warden sees to that.
    fn stop_too(&mut self, group: &Group) {
        match &self.post.terminal {
            Some(terminal) => {
                terminal.take_back(group.id());
                terminal::stop_together();
            }
            None => terminal::stop_ourselves(),
        }
    }

    /// A command that stands still holds the lock for as long as it does: somebody should know.
    fn tell_of_a_stop(&self, signal: Signal) {
        let name = self.post.guard.name();
        if matches!(signal, Signal::TTIN | Signal::TTOU) {
            self.post.output.note(format_args!(
                "the command wants the terminal and stands still; it keeps lock {name:?}"
            ));
            self.post
                .output
                .note("hint: --foreground lets it share the terminal with the rest of a pipeline");
        } else {
            self.post
                .output
                .note(format_args!("the command was stopped by a signal, and keeps lock {name:?}"));
        }
    }

    pub(super) fn hand_over(&self, group: &Group) {
        // If it has asked for the terminal before it had it, it stands still, and that is noticed like every stop.
        if let Some(terminal) = &self.post.terminal {
            terminal.hand_over(group.id());
        }
    }

    /// Returns whether the command had the terminal.
    pub(super) fn take_back(&self, group: &Group, ended: Ended) -> bool {
        self.post.terminal.as_ref().is_some_and(|terminal| match ended {
            Ended::Exited(_) => terminal.take_back(group.id()),
            Ended::Killed(_) => terminal.take_back_and_tidy(group.id()),
        })
    }

    /// The key that has ended the command.
    pub(super) fn typed(&self, ended: Ended, had_terminal: bool) -> Option<Key> {
        let Ended::Killed(signal) = ended else { return None };
        let signal = Signal::from_named_raw(signal)?;
        if !matches!(signal, Signal::INT | Signal::QUIT) || !terminal::is_in_foreground() {
            return None;
        }
        let heard_by_us = self.asked_to_end || !had_terminal;
        Some(if heard_by_us { Key::ForAll(signal) } else { Key::ForCommand(signal) })
    }
}
