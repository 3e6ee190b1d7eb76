//! The command under the lock: signals are passed on, the lease is watched, and it is over only when the whole process
//! group is gone.

use std::io;
use std::time::Duration;

use fencepost::clock::{Clock, Moment, Timer};
use fencepost::{Guard, LostReason};
use rustix::process::Signal;

use crate::child::{Group, Seen};
use crate::durations::show;
use crate::exit::Ended;
use crate::output::{self, Output};
use crate::signals::{Signals, asks_to_end};
use crate::stopping::{Lease, Step, Stopping, Why};

/// How often it is looked for stragglers whose end is not told to us.
const LOOK: Duration = Duration::from_millis(20);

/// How a command under the lock has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    /// It was stopped for the sake of the lock, or outlived it.
    pub(crate) lost: bool,
}

/// Watches over one command.
pub(crate) struct Supervisor<'a> {
    guard: &'a Guard,
    signals: &'a mut Signals,
    output: Output,
    clock: Clock,
    timer: Timer,
    stopping: Stopping,
    /// The user has asked the command to end.
    asked_to_end: bool,
    /// The command was stopped, and the user knows.
    stands_still: bool,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        guard: &'a Guard,
        kill_after: Duration,
        signals: &'a mut Signals,
        output: Output,
    ) -> io::Result<Self> {
        let clock = Clock::system();
        let timer = clock.timer()?;
        let stopping = Stopping::new(kill_after);
        Ok(Self { guard, signals, output, clock, timer, stopping, asked_to_end: false, stands_still: false })
    }

    /// Waits until nobody of the command's group is left.
    ///
    /// # Errors
    /// If the command cannot be waited for. It is killed then.
    pub(crate) async fn watch(mut self, mut group: Group) -> io::Result<Outcome> {
        let outcome = self.watch_until_gone(&mut group).await;
        if outcome.is_err() {
            self.warn_if_refused(group.signal(Signal::KILL));
        }
        outcome
    }

    async fn watch_until_gone(&mut self, group: &mut Group) -> io::Result<Outcome> {
        loop {
            let seen = self.look(group)?;
            self.keep_the_deadline(group);
            if let (Seen::Gone, Some(ended)) = (seen, group.ended()) {
                return Ok(Outcome { ended, lost: self.stopping.lost() });
            }
            let mut next = self.stopping.next(self.lease());
            if seen != Seen::Running {
                next = next.min(self.clock.now() + LOOK);
            }
            self.wait(next, group).await;
        }
    }

    fn look(&mut self, group: &mut Group) -> io::Result<Seen> {
        let seen = group.look()?;
        if seen == Seen::Running {
            self.notice_a_stop(group);
        }
        if seen != Seen::LeaderExited {
            return Ok(seen);
        }
        // Whoever is left is told to stop while the zombie of the leader still keeps the group's id.
        self.warn_if_refused(group.terminate());
        self.stopping.leader_exited(self.clock.now());
        group.reap_leader()?;
        group.look()
    }

    /// A command that stands still holds the lock for as long as it does: somebody should know.
    fn notice_a_stop(&mut self, group: &Group) {
        let stands_still = group.stands_still();
        if stands_still && !self.stands_still {
            let name = self.guard.name();
            self.output.note(format_args!(
                "the command was stopped, by a signal or because it reads from the terminal, and keeps lock {name:?}"
            ));
        }
        self.stands_still = stands_still;
    }

    async fn wait(&mut self, next: Moment, group: &Group) {
        self.timer.arm(next);
        let known_lost = self.guard.lost_reason().is_some();
        let signal = tokio::select! {
            biased;
            signal = self.signals.next_or_child() => signal,
            _ = self.guard.lost(), if !known_lost => None,
            () = self.timer.fired() => None,
        };
        if let Some(signal) = signal {
            // If all of us stood still and the lease ran out, the command must not go on before it is killed.
            self.keep_the_deadline(group);
            self.pass_on(signal, group);
        }
    }

    fn lease(&self) -> Lease {
        if self.guard.is_valid() {
            return Lease::Until(self.clock.now() + self.guard.remaining());
        }
        match self.guard.lost_reason() {
            None | Some(LostReason::Expired) => Lease::Over,
            Some(reason) => Lease::Taken(reason),
        }
    }

    fn keep_the_deadline(&mut self, group: &Group) {
        let lease = self.lease();
        match self.stopping.step(self.clock.now(), lease) {
            Step::Nothing => {}
            Step::Term(why) => {
                self.warn_if_refused(group.terminate());
                self.announce(why);
            }
            Step::Kill => self.kill(lease, group),
        }
    }

    fn kill(&self, lease: Lease, group: &Group) {
        self.warn_if_refused(group.signal(Signal::KILL));
        if lease == Lease::Over {
            output::failure(format_args!("lock {:?} was lost: {}", self.guard.name(), LostReason::Expired));
        }
        self.output.detail("killed what was left of the command");
    }

    fn announce(&self, why: Why) {
        let name = self.guard.name();
        match why {
            Why::LeaseEnds(end) => output::failure(format_args!(
                "lock {name:?} could not be renewed and its lease ends in {}: stopping the command",
                show(end.since(self.clock.now()))
            )),
            Why::Taken(reason) => {
                output::failure(format_args!("lock {name:?} was lost: {reason}: stopping the command"));
            }
        }
    }

    fn pass_on(&mut self, signal: Signal, group: &Group) {
        let ends = asks_to_end(signal);
        if ends && self.asked_to_end {
            self.stopping.hurry(self.clock.now());
            return self.keep_the_deadline(group);
        }
        self.asked_to_end |= ends;
        self.warn_if_refused(group.signal(signal));
        // A command that stands still, for instance because it wanted to read from the terminal, would never see it.
        if matches!(signal, Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM) {
            self.warn_if_refused(group.signal(Signal::CONT));
        }
    }

    fn warn_if_refused(&self, sent: io::Result<()>) {
        if let Err(error) = sent {
            self.output.warning(format_args!("could not signal the command: {error}"));
        }
    }
}
