//! The state of one client: what its waiters, its holders and its requests without a reply mean for the next request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::OnBusy;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, FencingToken, LockName, Owner};
use tokio::sync::watch;

use super::owner::OwnerFormat;
use super::pace::{Pace, jittered};
use super::queue::Queues;
use super::rows::AcquireResult;

/// How often the first waiter looks at the row while a holder of the same client has it, whose release wakes it.
const OWN_POLL: Duration = Duration::from_secs(1);
/// A request without a reply is known to have failed this long after the server has to reject it.
const LATE_MARGIN: Duration = Duration::from_secs(2);
/// How many locks are remembered before those are looked for that need not be.
const MAX_PACES: usize = 256;

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The row is asked.
    Ask,
    Busy,
    Wait(Duration),
    NoTicket,
    /// It may hold the lock already.
    Renew(FencingToken),
}

/// The grant of an attempt of this client.
#[derive(Clone, Debug)]
struct Held {
    name: LockName,
    token: FencingToken,
    /// When the lease ends.
    until: Moment,
}

/// A row to remove that this client may have left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Undo {
    pub(super) owner: Owner,
    pub(super) name: LockName,
    pub(super) due: Moment,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) queues: Queues,
    paces: HashMap<LockName, Pace>,
    /// When tombstones end.
    tombstones: HashMap<Owner, Moment>,
    held: HashMap<Owner, Held>,
    /// The holder of each lock that this client holds.
    holders: HashMap<LockName, Owner>,
    /// Acquires without a reply, and when the server rejects them.
    unanswered: HashMap<Owner, Moment>,
    /// Acquires that are being sent: the channel closes when each has its reply.
    pending: HashMap<Owner, watch::Receiver<()>>,
    undos: Vec<Undo>,
    /// A time of the server, in microseconds, and when the request was sent that returned it.
    server_time: Option<(u64, Moment)>,
}

impl State {
    /// Decides about an acquire.
    pub(super) fn on_acquire(
        &mut self,
        name: &LockName,
        attempt: &Arc<Attempt>,
        on_busy: OnBusy,
        now: Moment,
    ) -> Decision {
        self.tombstones.retain(|_, until| *until > now);
        if self.tombstones.contains_key(&attempt.owner) {
            return Decision::Busy;
        }
        if on_busy == OnBusy::Wait {
            if !self.held.contains_key(&attempt.owner) {
                self.queues.join(name, attempt, now);
                return self.on_turn(name, attempt, now);
            }
        } else if self.queues.first(name, now).is_some_and(|first| first != attempt.owner) {
            return Decision::Busy;
        }
        Decision::Ask
    }

    /// Decides about a check.
    pub(super) fn on_check(&mut self, name: &LockName, attempt: &Arc<Attempt>, now: Moment) -> Decision {
        if !self.queues.contains(attempt.owner) {
            let held = self.held.get(&attempt.owner);
            return held.map_or(Decision::NoTicket, |held| Decision::Renew(held.token));
        }
        self.queues.join(name, attempt, now);
        self.on_turn(name, attempt, now)
    }

    /// Decides about a waiter.
    fn on_turn(&mut self, name: &LockName, attempt: &Arc<Attempt>, now: Moment) -> Decision {
        if self.queues.first(name, now) != Some(attempt.owner) {
            return Decision::Wait(attempt.ttl);
        }
        let is_own = self.is_held_here(name, now);
        let Some(pace) = self.paces.get_mut(name) else { return Decision::Ask };
        if is_own {
            // Its release wakes the waiter. It is looked at the row nevertheless: another program may have deleted it.
            return match pace.looked_before(OWN_POLL, now) {
                Some(wait) => Decision::Wait(wait),
                None => Decision::Ask,
            };
        }
        pace.gap(now).map_or(Decision::Ask, Decision::Wait)
    }

    /// Returns whether an attempt of this client has the lock, as far as it knows.
    fn is_held_here(&self, name: &LockName, now: Moment) -> bool {
        let held = self.holders.get(name).and_then(|holder| self.held.get(holder));
        held.is_some_and(|held| held.until > now)
    }

    /// Returns the time of the server at which a request has to be rejected that is sent now.
    pub(super) fn not_after(&self, timeout: Duration, now: Moment) -> u64 {
        let (time, sent) = self.server_time.unwrap_or((u64::MAX / 2, now));
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        time.saturating_add(micros(now.since(sent))).saturating_add(micros(timeout))
    }

    pub(super) fn set_server_time(&mut self, time: u64, sent: Moment) {
        self.server_time = Some((time, sent));
    }

    /// Records that an acquire is about to be sent. The channel closes when its outcome is recorded.
    pub(super) fn on_pending(&mut self, owner: Owner, finished: watch::Receiver<()>) {
        self.pending.insert(owner, finished);
    }

    /// Takes the acquire of this attempt that has no outcome yet.
    pub(super) fn take_pending(&mut self, owner: Owner) -> Option<watch::Receiver<()>> {
        self.pending.remove(&owner)
    }

    /// Records that an acquire is sent. Returns whether an earlier one has no reply yet.
    pub(super) fn on_sent(&mut self, owner: Owner, timeout: Duration, now: Moment) -> bool {
        self.unanswered.retain(|_, until| *until > now);
        self.unanswered.insert(owner, now + timeout + LATE_MARGIN).is_some()
    }

    /// Records the reply, unless an earlier request can still arrive.
    pub(super) fn on_answered(&mut self, owner: Owner) {
        self.unanswered.remove(&owner);
    }

    /// Returns whether the attempt may have a row.
    pub(super) fn may_hold(&self, owner: Owner) -> bool {
        self.held.contains_key(&owner) || self.unanswered.contains_key(&owner)
    }

    /// Records a grant. Returns the waiter that is first now.
    pub(super) fn on_granted(
        &mut self,
        name: &LockName,
        attempt: &Attempt,
        token: FencingToken,
        sent: Moment,
    ) -> Option<Owner> {
        self.queues.remove(attempt.owner);
        let until = sent + attempt.ttl;
        self.held.insert(attempt.owner, Held { name: name.clone(), token, until });
        self.holders.insert(name.clone(), attempt.owner);
        self.pace(name, sent).on_granted(sent);
        self.queues.first(name, sent)
    }

    /// Records that the lock was not acquired. Returns when to ask again.
    pub(super) fn on_busy(
        &mut self,
        name: &LockName,
        result: &AcquireResult,
        format: OwnerFormat,
        now: Moment,
    ) -> Duration {
        match &result.holder {
            Some(_) if self.is_held_here(name, now) => jittered(OWN_POLL, rand::random()),
            Some(row) => {
                let is_unique = format.read(&row.owner).is_some();
                self.pace(name, now).on_held((&row.owner, is_unique), row.left, now, rand::random())
            }
            None => Pace::on_contended(rand::random()),
        }
    }

    fn pace(&mut self, name: &LockName, now: Moment) -> &mut Pace {
        if self.paces.len() >= MAX_PACES {
            self.paces.retain(|name, pace| self.holders.contains_key(name) || !pace.is_over(now));
        }
        self.paces.entry(name.clone()).or_default()
    }

    pub(super) fn on_renewed(&mut self, owner: Owner, until: Moment) {
        if let Some(held) = self.held.get_mut(&owner) {
            held.until = until;
        }
    }

    /// Records that a grant has ended, or is released. Returns its lock if this client knew of it.
    pub(super) fn on_ended(&mut self, owner: Owner) -> Option<LockName> {
        let held = self.held.remove(&owner)?;
        if self.holders.get(&held.name) == Some(&owner) {
            self.holders.remove(&held.name);
        }
        Some(held.name)
    }

    /// Records a release, before which the lock was held. Returns the first waiter, which may ask after the gap.
    pub(super) fn on_released(&mut self, name: &LockName, now: Moment) -> Option<Owner> {
        if let Some(pace) = self.paces.get_mut(name) {
            pace.on_released(now, rand::random());
        }
        self.queues.first(name, now)
    }

    /// Returns the attempt of this client that has this token.
    pub(super) fn owner_of(&self, name: &LockName, token: FencingToken) -> Option<Owner> {
        let owner = self.holders.get(name)?;
        self.held.get(owner).filter(|held| held.token == token).map(|_| *owner)
    }

    /// Writes a tombstone. If a request of the attempt can still arrive, its row is removed once it cannot any more.
    pub(super) fn on_left(&mut self, name: &LockName, attempt: &Attempt, now: Moment) {
        self.tombstones.insert(attempt.owner, now + attempt.ttl);
        if let Some(due) = self.unanswered.get(&attempt.owner).copied().filter(|due| *due > now) {
            self.undos.push(Undo { owner: attempt.owner, name: name.clone(), due });
        }
    }

    /// Takes the rows that are to be removed now. If leases have no end in the table, these include grants that were not
    /// renewed for a ttl.
    pub(super) fn take_undos(&mut self, has_expiry: bool, now: Moment) -> Vec<Undo> {
        if !has_expiry {
            let ended = self.held.iter().filter(|(_, held)| held.until <= now);
            let ended: Vec<Owner> = ended.map(|(owner, _)| *owner).collect();
            for owner in ended {
                let name = self.on_ended(owner);
                self.undos.extend(name.map(|name| Undo { owner, name, due: now }));
            }
        }
        self.undos.extract_if(.., |undo| undo.due <= now).collect()
    }

    /// Takes all rows that may have to be removed, due or not.
    pub(super) fn take_all_undos(&mut self) -> Vec<Undo> {
        std::mem::take(&mut self.undos)
    }

    /// Keeps an undo that failed.
    pub(super) fn retry(&mut self, undo: Undo) {
        self.undos.push(undo);
    }
}
