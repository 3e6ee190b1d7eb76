//! The command under the lock: signals are passed on, the lease is watched, the warden is kept informed, and it is over
//! only when the whole process group is gone.

mod stops;

use std::io;
use std::time::Duration;

use fencepost::clock::{Clock, Moment, Timer};
use fencepost::{Guard, LostReason};
use rustix::process::Signal;

use crate::child::{Group, Seen};
use crate::durations::show;
use crate::exit::Ended;
use crate::output::{self, Output};
use crate::signals::{Signals, asks_to_end, comes_from_the_terminal};
use crate::status::{Event, Status};
use crate::stopping::{Lease, Rules, Step, Stopping, Why};
use crate::terminal::{self, Key, Terminal};
use crate::warden::{Fate, Order, Warden};

/// How often it is looked for stragglers whose end is not told to us.
const LOOK: Duration = Duration::from_millis(20);

/// How a command under the lock has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    /// The lock was lost before the command had ended.
    pub(crate) lost: bool,
    /// It was stopped because it ran for too long.
    pub(crate) ran_too_long: bool,
    /// The key that has ended it.
    pub(crate) typed: Option<Key>,
    /// The user has asked it to end.
    pub(crate) asked_to_end: bool,
}

/// Watches over one command.
pub(crate) struct Supervisor<'a> {
    pub(crate) guard: &'a Guard,
    pub(crate) rules: Rules,
    pub(crate) signals: &'a mut Signals,
    pub(crate) output: Output,
    pub(crate) status: &'a Status,
    pub(crate) warden: Warden,
    /// The terminal, if it may be handed over.
    pub(crate) terminal: Option<Terminal>,
}

impl Supervisor<'_> {
    /// Waits until nobody of the command's group is left.
    ///
    /// # Errors
    /// If the command cannot be waited for. It is killed then.
    pub(crate) async fn watch(self, mut group: Group) -> io::Result<Outcome> {
        let killed = |error| {
            // There is nothing more that could be done about it.
            let _ = group.signal(Signal::KILL);
            error
        };
        let mut watch = Watch::begin(self, &group).map_err(killed)?;
        let outcome = watch.until_gone(&mut group).await;
        if outcome.is_err() {
            let _ = group.signal(Signal::KILL);
        }
        outcome
    }
}

/// A supervisor at work.
struct Watch<'a> {
    post: Supervisor<'a>,
    clock: Clock,
    timer: Timer,
    stopping: Stopping,
    /// The end of the lease that the warden knows of.
    told: Moment,
    /// The user has asked the command to end.
    asked_to_end: bool,
    /// We were told to stop, and the command with us.
    asked_to_stop: bool,
    /// The command was stopped, and that has been dealt with.
    stands_still: bool,
}

impl<'a> Watch<'a> {
    fn begin(post: Supervisor<'a>, group: &Group) -> io::Result<Self> {
        let clock = Clock::system();
        let timer = clock.timer()?;
        let stopping = Stopping::new(post.rules);
        let mut watch = Self {
            post,
            clock,
            timer,
            stopping,
            told: Moment::NEVER,
            asked_to_end: false,
            asked_to_stop: false,
            stands_still: false,
        };
        watch.mind_the_warden(group);
        watch.hand_over(group);
        Ok(watch)
    }

    async fn until_gone(&mut self, group: &mut Group) -> io::Result<Outcome> {
        loop {
            let seen = self.look(group)?;
            self.mind_the_warden(group);
            self.keep_the_deadline(group);
            if let (Seen::Gone, Some(ended)) = (seen, group.ended()) {
                let had_terminal = self.take_back(group, ended);
                let (lost, ran_too_long) = (self.stopping.lost(), self.stopping.ran_too_long());
                let typed = self.typed(ended, had_terminal);
                return Ok(Outcome { ended, lost, ran_too_long, typed, asked_to_end: self.asked_to_end });
            }
            let mut next = self.stopping.next(self.lease());
            if seen != Seen::Running {
                next = next.min(self.clock.now() + LOOK);
            }
            self.wait(next, group).await;
        }
    }

    fn look(&mut self, group: &mut Group) -> io::Result<Seen> {
        let warden = self.post.warden.id();
        let seen = group.look(warden)?;
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
        if let Some(ended) = group.ended() {
            self.post.status.tell(Event::child_exit(ended));
        }
        group.look(warden)
    }

    async fn wait(&mut self, next: Moment, group: &Group) {
        self.timer.arm(next);
        let known_lost = self.post.guard.lost_reason().is_some();
        let signal = tokio::select! {
            biased;
            signal = self.post.signals.next_or_child() => signal,
            _ = self.post.guard.renewed(self.told), if !known_lost => None,
            () = self.timer.fired() => None,
        };
        if let Some(signal) = signal {
            // If all of us stood still and the lease ran out, the command must not go on before it is killed.
            self.keep_the_deadline(group);
            self.pass_on(signal, group);
        }
    }

    fn lease(&self) -> Lease {
        let guard = self.post.guard;
        if guard.is_valid() {
            return Lease::Until(guard.valid_until().min(self.deadline()));
        }
        match guard.lost_reason() {
            None | Some(LostReason::Expired) => Lease::Over,
            Some(reason) => Lease::Taken(reason),
        }
    }

    /// When the command is killed, should no renewal succeed.
    fn deadline(&self) -> Moment {
        let Supervisor { guard, rules, .. } = &self.post;
        rules.on_lost.deadline(guard.valid_until(), guard.ttl())
    }

    /// Tells the warden about a renewal, and sees that there is one.
    fn mind_the_warden(&mut self, group: &Group) {
        let valid_until = self.post.guard.valid_until();
        let deadline = self.deadline();
        if valid_until != self.told {
            if self.told != Moment::NEVER {
                self.post.status.tell(Event::renewed(self.post.guard));
            }
            self.told = valid_until;
            self.post.warden.tell(Order::Until(deadline));
        }
        match self.post.warden.look() {
            Fate::OnDuty => {}
            Fate::Killed => self.was_killed(),
            Fate::Useless => self.replace_the_warden(group, deadline),
        }
    }

    fn was_killed(&mut self) {
        let told = self.stopping.lost();
        if !self.stopping.was_killed() {
            return;
        }
        let name = self.post.guard.name();
        if told {
            // With the TERM: the event is not to be told twice.
            let reason = LostReason::Expired;
            return output::failure(format_args!(
                "lock {name:?} was lost: {reason}: the warden has killed the command"
            ));
        }
        if self.lease() == Lease::Over {
            return self.announce(Why::LeaseOver, "the warden has killed the command");
        }
        output::failure(format_args!(
            "fencepost stood still for so long that the warden has killed the command under lock {name:?}"
        ));
        self.post.status.tell(Event::STOOD_STILL);
    }

    fn replace_the_warden(&mut self, group: &Group, until: Moment) {
        match self.post.warden.replace(group.target(), until) {
            Ok(()) => self.post.output.warning("the warden was gone, and another one is on duty"),
            // While we live, we keep the deadline ourselves.
            Err(error) => {
                self.post.output.warning(format_args!("the warden is gone, and there is no other: {error}"));
            }
        }
    }

    fn keep_the_deadline(&mut self, group: &Group) {
        let lease = self.lease();
        match self.stopping.step(self.clock.now(), lease) {
            Step::Nothing => {}
            Step::Ignore(why) => self.announce(why, "the command runs on without it"),
            Step::Term(why) => {
                self.warn_if_refused(group.terminate());
                self.announce(why, "stopping the command");
            }
            Step::Kill(why) => {
                self.warn_if_refused(group.signal(Signal::KILL));
                if let Some(why) = why {
                    self.announce(why, "killed the command");
                } else if self.stopping.lost() && !matches!(lease, Lease::Taken(_)) {
                    let name = self.post.guard.name();
                    output::failure(format_args!("lock {name:?} was lost: {}", LostReason::Expired));
                }
                self.post.output.detail("killed what was left of the command");
            }
        }
    }

    fn announce(&self, why: Why, then: &str) {
        let name = self.post.guard.name();
        match why {
            Why::LeaseEnds(end) => output::failure(format_args!(
                "lock {name:?} could not be renewed and its lease ends in {}: {then}",
                show(end.since(self.clock.now()))
            )),
            Why::LeaseOver => {
                output::failure(format_args!("lock {name:?} was lost: {}: {then}", LostReason::Expired));
            }
            Why::Taken(reason) => output::failure(format_args!("lock {name:?} was lost: {reason}: {then}")),
            Why::MaxRun => output::failure(format_args!(
                "the command under lock {name:?} has run for as long as --max-run allows: {then}"
            )),
        }
        match why {
            Why::LeaseEnds(_) | Why::LeaseOver => self.post.status.tell(Event::lost(LostReason::Expired)),
            Why::Taken(reason) => self.post.status.tell(Event::lost(reason)),
            Why::MaxRun => {}
        }
    }

    fn pass_on(&mut self, signal: Signal, group: &Group) {
        if signal == Signal::TSTP {
            self.asked_to_stop = true;
            // If the command stands still already, that is to be dealt with again: now we are to stop, too.
            self.stands_still = false;
        }
        if group.is_one_process() && comes_from_the_terminal(signal) && terminal::is_in_foreground() {
            // The command is in our group, and has got it as well.
            return;
        }
        if signal == Signal::CONT {
            self.asked_to_stop = false;
            self.stands_still = false;
            if group.is_one_process() && terminal::is_in_foreground() {
                // The shell has continued our whole group; another CONT could undo the next Ctrl-Z.
                return;
            }
            // We have stopped since it came: that was obeyed.
            self.post.signals.forget(Signal::TSTP);
            self.hand_over(group);
        }
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
            self.post.output.warning(format_args!("could not signal the command: {error}"));
        }
    }
}
