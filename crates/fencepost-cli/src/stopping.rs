//! Decides when the command gets TERM, and when KILL. No I/O here.
//!
//! TERM is sent a kill-after before the deadline, KILL at the deadline, which is shortly before the lease can end. A TERM is
//! not taken back: a renewal that succeeds after it finds a command that is stopping already.

use std::time::Duration;

use clap::ValueEnum;
use fencepost::LostReason;
use fencepost::clock::{Moment, survivable_outage};

/// What happens to a command whose lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM --kill-after before the deadline, KILL at the deadline, shortly before the lease can end
    #[default]
    Term,
    /// KILL at the deadline, without TERM before it
    Kill,
    /// Nothing: it continues without the lock, and its exit code is returned
    Ignore,
}

/// Returns how much earlier KILL is sent: the time that a busy machine may need to carry it out.
pub(crate) fn headroom(ttl: Duration) -> Duration {
    Duration::from_millis(250).min(ttl / 5)
}

impl OnLost {
    /// Returns how long the backend may be away without the command being stopped.
    pub(crate) fn survivable_outage(self, ttl: Duration, kill_after: Duration) -> Duration {
        let before_the_end = match self {
            Self::Term => headroom(ttl) + kill_after,
            Self::Kill => headroom(ttl),
            Self::Ignore => Duration::ZERO,
        };
        survivable_outage(ttl).saturating_sub(before_the_end)
    }

    /// Returns when the command is killed if its lease of this length is valid until then and no renewal succeeds.
    pub(crate) fn deadline(self, valid_until: Moment, ttl: Duration) -> Moment {
        match self {
            Self::Term | Self::Kill => valid_until - headroom(ttl),
            Self::Ignore => Moment::NEVER,
        }
    }
}

/// The state of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// The command may run until then if no renewal succeeds.
    Until(Moment),
    /// It is over, and another client may hold the lock.
    Over,
    /// It ended before its time.
    Revoked(LostReason),
}

/// Why the command is being stopped, or should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// No renewal succeeded, and the lease will end then.
    LeaseEnds(Moment),
    /// The lease is over.
    LeaseOver,
    /// The lease ended before its time.
    Revoked(LostReason),
    /// It has reached `--max-run`.
    MaxRun,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Report that the lock is lost, and do nothing about it.
    Ignore(Why),
    /// Send TERM.
    Term(Why),
    /// Send KILL; with the reason, if there was no TERM before.
    Kill(Option<Why>),
}

/// The settings for stopping a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The time between TERM and KILL.
    pub(crate) kill_after: Duration,
    pub(crate) on_lost: OnLost,
    /// The end of `--max-run`.
    pub(crate) max_run: Moment,
}

/// The progress of stopping a command.
#[derive(Debug)]
pub(crate) struct Stopping {
    rules: Rules,
    /// When KILL follows TERM.
    kill_at: Option<Moment>,
    killed: bool,
    lost: bool,
    ran_too_long: bool,
}

impl Stopping {
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules, kill_at: None, killed: false, lost: false, ran_too_long: false }
    }

    /// Returns whether the lock was lost: the command was stopped because of it, or outlived it.
    pub(crate) fn lost(&self) -> bool {
        self.lost
    }

    /// Returns whether the command was stopped because of `--max-run`.
    pub(crate) fn ran_too_long(&self) -> bool {
        self.ran_too_long
    }

    /// Records that the leader has exited and the rest of its group got TERM.
    pub(crate) fn leader_exited(&mut self, now: Moment) {
        self.kill_at.get_or_insert(now + self.rules.kill_after);
    }

    /// Records that the user has asked a second time to end: KILL is due now.
    pub(crate) fn kill_now(&mut self, now: Moment) {
        self.kill_at = Some(now);
    }

    /// Records that the warden has killed the command because of the lock. Returns false if it was killed before.
    pub(crate) fn killed_by_warden(&mut self) -> bool {
        self.lost = true;
        !std::mem::replace(&mut self.killed, true)
    }

    /// Returns what to do now.
    pub(crate) fn step(&mut self, now: Moment, lease: Lease) -> Step {
        let first = match self.loss(now, lease) {
            Some(why) if !self.lost => self.lose(now, why),
            _ if self.rules.max_run <= now && self.kill_at.is_none() => self.reach_max_run(now),
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

    /// Returns why the lock is lost, or will be if nothing is done now.
    fn loss(&self, now: Moment, lease: Lease) -> Option<Why> {
        match lease {
            Lease::Until(end) if end <= now => Some(Why::LeaseOver),
            Lease::Over => Some(Why::LeaseOver),
            Lease::Revoked(reason) => Some(Why::Revoked(reason)),
            // A command that got TERM already needs no other.
            Lease::Until(end) if self.kill_at.is_none() && end - self.notice() <= now => {
                Some(Why::LeaseEnds(end))
            }
            Lease::Until(_) => None,
        }
    }

    /// Returns how long before the end of the lease the command gets TERM.
    fn notice(&self) -> Duration {
        if self.rules.on_lost == OnLost::Term { self.rules.kill_after } else { Duration::ZERO }
    }

    fn lose(&mut self, now: Moment, why: Why) -> Step {
        self.lost = true;
        let kill_at = match (self.rules.on_lost, why) {
            (OnLost::Ignore, _) => return Step::Ignore(why),
            (OnLost::Term, Why::Revoked(_)) => now + self.rules.kill_after,
            (OnLost::Term, Why::LeaseEnds(end)) => end,
            _ => now,
        };
        let had_term = self.kill_at.is_some();
        // An earlier KILL stays.
        self.kill_at = Some(self.kill_at.map_or(kill_at, |before| before.min(kill_at)));
        if had_term { Step::Nothing } else { Step::Term(why) }
    }

    fn reach_max_run(&mut self, now: Moment) -> Step {
        self.ran_too_long = true;
        self.kill_at = Some(now + self.rules.kill_after);
        Step::Term(Why::MaxRun)
    }

    /// Returns when to decide again at the latest.
    pub(crate) fn next(&self, lease: Lease) -> Moment {
        let end = match lease {
            Lease::Until(end) => end,
            Lease::Over | Lease::Revoked(_) => Moment::NEVER,
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
    fn an_outage_is_survived_if_it_leaves_the_kill_after() {
        let survived = |ttl, kill_after| {
            let (ttl, kill_after) = (Duration::from_secs(ttl), Duration::from_millis(kill_after));
            OnLost::Term.survivable_outage(ttl, kill_after).as_millis()
        };
        let table = [(4, 1000), (10, 2500), (30, 5000), (60, 5000), (30, 10_000)];
        assert_eq!(
            table.map(|(ttl, kill_after)| survived(ttl, kill_after)),
            [1041, 2981, 11_948, 29_148, 6948]
        );
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
    fn a_renewed_lease_stops_nothing() {
        let mut stopping = Stopping::new(RULES);
        for round in 0..10 {
            let lease = until(30 + 10 * round);
            assert_eq!(stopping.step(at(10 * round), lease), Step::Nothing);
            assert_eq!(stopping.next(lease), at(25 + 10 * round));
        }
        assert!(!stopping.lost());
    }

    #[test]
    fn term_is_sent_a_kill_after_before_the_end_and_kill_at_the_end() {
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
    fn a_supervisor_that_resumes_after_the_end_kills_at_once() {
        let mut stopping = Stopping::new(RULES);
        assert_eq!(stopping.step(at(60), until(30)), Step::Kill(Some(Why::LeaseOver)));
        let mut stopping = Stopping::new(RULES);
        assert_eq!(stopping.step(at(60), Lease::Over), Step::Kill(Some(Why::LeaseOver)));
        assert!(stopping.lost());
    }

    #[test]
    fn a_command_whose_lock_is_revoked_gets_its_kill_after() {
        let mut stopping = Stopping::new(RULES);
        let lease = Lease::Revoked(LostReason::Broken);
        assert_eq!(stopping.step(at(3), lease), Step::Term(Why::Revoked(LostReason::Broken)));
        assert_eq!(stopping.step(at(4), lease), Step::Nothing);
        assert_eq!(stopping.next(lease), at(8));
        assert_eq!(stopping.step(at(8), lease), Step::Kill(None));
        assert!(stopping.lost());
    }

    #[test]
    fn stragglers_are_killed_after_their_kill_after_and_the_lock_is_not_lost() {
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
    fn a_second_request_to_end_kills_at_once() {
        let mut stopping = Stopping::new(RULES);
        stopping.kill_now(at(1));
        assert_eq!(stopping.step(at(1), until(30)), Step::Kill(None));
        assert!(!stopping.lost());
    }

    #[test]
    fn without_a_kill_after_there_is_only_kill() {
        let mut stopping = Stopping::new(Rules { kill_after: Duration::ZERO, ..RULES });
        assert_eq!(stopping.step(at(29), until(30)), Step::Nothing);
        assert_eq!(stopping.step(at(30), until(30)), Step::Kill(Some(Why::LeaseOver)));
    }

    #[test]
    fn with_on_lost_kill_there_is_no_term() {
        let rules = Rules { on_lost: OnLost::Kill, ..RULES };
        let mut stopping = Stopping::new(rules);
        assert_eq!(stopping.next(until(30)), at(30));
        assert_eq!(stopping.step(at(29), until(30)), Step::Nothing);
        assert_eq!(stopping.step(at(30), until(30)), Step::Kill(Some(Why::LeaseOver)));
        let mut stopping = Stopping::new(rules);
        let revoked = Lease::Revoked(LostReason::Broken);
        assert_eq!(stopping.step(at(3), revoked), Step::Kill(Some(Why::Revoked(LostReason::Broken))));
        assert!(stopping.lost());
    }

    #[test]
    fn an_ignored_loss_is_reported_once_and_stops_nothing() {
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
    fn a_run_that_takes_too_long_gets_term_and_then_kill() {
        let mut stopping = Stopping::new(Rules { max_run: at(60), ..RULES });
        assert_eq!(stopping.next(until(80)), at(60));
        assert_eq!(stopping.step(at(59), until(80)), Step::Nothing);
        assert_eq!(stopping.step(at(60), until(80)), Step::Term(Why::MaxRun));
        assert_eq!(stopping.step(at(64), until(80)), Step::Nothing);
        assert_eq!(stopping.step(at(65), until(80)), Step::Kill(None));
        assert!(stopping.ran_too_long() && !stopping.lost());
    }

    #[test]
    fn a_lock_that_is_revoked_while_a_long_run_is_stopped_is_lost() {
        let mut stopping = Stopping::new(Rules { max_run: at(60), ..RULES });
        stopping.step(at(60), until(80));
        assert_eq!(stopping.step(at(62), Lease::Revoked(LostReason::Broken)), Step::Nothing);
        assert_eq!(stopping.step(at(65), Lease::Revoked(LostReason::Broken)), Step::Kill(None));
        assert!(stopping.ran_too_long() && stopping.lost());
    }
}
