//! Supervises the command under the lock: forwards signals, watches the lease, informs the warden, and returns only when
//! the whole process group is gone.

mod stops;

use std::io;
use std::time::Duration;

use fencepost::clock::{Clock, Moment, Timer};
use fencepost::{Guard, LostReason};
use rustix::process::Signal;

use crate::child::{Group, GroupState};
use crate::durations::show;
use crate::exit::Ended;
use crate::output::{self, Output};
use crate::signals::{Signals, is_request_to_end, is_sent_by_terminal};
use crate::status::{Event, Status};
use crate::stopping::{Lease, Rules, Step, Stopping, Why};
use crate::terminal::{self, Key, Terminal};
use crate::warden::{Order, Warden, WardenState};

/// How often a group is checked for stragglers whose end sends no signal.
const STRAGGLER_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// How a command under the lock has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    /// The lock was lost before the command had ended.
    pub(crate) lost: bool,
    /// It was stopped because it ran longer than `--max-run`.
    pub(crate) ran_too_long: bool,
    /// The key that has terminated it.
    pub(crate) typed: Option<Key>,
    /// The user has asked it to end.
    pub(crate) asked_to_end: bool,
}

/// What a supervisor of one command needs.
pub(crate) struct Supervisor<'a> {
    pub(crate) guard: &'a Guard,
    pub(crate) rules: Rules,
    pub(crate) signals: &'a mut Signals,
    pub(crate) output: Output,
    pub(crate) status: &'a Status,
    pub(crate) warden: Warden,
    /// The terminal, if it may be given to the command.
    pub(crate) terminal: Option<Terminal>,
}

impl Supervisor<'_> {
    /// Waits until no process of the command's group is left.
    ///
    /// # Errors
    /// If the command cannot be waited for. It is killed then.
    pub(crate) async fn watch(self, mut group: Group) -> io::Result<Outcome> {
        let killed = |error| {
            // Nothing more can be done.
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

/// The state of a supervisor.
struct Watch<'a> {
    setup: Supervisor<'a>,
    clock: Clock,
    timer: Timer,
    stopping: Stopping,
    /// The end of the lease that was sent to the warden.
    sent_end: Moment,
    /// The user has asked the command to end.
    asked_to_end: bool,
    /// The user has asked fencepost to stop, and the command with it.
    asked_to_stop: bool,
    /// The command is stopped, and that has been handled.
    is_stopped: bool,
}

impl<'a> Watch<'a> {
    fn begin(setup: Supervisor<'a>, group: &Group) -> io::Result<Self> {
        let clock = Clock::system();
        let timer = clock.timer()?;
        let stopping = Stopping::new(setup.rules);
        let mut watch = Self {
            setup,
            clock,
            timer,
            stopping,
            sent_end: Moment::NEVER,
            asked_to_end: false,
            asked_to_stop: false,
            is_stopped: false,
        };
        watch.update_warden(group);
        watch.give_terminal(group);
        Ok(watch)
    }

    async fn until_gone(&mut self, group: &mut Group) -> io::Result<Outcome> {
        loop {
            let state = self.observe(group)?;
            self.update_warden(group);
            self.enforce_deadline(group);
            if let (GroupState::Gone, Some(ended)) = (state, group.ended()) {
                let had_terminal = self.take_back(group, ended);
                let (lost, ran_too_long) = (self.stopping.lost(), self.stopping.ran_too_long());
                let typed = self.typed(ended, had_terminal);
                return Ok(Outcome { ended, lost, ran_too_long, typed, asked_to_end: self.asked_to_end });
            }
            let mut next = self.stopping.next(self.lease());
            if state != GroupState::Running {
                next = next.min(self.clock.now() + STRAGGLER_CHECK_INTERVAL);
            }
            self.wait(next, group).await;
        }
    }

    fn observe(&mut self, group: &mut Group) -> io::Result<GroupState> {
        let warden = self.setup.warden.id();
        let state = group.state(warden)?;
        if state == GroupState::Running {
            self.handle_stop(group);
        }
        if state != GroupState::LeaderExited {
            return Ok(state);
        }
        // The rest of the group gets TERM while the zombie of the leader still keeps the group's id in use.
        self.warn_if_failed(group.terminate());
        self.stopping.leader_exited(self.clock.now());
        group.reap_leader()?;
        if let Some(ended) = group.ended() {
            self.setup.status.tell(Event::child_exit(ended));
        }
        group.state(warden)
    }

    async fn wait(&mut self, next: Moment, group: &Group) {
        self.timer.arm(next);
        let known_lost = self.setup.guard.lost_reason().is_some();
        let signal = tokio::select! {
            biased;
            signal = self.setup.signals.next_or_child() => signal,
            _ = self.setup.guard.renewed(self.sent_end), if !known_lost => None,
            () = self.timer.fired() => None,
        };
        if let Some(signal) = signal {
            // If all processes were stopped until the lease was over, the command must not continue before it is killed.
            self.enforce_deadline(group);
            self.forward(signal, group);
        }
    }

    fn lease(&self) -> Lease {
        let guard = self.setup.guard;
        if guard.is_valid() {
            return Lease::Until(guard.valid_until().min(self.deadline()));
        }
        match guard.lost_reason() {
            None | Some(LostReason::Expired) => Lease::Over,
            Some(reason) => Lease::Revoked(reason),
        }
    }

    /// Returns when the command is killed if no renewal succeeds.
    fn deadline(&self) -> Moment {
        let Supervisor { guard, rules, .. } = &self.setup;
        rules.on_lost.deadline(guard.valid_until(), guard.ttl())
    }

    /// Sends the end of a renewed lease to the warden, and replaces a warden that has failed.
    fn update_warden(&mut self, group: &Group) {
        let valid_until = self.setup.guard.valid_until();
        let deadline = self.deadline();
        if valid_until != self.sent_end {
            if self.sent_end != Moment::NEVER {
                self.setup.status.tell(Event::renewed(self.setup.guard));
            }
            self.sent_end = valid_until;
            self.setup.warden.tell(Order::Until(deadline));
        }
        match self.setup.warden.state() {
            WardenState::Ready => {}
            WardenState::Killed => self.on_killed_by_warden(),
            WardenState::Failed => self.replace_warden(group, deadline),
        }
    }

    fn on_killed_by_warden(&mut self) {
        let was_announced = self.stopping.lost();
        if !self.stopping.killed_by_warden() {
            return;
        }
        let name = self.setup.guard.name();
        if was_announced {
            // With the TERM: the event is not written twice.
            let reason = LostReason::Expired;
            return output::failure(format_args!(
                "lock {name:?} was lost: {reason}: the warden has killed the command"
            ));
        }
        if self.lease() == Lease::Over {
            return self.announce(Why::LeaseOver, "the warden has killed the command");
        }
        output::failure(format_args!(
            "fencepost was stopped for so long that the warden has killed the command under lock {name:?}"
        ));
        self.setup.status.tell(Event::STOPPED_TOO_LONG);
    }

    fn replace_warden(&mut self, group: &Group, until: Moment) {
        match self.setup.warden.replace(group.target(), until) {
            Ok(()) => self.setup.output.warning("the warden was gone and has been replaced"),
            // As long as this process lives, it enforces the deadline itself.
            Err(error) => {
                self.setup
                    .output
                    .warning(format_args!("the warden is gone and could not be replaced: {error}"));
            }
        }
    }

    fn enforce_deadline(&mut self, group: &Group) {
        let lease = self.lease();
        match self.stopping.step(self.clock.now(), lease) {
            Step::Nothing => {}
            Step::Ignore(why) => self.announce(why, "the command continues without it"),
            Step::Term(why) => {
                self.warn_if_failed(group.terminate());
                self.announce(why, "stopping the command");
            }
            Step::Kill(why) => {
                self.warn_if_failed(group.signal(Signal::KILL));
                if let Some(why) = why {
                    self.announce(why, "killed the command");
                } else if self.stopping.lost() && !matches!(lease, Lease::Revoked(_)) {
                    let name = self.setup.guard.name();
                    output::failure(format_args!("lock {name:?} was lost: {}", LostReason::Expired));
                }
                self.setup.output.detail("killed the rest of the command");
            }
        }
    }

    fn announce(&self, why: Why, then: &str) {
        let name = self.setup.guard.name();
        match why {
            Why::LeaseEnds(end) => output::failure(format_args!(
                "lock {name:?} could not be renewed and its lease ends in {}: {then}",
                show(end.since(self.clock.now()))
            )),
            Why::LeaseOver => {
                output::failure(format_args!("lock {name:?} was lost: {}: {then}", LostReason::Expired));
            }
            Why::Revoked(reason) => output::failure(format_args!("lock {name:?} was lost: {reason}: {then}")),
            Why::MaxRun => {
                output::failure(format_args!(
                    "the command under lock {name:?} has reached --max-run: {then}"
                ));
            }
        }
        match why {
            Why::LeaseEnds(_) | Why::LeaseOver => self.setup.status.tell(Event::lost(LostReason::Expired)),
            Why::Revoked(reason) => self.setup.status.tell(Event::lost(reason)),
            Why::MaxRun => {}
        }
    }

    fn forward(&mut self, signal: Signal, group: &Group) {
        if signal == Signal::TSTP {
            self.asked_to_stop = true;
            // If the command is stopped already, that is handled again: now fencepost has to stop, too.
            self.is_stopped = false;
        }
        if group.is_one_process() && is_sent_by_terminal(signal) && terminal::is_in_foreground() {
            // The command is in the same group, and has received it as well.
            return;
        }
        if signal == Signal::CONT {
            self.asked_to_stop = false;
            self.is_stopped = false;
            if group.is_one_process() && terminal::is_in_foreground() {
                // The shell has continued the whole group; another CONT could undo the next Ctrl-Z.
                return;
            }
            // This process has been stopped since TSTP was received: it is obeyed.
            self.setup.signals.discard(Signal::TSTP);
            self.give_terminal(group);
        }
        let ends = is_request_to_end(signal);
        if ends && self.asked_to_end {
            self.stopping.kill_now(self.clock.now());
            return self.enforce_deadline(group);
        }
        self.asked_to_end |= ends;
        self.warn_if_failed(group.signal(signal));
        // A stopped command, for example one that tried to read from the terminal, would never receive it.
        if matches!(signal, Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM) {
            self.warn_if_failed(group.signal(Signal::CONT));
        }
    }

    fn warn_if_failed(&self, sent: io::Result<()>) {
        if let Err(error) = sent {
            self.setup.output.warning(format_args!("could not signal the command: {error}"));
        }
    }
}
