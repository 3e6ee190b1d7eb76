//! When the command is told to stop, and when it is killed: decisions without I/O.
//!
//! TERM goes out a kill-after before the lease can end, KILL when it can end at the latest. What was begun is not
//! taken back: a renewal that succeeds in between finds a command that is stopping already.

use std::time::Duration;

use fencepost::LostReason;
use fencepost::clock::Moment;

/// What is known about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// It is valid until then, should no renewal succeed.
    Until(Moment),
    /// It is over, and somebody else may enter.
    Over,
    /// It was ended before its time.
    Taken(LostReason),
}

/// Why the command is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// No renewal succeeded, and the lease will end then.
    LeaseEnds(Moment),
    /// The lease ended before its time.
    Taken(LostReason),
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Tell the command to stop.
    Term(Why),
    /// End it.
    Kill,
}

/// How far the stopping of a command has come.
#[derive(Debug)]
pub(crate) struct Stopping {
    kill_after: Duration,
    /// When KILL follows a TERM.
    kill_at: Option<Moment>,
    killed: bool,
    lost: bool,
}

impl Stopping {
    pub(crate) fn new(kill_after: Duration) -> Self {
        Self { kill_after, kill_at: None, killed: false, lost: false }
    }

    /// Whether the command was stopped for the sake of the lock, or outlived it.
    pub(crate) fn lost(&self) -> bool {
        self.lost
    }

    /// The leader has exited, and what is left of its group has been told to stop.
    pub(crate) fn leader_exited(&mut self, now: Moment) {
        self.kill_at.get_or_insert(now + self.kill_after);
    }

    /// The user does not want to wait any longer.
    pub(crate) fn hurry(&mut self, now: Moment) {
        self.kill_at = Some(now);
    }

    /// What is to be done now.
    pub(crate) fn step(&mut self, now: Moment, lease: Lease) -> Step {
        let term = self.begin(now, lease);
        if self.kill_at.is_none() || self.next(lease) > now {
            return term;
        }
        self.killed = true;
        Step::Kill
    }

    fn begin(&mut self, now: Moment, lease: Lease) -> Step {
        match lease {
            Lease::Until(end) if end <= now => self.over(now),
            Lease::Over => self.over(now),
            Lease::Taken(reason) => {
                self.lost = true;
                self.term(now + self.kill_after, Why::Taken(reason))
            }
            Lease::Until(end) if self.kill_at.is_none() && end - self.kill_after <= now => {
                self.lost = true;
                self.term(end, Why::LeaseEnds(end))
            }
            Lease::Until(_) => Step::Nothing,
        }
    }

    fn over(&mut self, now: Moment) -> Step {
        self.lost = true;
        self.kill_at = Some(now);
        Step::Nothing
    }

    fn term(&mut self, kill_at: Moment, why: Why) -> Step {
        if self.kill_at.is_some() {
            return Step::Nothing;
        }
        self.kill_at = Some(kill_at);
        Step::Term(why)
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
            None => end - self.kill_after,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL_AFTER: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(1000 + seconds)
    }

    fn until(seconds: u64) -> Lease {
        Lease::Until(at(seconds))
    }

    #[test]
    fn a_lease_that_is_renewed_stops_nothing() {
        let mut stopping = Stopping::new(KILL_AFTER);
        for round in 0..10 {
            let lease = until(30 + 10 * round);
            assert_eq!(stopping.step(at(10 * round), lease), Step::Nothing);
            assert_eq!(stopping.next(lease), at(25 + 10 * round));
        }
        assert!(!stopping.lost());
    }

    #[test]
    fn term_goes_out_a_kill_after_before_the_end_and_kill_at_the_end() {
        let mut stopping = Stopping::new(KILL_AFTER);
        assert_eq!(stopping.step(at(24), until(30)), Step::Nothing);
        assert_eq!(stopping.step(at(25), until(30)), Step::Term(Why::LeaseEnds(at(30))));
        assert_eq!(stopping.next(until(30)), at(30));
        assert_eq!(stopping.step(at(29), until(30)), Step::Nothing);
        assert_eq!(stopping.step(at(30), until(30)), Step::Kill);
        assert_eq!(stopping.step(at(31), Lease::Over), Step::Nothing);
        assert!(stopping.lost());
    }

    #[test]
    fn a_late_renewal_does_not_take_the_term_back() {
        let mut stopping = Stopping::new(KILL_AFTER);
        stopping.step(at(25), until(30));
        assert_eq!(stopping.step(at(26), until(56)), Step::Nothing);
        assert_eq!(stopping.step(at(30), until(56)), Step::Kill);
        assert!(stopping.lost());
    }

    #[test]
    fn whoever_wakes_after_the_end_kills_first() {
        let mut stopping = Stopping::new(KILL_AFTER);
        assert_eq!(stopping.step(at(60), until(30)), Step::Kill);
        let mut stopping = Stopping::new(KILL_AFTER);
        assert_eq!(stopping.step(at(60), Lease::Over), Step::Kill);
        assert!(stopping.lost());
    }

    #[test]
    fn a_lock_that_was_taken_gives_the_command_its_grace() {
        let mut stopping = Stopping::new(KILL_AFTER);
        let lease = Lease::Taken(LostReason::Broken);
        assert_eq!(stopping.step(at(3), lease), Step::Term(Why::Taken(LostReason::Broken)));
        assert_eq!(stopping.step(at(4), lease), Step::Nothing);
        assert_eq!(stopping.next(lease), at(8));
        assert_eq!(stopping.step(at(8), lease), Step::Kill);
        assert!(stopping.lost());
    }

    #[test]
    fn stragglers_are_killed_after_their_grace_and_the_lock_is_not_lost() {
        let mut stopping = Stopping::new(KILL_AFTER);
        stopping.leader_exited(at(2));
        assert_eq!(stopping.step(at(2), until(30)), Step::Nothing);
        assert_eq!(stopping.next(until(30)), at(7));
        assert_eq!(stopping.step(at(7), until(40)), Step::Kill);
        assert!(!stopping.lost());
    }

    #[test]
    fn stragglers_do_not_outlive_the_lease() {
        let mut stopping = Stopping::new(KILL_AFTER);
        stopping.leader_exited(at(28));
        assert_eq!(stopping.step(at(28), until(30)), Step::Nothing);
        assert_eq!(stopping.next(until(30)), at(30));
        assert_eq!(stopping.step(at(30), until(30)), Step::Kill);
        assert!(stopping.lost());
    }

    #[test]
    fn a_user_in_a_hurry_is_served_at_once() {
        let mut stopping = Stopping::new(KILL_AFTER);
        stopping.hurry(at(1));
        assert_eq!(stopping.step(at(1), until(30)), Step::Kill);
        assert!(!stopping.lost());
    }

    #[test]
    fn without_a_grace_kill_is_all_there_is() {
        let mut stopping = Stopping::new(Duration::ZERO);
        assert_eq!(stopping.step(at(29), until(30)), Step::Nothing);
        assert_eq!(stopping.step(at(30), until(30)), Step::Kill);
    }
}
