//! When the command is told to stop, and when it is killed: decisions without I/O.
//!
//! TERM goes out a kill-after before the deadline, KILL at the deadline: that is shortly before the lease can end. What was begun is not
//! taken back: a renewal that succeeds in between finds a command that is stopping already.

use std::time::Duration;

use clap::ValueEnum;
use fencepost::LostReason;
use fencepost::clock::{Moment, survivable_outage};

/// What happens to a command whose lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM a kill-after before the lease can end, and KILL when it can end
    #[default]
    Term,
    /// KILL when the lease can end, without a warning
    Kill,
    /// Nothing: it runs on without the lock, and its exit code is passed on
    Ignore,
}

/// What a busy machine may need to carry out a KILL: it is sent so much earlier.
pub(crate) fn headroom(ttl: Duration) -> Duration {
    Duration::from_millis(250).min(ttl / 5)
}

impl OnLost {
    /// How long the storage may be away without the command being told to stop.
    pub(crate) fn survivable_outage(self, ttl: Duration, kill_after: Duration) -> Duration {
        let before_the_end = match self {
            Self::Term => headroom(ttl) + kill_after,
            Self::Kill => headroom(ttl),
            Self::Ignore => Duration::ZERO,
        };
        survivable_outage(ttl).saturating_sub(before_the_end)
    }

    /// When the command is killed, if its lease of this length is valid until then and no renewal succeeds.
    pub(crate) fn deadline(self, valid_until: Moment, ttl: Duration) -> Moment {
        match self {
            Self::Term | Self::Kill => valid_until - headroom(ttl),
            Self::Ignore => Moment::NEVER,
        }
    }
}

/// What is known about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// The command may run until then, should no renewal succeed.
    Until(Moment),
    /// It is over, and somebody else may enter.
    Over,
    /// It was ended before its time.
    Taken(LostReason),
}

/// Why the command is being stopped, or should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// No renewal succeeded, and the lease will end then.
    LeaseEnds(Moment),
    /// The lease is over.
    LeaseOver,
    /// The lease ended before its time.
    Taken(LostReason),
    /// It has run for as long as it may.
    MaxRun,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Say that the lock is lost, and do nothing about it.
    Ignore(Why),
    /// Tell the command to stop.
    Term(Why),
    /// End it. If this is the first that it hears, here is why.
    Kill(Option<Why>),
}

/// How the stopping of commands was ordered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Between TERM and KILL.
    pub(crate) kill_after: Duration,
    pub(crate) on_lost: OnLost,
    /// When the command has run for as long as it may.
    pub(crate) max_run: Moment,
}

/// How far the stopping of a command has come.
#[derive(Debug)]
pub(crate) struct Stopping {
    rules: Rules,
    /// When KILL follows a TERM.
    kill_at: Option<Moment>,
    killed: bool,
    lost: bool,
    ran_too_long: bool,
}

impl Stopping {
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules, kill_at: None, killed: false, lost: false, ran_too_long: false }
    }

    /// Whether the command was stopped for the sake of the lock, or outlived it.
    pub(crate) fn lost(&self) -> bool {
        self.lost
    }

    /// Whether the command was stopped because it ran for too long.
    pub(crate) fn ran_too_long(&self) -> bool {
        self.ran_too_long
    }

    /// The leader has exited, and what is left of its group has been told to stop.
    pub(crate) fn leader_exited(&mut self, now: Moment) {
        self.kill_at.get_or_insert(now + self.rules.kill_after);
    }

    /// The user does not want to wait any longer.
    pub(crate) fn hurry(&mut self, now: Moment) {
        self.kill_at = Some(now);
    }

    /// The warden has killed the command for the sake of the lock. False if that is no news.
    pub(crate) fn was_killed(&mut self) -> bool {
        self.lost = true;
        !std::mem::replace(&mut self.killed, true)
    }

    /// What is to be done now.
    pub(crate) fn step(&mut self, now: Moment, lease: Lease) -> Step {
        let first = match self.loss(now, lease) {
            Some(why) if !self.lost => self.lose(now, why),
            _ if self.rules.max_run <= now && self.kill_at.is_none() => self.end_the_run(now),
            _ => Step::Nothing,
        };
        if self.killed || self.kill_at.is_none_or(|at| at > now) {
            return first;
        }
        self.killed = true;
        match first {
            Step::Term(why) => Step::Kill(Some(why)),
            _ => Step::Kill(None),
        }
    }

    /// Whether the lock is lost, or will be if nothing is done now.
    fn loss(&self, now: Moment, lease: Lease) -> Option<Why> {
        match lease {
            Lease::Until(end) if end <= now => Some(Why::LeaseOver),
            Lease::Over => Some(Why::LeaseOver),
            Lease::Taken(reason) => Some(Why::Taken(reason)),
            // Whoever has been told to stop already needs no telling.
            Lease::Until(end) if self.kill_at.is_none() && end - self.notice() <= now => {
                Some(Why::LeaseEnds(end))
            }
            Lease::Until(_) => None,
        }
    }

    /// How long before the end of the lease the command hears of it.
    fn notice(&self) -> Duration {
        if self.rules.on_lost == OnLost::Term { self.rules.kill_after } else { Duration::ZERO }
    }

    fn lose(&mut self, now: Moment, why: Why) -> Step {
        self.lost = true;
        let kill_at = match (self.rules.on_lost, why) {
            (OnLost::Ignore, _) => return Step::Ignore(why),
            (OnLost::Term, Why::Taken(_)) => now + self.rules.kill_after,
            (OnLost::Term, Why::LeaseEnds(end)) => end,
            _ => now,
        };
        let told = self.kill_at.is_some();
        // What was to be killed sooner still is.
        self.kill_at = Some(self.kill_at.map_or(kill_at, |before| before.min(kill_at)));
        if told { Step::Nothing } else { Step::Term(why) }
    }

    fn end_the_run(&mut self, now: Moment) -> Step {
        self.ran_too_long = true;
        self.kill_at = Some(now + self.rules.kill_after);
        Step::Term(Why::MaxRun)
    }

    /// When to look again at the latest.
    pub(crate) fn next(&self, lease: Lease) -> Moment {
        let end = match lease {
            Lease::Until(end) => end,
            Lease::Over | Lease::Taken(_) => Moment::NEVER,
        };
        match self.kill_at {
            _ if self.killed => Moment::NEVER,
            Some(kill_at) => kill_at.min(end),
            None => (end - self.notice()).min(self.rules.max_run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL_AFTER: Duration = Duration::from_secs(5);
    const RULES: Rules = Rules { kill_after: KILL_AFTER, on_lost: OnLost::Term, max_run: Moment::NEVER };

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(1000 + seconds)
    }

    fn until(seconds: u64) -> Lease {
        Lease::Until(at(seconds))
    }

    /// The table in docs/concepts/running.md.
    #[test]
    fn an_outage_is_survived_if_it_leaves_the_grace() {
        let survived = |ttl, kill_after| {
            let (ttl, kill_after) = (Duration::from_secs(ttl), Duration::from_millis(kill_after));
            OnLost::Term.survivable_outage(ttl, kill_after).as_millis()
        };
        let table = [(4, 1000), (10, 2500), (30, 5000), (60, 5000), (30, 10_000)];
        assert_eq!(table.map(|(ttl, grace)| survived(ttl, grace)), [1041, 2981, 11_948, 29_148, 6948]);
        assert_eq!(survived(1, 333), 38);
    }

    #[test]
    fn the_deadline_leaves_time_for_the_kill_and_for_two_renewals() {
        for ttl in [1, 2, 30, 3600].map(Duration::from_secs) {
            let valid_until = fencepost::clock::valid_until(at(0), ttl);
            let deadline = OnLost::Term.deadline(valid_until, ttl);
            assert!(deadline + Duration::from_millis(200) <= valid_until);
            let (latest_term, second_renewal) = (deadline - ttl / 4, at(0) + ttl / 3 + ttl / 6);
            assert!(latest_term > second_renewal, "{ttl:?}");
        }
        assert_eq!(OnLost::Ignore.deadline(at(0), Duration::from_secs(30)), Moment::NEVER);
    }

    #[test]
    fn a_lease_that_is_renewed_stops_nothing() {
        let mut stopping = Stopping::new(RULES);
        for round in 0..10 {
            let lease = until(30 + 10 * round);
            assert_eq!(stopping.step(at(10 * round), lease), Step::Nothing);
            assert_eq!(stopping.next(lease), at(25 + 10 * round));
        }
        assert!(!stopping.lost());
    }

    #[test]
    fn term_goes_out_a_kill_after_before_the_end_and_kill_at_the_end() {
        let mut stopping = Stopping::new(RULES);
        assert_eq!(stopping.step(at(24), until(30)), Step::Nothing);
        assert_eq!(stopping.step(at(25), until(30)), Step::Term(Why::LeaseEnds(at(30))));
        assert_eq!(stopping.next(until(30)), at(30));
        assert_eq!(stopping.step(at(29), until(30)), Step::Nothing);
        assert_eq!(stopping.step(at(30), until(30)), Step::Kill(None));
        assert_eq!(stopping.step(at(31), Lease::Over), Step::Nothing);
        assert!(stopping.lost());
    }

    #[test]
    fn a_late_renewal_does_not_take_the_term_back() {
        let mut stopping = Stopping::new(RULES);
        stopping.step(at(25), until(30));
        assert_eq!(stopping.step(at(26), until(56)), Step::Nothing);
        assert_eq!(stopping.step(at(30), until(56)), Step::Kill(None));
        assert!(stopping.lost());
    }

    #[test]
    fn whoever_wakes_after_the_end_kills_first() {
        let mut stopping = Stopping::new(RULES);
        assert_eq!(stopping.step(at(60), until(30)), Step::Kill(Some(Why::LeaseOver)));
        let mut stopping = Stopping::new(RULES);
        assert_eq!(stopping.step(at(60), Lease::Over), Step::Kill(Some(Why::LeaseOver)));
        assert!(stopping.lost());
    }

    #[test]
    fn a_lock_that_was_taken_gives_the_command_its_grace() {
        let mut stopping = Stopping::new(RULES);
        let lease = Lease::Taken(LostReason::Broken);
        assert_eq!(stopping.step(at(3), lease), Step::Term(Why::Taken(LostReason::Broken)));
        assert_eq!(stopping.step(at(4), lease), Step::Nothing);
        assert_eq!(stopping.next(lease), at(8));
        assert_eq!(stopping.step(at(8), lease), Step::Kill(None));
        assert!(stopping.lost());
    }

    #[test]
    fn stragglers_are_killed_after_their_grace_and_the_lock_is_not_lost() {
        let mut stopping = Stopping::new(RULES);
        stopping.leader_exited(at(2));
        assert_eq!(stopping.step(at(2), until(30)), Step::Nothing);
        assert_eq!(stopping.next(until(30)), at(7));
        assert_eq!(stopping.step(at(7), until(40)), Step::Kill(None));
        assert!(!stopping.lost());
    }

    #[test]
    fn stragglers_do_not_outlive_the_lease() {
        let mut stopping = Stopping::new(RULES);
        stopping.leader_exited(at(28));
        assert_eq!(stopping.step(at(28), until(30)), Step::Nothing);
        assert_eq!(stopping.next(until(30)), at(30));
        assert_eq!(stopping.step(at(30), until(30)), Step::Kill(None));
        assert!(stopping.lost());
    }

    #[test]
    fn a_user_in_a_hurry_is_served_at_once() {
        let mut stopping = Stopping::new(RULES);
        stopping.hurry(at(1));
        assert_eq!(stopping.step(at(1), until(30)), Step::Kill(None));
        assert!(!stopping.lost());
    }

    #[test]
    fn without_a_grace_kill_is_all_there_is() {
        let mut stopping = Stopping::new(Rules { kill_after: Duration::ZERO, ..RULES });
        assert_eq!(stopping.step(at(29), until(30)), Step::Nothing);
        assert_eq!(stopping.step(at(30), until(30)), Step::Kill(Some(Why::LeaseOver)));
    }

    #[test]
    fn a_kill_comes_without_warning_if_that_was_ordered() {
        let rules = Rules { on_lost: OnLost::Kill, ..RULES };
        let mut stopping = Stopping::new(rules);
        assert_eq!(stopping.next(until(30)), at(30));
        assert_eq!(stopping.step(at(29), until(30)), Step::Nothing);
        assert_eq!(stopping.step(at(30), until(30)), Step::Kill(Some(Why::LeaseOver)));
        let mut stopping = Stopping::new(rules);
        let taken = Lease::Taken(LostReason::Broken);
        assert_eq!(stopping.step(at(3), taken), Step::Kill(Some(Why::Taken(LostReason::Broken))));
        assert!(stopping.lost());
    }

    #[test]
    fn a_loss_that_is_ignored_is_told_once_and_stops_nothing() {
        let mut stopping = Stopping::new(Rules { on_lost: OnLost::Ignore, max_run: at(90), ..RULES });
        assert_eq!(stopping.step(at(29), until(30)), Step::Nothing);
        assert_eq!(stopping.step(at(30), Lease::Over), Step::Ignore(Why::LeaseOver));
        assert_eq!(stopping.step(at(31), Lease::Over), Step::Nothing);
        assert_eq!(stopping.next(Lease::Over), at(90));
        assert!(stopping.lost());
        assert_eq!(stopping.step(at(90), Lease::Over), Step::Term(Why::MaxRun));
        assert_eq!(stopping.step(at(95), Lease::Over), Step::Kill(None));
    }

    #[test]
    fn a_run_that_takes_too_long_is_ended_with_grace() {
        let mut stopping = Stopping::new(Rules { max_run: at(60), ..RULES });
        assert_eq!(stopping.next(until(80)), at(60));
        assert_eq!(stopping.step(at(59), until(80)), Step::Nothing);
        assert_eq!(stopping.step(at(60), until(80)), Step::Term(Why::MaxRun));
        assert_eq!(stopping.step(at(64), until(80)), Step::Nothing);
        assert_eq!(stopping.step(at(65), until(80)), Step::Kill(None));
        assert!(stopping.ran_too_long() && !stopping.lost());
    }

    #[test]
    fn a_lock_that_is_taken_during_the_grace_of_a_long_run_is_lost() {
        let mut stopping = Stopping::new(Rules { max_run: at(60), ..RULES });
        stopping.step(at(60), until(80));
        assert_eq!(stopping.step(at(62), Lease::Taken(LostReason::Broken)), Step::Nothing);
        assert_eq!(stopping.step(at(65), Lease::Taken(LostReason::Broken)), Step::Kill(None));
        assert!(stopping.ran_too_long() && stopping.lost());
    }
}
