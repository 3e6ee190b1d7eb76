//! The keeper: one renewal machine for all grants and tickets of a client. It has no I/O: it is told what happened and
//! says what to do. It alone decides that a grant is lost.
//!
//! A lease is renewed at a third of its ttl; a renewal without an answer is repeated after a sixth, a failed one after
//! a twelfth. Whatever is due within a twelfth leaves together, so that ten thousand leases are a handful of calls.

use std::time::Duration;

use crate::clock::{Moment, valid_until};
use crate::diary::{Diary, Due};
use crate::grant::LostReason;
use crate::token::Owner;

/// What is being kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A lock that is held: it is lost when its time is over.
    Grant,
    /// A place in line: nothing is lost with it but the place.
    Ticket,
}

/// What the engine is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a renewal of this grant.
    Renew(Owner),
    /// Send a check of this ticket.
    Check(Owner),
    /// Tell the guard that it is lost. The keeper has forgotten it.
    Lose(Owner, LostReason),
}

#[derive(Debug)]
struct Lease {
    kept: Kept,
    ttl: Duration,
    /// The lease is known to have run from this moment on.
    counted_from: Moment,
    /// When to send the next renewal.
    due: Moment,
    /// When it must end although it could be renewed.
    hold_until: Moment,
}

impl Lease {
    fn ends(&self) -> Moment {
        match self.kept {
            Kept::Grant => valid_until(self.counted_from, self.ttl).min(self.hold_until),
            Kept::Ticket => Moment::NEVER,
        }
    }
}

impl Due for Lease {
    fn due(&self) -> Moment {
        self.due.min(self.ends())
    }
}

/// The renewal machine.
#[derive(Debug, Default)]
pub struct Keeper {
    leases: Diary<Owner, Lease>,
}

impl Keeper {
    /// Begins to keep a lease that has run since `counted_from`. The first renewal is due at `first`.
    pub fn keep(
        &mut self,
        owner: Owner,
        kept: Kept,
        counted_from: Moment,
        ttl: Duration,
        first: Moment,
        hold_until: Moment,
    ) {
        let lease = Lease { kept, ttl, counted_from, due: first, hold_until };
        self.leases.insert(owner, lease);
    }

    /// When a lease that was confirmed at `sent` should be renewed.
    pub fn first_renewal(sent: Moment, ttl: Duration) -> Moment {
        sent + ttl / 3
    }

    /// Stops keeping: the lease is being released, or the ticket has come to its end.
    pub fn forget(&mut self, owner: Owner) {
        self.leases.remove(owner);
    }

    /// Whether this owner is kept as a grant.
    pub fn holds(&self, owner: Owner) -> bool {
        self.leases.get(owner).is_some_and(|lease| lease.kept == Kept::Grant)
    }

    /// Whether anything is kept.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// The owners of all grants.
    pub fn grants(&self) -> Vec<Owner> {
        self.leases.iter().filter(|(_, lease)| lease.kept == Kept::Grant).map(|(owner, _)| owner).collect()
    }

    /// A renewal that was sent at `sent` has succeeded with this ttl. Returns until when the lease is now valid, or
    /// `None` if the keeper does not keep it any more.
    pub fn renewed(&mut self, owner: Owner, sent: Moment, ttl: Duration) -> Option<Moment> {
        self.leases.change(owner, |lease| {
            // Of two answers the one that was sent later counts, whichever arrives first.
            if sent >= lease.counted_from {
                lease.counted_from = sent;
                lease.ttl = ttl;
                lease.due = Self::first_renewal(sent, ttl);
            }
            lease.ends()
        })
    }

    /// A renewal has failed without a verdict.
    pub fn failed(&mut self, owner: Owner, now: Moment) {
        self.leases.change(owner, |lease| lease.due = now + lease.ttl / 12);
    }

    /// Something is to be found out at `at` the latest.
    pub fn no_later_than(&mut self, owner: Owner, at: Moment) {
        self.leases.change(owner, |lease| lease.due = lease.due.min(at));
    }

    /// Everything is to be renewed at once: the storage was away and is back.
    pub fn hurry(&mut self, now: Moment) {
        let owners: Vec<Owner> = self.leases.iter().map(|(owner, _)| owner).collect();
        for owner in owners {
            self.no_later_than(owner, now);
        }
    }

    /// When to call [`Keeper::tick`] next.
    pub fn next(&self) -> Moment {
        self.leases.next()
    }

    /// What is to be done now. Deadlines are looked at before anything is renewed.
    pub fn tick(&mut self, now: Moment) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.next() > now {
            return actions;
        }
        let soon = |owner| now + self.leases.get(owner).map_or(Duration::ZERO, |lease| lease.ttl / 12);
        let near = self.leases.in_order().take_while(|(at, owner)| *at <= soon(*owner));
        let near: Vec<Owner> = near.map(|(_, owner)| owner).collect();
        for owner in near {
            let Some(lease) = self.leases.get(owner) else {
                continue;
            };
            if now >= lease.ends() {
                let reason = if now >= lease.hold_until { LostReason::MaxHold } else { LostReason::Expired };
                self.forget(owner);
                actions.push(Action::Lose(owner, reason));
            } else if lease.due <= now + lease.ttl / 12 {
                actions.push(match lease.kept {
                    Kept::Grant => Action::Renew(owner),
                    Kept::Ticket => Action::Check(owner),
                });
                self.leases.change(owner, |lease| lease.due = now + lease.ttl / 6);
            }
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::survivable_outage;

    const TTL: Duration = Duration::from_secs(12);

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(1000 + seconds)
    }

    fn held(hold_until: Moment) -> (Keeper, Owner) {
        let mut keeper = Keeper::default();
        let owner = Owner::random();
        keeper.keep(owner, Kept::Grant, at(0), TTL, Keeper::first_renewal(at(0), TTL), hold_until);
        (keeper, owner)
    }

    #[test]
    fn renews_at_a_third_and_again_and_again() {
        let (mut keeper, owner) = held(Moment::NEVER);
        assert_eq!(keeper.tick(at(3)), []);
        for round in 1..10 {
            let now = keeper.next();
            assert_eq!(now, at(4 * round));
            assert_eq!(keeper.tick(now), [Action::Renew(owner)]);
            keeper.renewed(owner, now, TTL);
        }
    }

    #[test]
    fn a_renewal_without_an_answer_is_repeated_after_a_sixth() {
        let (mut keeper, owner) = held(Moment::NEVER);
        assert_eq!(keeper.tick(at(4)), [Action::Renew(owner)]);
        assert_eq!(keeper.tick(at(5)), []);
        assert_eq!(keeper.tick(at(6)), [Action::Renew(owner)]);
    }

    #[test]
    fn a_failed_renewal_is_repeated_after_a_twelfth() {
        let (mut keeper, owner) = held(Moment::NEVER);
        keeper.tick(at(4));
        keeper.failed(owner, at(4));
        assert_eq!(keeper.next(), at(5));
    }

    /// Scenarios 20 and 31: a hung renewal does not delay the verdict.
    #[test]
    fn is_lost_at_the_deadline_whatever_is_in_flight() {
        let (mut keeper, owner) = held(Moment::NEVER);
        keeper.tick(at(4));
        let deadline = valid_until(at(0), TTL);
        while keeper.next() < deadline {
            let now = keeper.next();
            assert_eq!(keeper.tick(now), [Action::Renew(owner)]);
        }
        assert_eq!(keeper.next(), deadline);
        assert_eq!(keeper.tick(deadline), [Action::Lose(owner, LostReason::Expired)]);
        assert!(keeper.is_empty());
        assert_eq!(keeper.renewed(owner, at(4), TTL), None);
    }

    #[test]
    fn the_deadline_is_looked_at_before_anything_is_renewed() {
        let (mut keeper, owner) = held(Moment::NEVER);
        assert_eq!(keeper.tick(at(60)), [Action::Lose(owner, LostReason::Expired)]);
    }

    #[test]
    fn a_late_answer_counts_from_its_own_sending() {
        let (mut keeper, owner) = held(Moment::NEVER);
        keeper.tick(at(4));
        keeper.tick(at(6));
        assert_eq!(keeper.renewed(owner, at(6), TTL), Some(valid_until(at(6), TTL)));
        assert_eq!(keeper.renewed(owner, at(4), TTL), Some(valid_until(at(6), TTL)));
    }

    /// Scenario 32: work that ended is not renewed for ever.
    #[test]
    fn max_hold_ends_a_lease_that_could_be_renewed() {
        let (mut keeper, owner) = held(at(7));
        assert_eq!(keeper.tick(at(4)), [Action::Renew(owner)]);
        keeper.renewed(owner, at(4), TTL);
        assert_eq!(keeper.tick(at(7)), [Action::Lose(owner, LostReason::MaxHold)]);
    }

    #[test]
    fn a_ticket_is_checked_for_ever_and_never_lost() {
        let mut keeper = Keeper::default();
        let owner = Owner::random();
        keeper.keep(owner, Kept::Ticket, at(0), TTL, at(4), Moment::NEVER);
        for _ in 0..50 {
            let now = keeper.next();
            assert_eq!(keeper.tick(now), [Action::Check(owner)]);
            keeper.failed(owner, now);
        }
    }

    #[test]
    fn what_is_due_soon_leaves_together() {
        let mut keeper = Keeper::default();
        for second in 0..1000 {
            let sent = at(0) + Duration::from_millis(second);
            keeper.keep(
                Owner::random(),
                Kept::Grant,
                sent,
                TTL,
                Keeper::first_renewal(sent, TTL),
                Moment::NEVER,
            );
        }
        assert_eq!(keeper.tick(at(4)).len(), 1000);
    }

    /// Scenario 75: whenever an outage begins, and whether requests hang or fail in it, no more of the lease is used up
    /// than the bound allows.
    #[test]
    fn an_outage_below_the_bound_leaves_the_rest_of_the_lease() {
        let outage = Duration::from_secs(3);
        let left = survivable_outage(TTL).saturating_sub(outage);
        for (begin, hangs) in (0..400).flat_map(|tick| [(tick, true), (tick, false)]) {
            let begin = at(0) + Duration::from_millis(begin * 10);
            let end = begin + outage;
            let (mut keeper, owner) = held(Moment::NEVER);
            let mut valid = valid_until(at(0), TTL);
            while keeper.next() < end + TTL {
                let sent = keeper.next();
                assert_eq!(keeper.tick(sent), [Action::Renew(owner)]);
                let is_away = sent >= begin && sent < end;
                if is_away && !hangs {
                    keeper.failed(owner, sent);
                    continue;
                }
                let answered = if is_away { end } else { sent };
                assert!(valid.since(answered) >= left, "an outage from {begin:?} on, hanging: {hangs}");
                valid = keeper.renewed(owner, sent, TTL).unwrap();
            }
        }
    }

    #[test]
    fn hurry_makes_everything_due() {
        let (mut keeper, owner) = held(Moment::NEVER);
        keeper.hurry(at(1));
        assert_eq!(keeper.tick(at(1)), [Action::Renew(owner)]);
    }
}
