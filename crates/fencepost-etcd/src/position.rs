//! The position of an attempt in its queues: it holds, or it waits for the entries ahead.

use std::sync::Arc;
use std::time::Duration;

use fencepost_contenders::holder_count;
use fencepost_core::backend::Reply;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Award, FencingToken, Mode, Rule, Want};

use crate::cluster::Cluster;
use crate::proto::KeyValue;
use crate::state::{ClientState, State, held_wants};
use crate::watch_registry::QueueEvents;

/// The position of an attempt in one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Nothing ahead keeps it from holding.
    Unblocked,
    /// Waits for the deletion of this key, which is directly ahead of it.
    BehindKey(Vec<u8>),
    /// Waits for one of several keys ahead to be deleted.
    BehindSeveral,
}

impl Cluster {
    /// Returns the position of the key created by this revision, given what was read of its queue.
    pub(crate) fn position(&self, want: &Want, queue: &[KeyValue], create_revision: i64) -> Position {
        let ahead = queue.iter().filter(|key| key.create_revision < create_revision);
        if !matches!(want.mode, Mode::Semaphore { .. }) {
            return ahead
                .max_by_key(|key| key.create_revision)
                .map_or(Position::Unblocked, |key| Position::BehindKey(key.key.clone()));
        }
        let modes: Vec<Mode> = ahead.map(|key| self.keys.mode_of(key)).collect();
        let own_index = modes.len();
        let holds = holder_count(modes.into_iter().chain([want.mode])) > own_index;
        if holds { Position::Unblocked } else { Position::BehindSeveral }
    }
}

impl ClientState {
    /// Adds an attempt to the local waiters until the key of its lock is deleted (`layout=single`).
    pub(crate) fn wait_for_deletion(
        &self,
        attempt: &Arc<Attempt>,
        read_revision: i64,
        sent_at: Moment,
    ) -> Reply {
        let mut state = self.state();
        let state = &mut *state;
        if state.own_entries.get(attempt.owner).is_some() {
            // A request of it may still be applied: the next check finds no ticket, and the engine retries with another
            // owner.
            return Reply::Waiting { check_after: Duration::ZERO };
        }
        state.own_entries.wait_locally(attempt, sent_at);
        for want in &attempt.wants {
            let range = self.cluster.keys.queue(&want.name);
            // From the revision of the read itself: the transaction that read the key may also have deleted it.
            state.watches.watch_queue(
                &self.cluster.link,
                attempt.owner,
                &want.name,
                (range, read_revision),
                QueueEvents::All,
            );
        }
        self.forward_wakeup(state, attempt);
        Reply::Waiting { check_after: attempt.ttl }
    }

    /// Records the positions of an attempt whose keys were created by `create_revision`, as of `read_revision`: it holds, or it
    /// waits for a later change. Returns `None` if the attempt has ended.
    pub(crate) fn record_positions(
        &self,
        attempt: &Arc<Attempt>,
        positions: &[Position],
        create_revision: i64,
        read_revision: i64,
        sent_at: Moment,
    ) -> Option<Reply> {
        let is_unblocked = |position: &Position| *position == Position::Unblocked;
        let unblocked = match attempt.rule {
            Rule::All => positions.iter().all(is_unblocked).then_some(0),
            Rule::Any => positions.iter().position(is_unblocked),
        };
        let mut state = self.state();
        let entry = &mut state.live_entry(attempt.owner)?.entry;
        if !entry.record_keys(create_revision, unblocked) {
            return None;
        }
        let (held, lease_id) = (entry.held, entry.proven_lease_id());
        let Some(chosen) = held else {
            self.watch_blockers(&mut state, attempt, positions, read_revision);
            return Some(Reply::Waiting { check_after: attempt.ttl });
        };
        let award = state.award(lease_id, attempt.ttl, create_revision, chosen, sent_at);
        self.watch_grant_later(&mut state, attempt, chosen, sent_at);
        Some(Reply::Granted(award))
    }

    fn watch_grant_later(&self, state: &mut State, attempt: &Attempt, chosen: usize, sent_at: Moment) {
        let owner = attempt.owner;
        let held = held_wants(attempt, chosen).iter().map(|want| state.entry_key(&self.cluster, want, owner));
        let held: Vec<Vec<u8>> = held.collect();
        state.watches.stop_waiting(&self.cluster.link, owner, &held);
        state.watches.watch_later(owner, sent_at);
        self.granted.notify_one();
    }

    fn watch_blockers(
        &self,
        state: &mut State,
        attempt: &Attempt,
        positions: &[Position],
        read_revision: i64,
    ) {
        let (owner, link) = (attempt.owner, &self.cluster.link);
        for (want, position) in attempt.wants.iter().zip(positions) {
            // From the revision of the read itself: the transaction that read the keys may also have deleted them.
            match position {
                Position::Unblocked => {}
                Position::BehindKey(key) => {
                    state.watches.watch_predecessor(link, owner, key.clone(), read_revision);
                }
                Position::BehindSeveral => {
                    let range = self.cluster.keys.queue(&want.name);
                    state.watches.watch_queue(
                        link,
                        owner,
                        &want.name,
                        (range, read_revision),
                        QueueEvents::Deletions,
                    );
                }
            }
            let key = state.entry_key(&self.cluster, want, owner);
            state.watches.watch_own(link, owner, key, read_revision);
        }
    }

    /// Wakes waiters that may hold the lock together with an attempt that was just granted.
    pub(crate) fn wake_compatible_waiters(&self, attempt: &Attempt, chosen: usize) {
        for want in held_wants(attempt, chosen).iter().filter(|want| want.mode != Mode::Exclusive) {
            self.wake_first_in_queue(&want.name);
        }
    }
}

impl State {
    /// Returns the award for an attempt whose keys were created by this revision: the remaining part of its lease.
    fn award(
        &self,
        lease_id: i64,
        ttl: Duration,
        create_revision: i64,
        chosen: usize,
        sent_at: Moment,
    ) -> Award {
        let lease = self.leases.get(lease_id);
        let (ttl, confirmed_at) = lease.map_or((ttl, Moment::START), |lease| (lease.ttl, lease.confirmed_at));
        let token = FencingToken::new(create_revision.unsigned_abs());
        Award { token, ttl, chosen, elapsed: sent_at.since(confirmed_at) }
    }
}
