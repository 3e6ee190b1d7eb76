//! The entries of one client, and who may send what about the nodes of an owner.
//!
//! * An owner has at most one entry, which is **live** or an **orphan**.
//! * A live entry belongs to the operations of its owner. The engine has at most one acquire, check, leave or release of an
//!   owner unanswered, so only one of them at a time makes, looks for or deletes nodes. Renewals and writes of a cell may be
//!   in flight beside it: they prove that the nodes are there and make none.
//! * An orphan is to be deleted ([`crate::orphans`]). An entry becomes one *before* an operation deletes its nodes, when its
//!   lease has lapsed, or when a watch finds a node of a grant missing. The task that looks after the session deletes
//!   its nodes as often as it takes. An acquire or leave of the same owner does so itself before anything else. To delete
//!   them twice is harmless. Of a live entry only a release deletes nodes, because it may have to be sent again, and the
//!   choice of one of several locks.
//! * Watches send reads only.
//! * The requests of an operation that was dropped may still arrive, but ahead of all that is sent later in its session. An
//!   entry whose nodes are not known is therefore settled by a read ([`crate::nodes::recover_nodes`]).
//! * While the client closes, a leave or release may run beside an unanswered acquire or check. An acquire whose entry is gone
//!   when its nodes have been made deletes them.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_contenders::{OwnEntries, OwnEntry};
use fencepost_core::backend::{OnBusy, Wakeup};
use fencepost_core::clock::Moment;
use fencepost_core::push::Pusher;
use fencepost_core::{Attempt, Award, LostReason, Owner};

use crate::containers::Containers;
use crate::orphans::Orphan;
use crate::session::Session;

/// The nodes of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// One for each want, with its parent; empty if under [`fencepost_core::Rule::Any`] another was chosen.
    pub(crate) paths: Vec<String>,
    /// The transaction that made them, which is the token of their grant.
    pub(crate) token: u64,
}

impl Nodes {
    /// Keeps one of them and returns the others, or `None` if another was chosen before.
    pub(crate) fn choose(&mut self, chosen: usize) -> Option<Vec<String>> {
        let kept = std::mem::take(&mut self.paths[chosen]);
        let others: Vec<String> = self.paths.iter().filter(|path| !path.is_empty()).cloned().collect();
        if kept.is_empty() {
            return None;
        }
        self.paths.fill(String::new());
        self.paths[chosen] = kept;
        Some(others)
    }
}

/// What one attempt has on the servers.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) session: Arc<Session>,
    /// Whether it stays in line if the locks are not free.
    pub(crate) on_busy: OnBusy,
    /// `None` while it is not known whether they were made.
    pub(crate) nodes: Option<Nodes>,
    /// The nodes of the locks that it does not need any more, as it has chosen another. They go before it is granted.
    pub(crate) surplus: Vec<String>,
    pub(crate) award: Option<Award>,
    /// The nodes that it was seen to wait for.
    pub(crate) blockers: Vec<String>,
    /// Its nodes are being deleted by a release: its watch does not report that.
    pub(crate) released: bool,
}

impl Entry {
    pub(crate) fn new(session: &Arc<Session>, on_busy: OnBusy) -> Self {
        let session = session.clone();
        let (surplus, blockers) = (Vec::new(), Vec::new());
        Self { session, on_busy, nodes: None, surplus, award: None, blockers, released: false }
    }
}

/// The entries of one client, and the owners that have left.
#[derive(Debug)]
pub(crate) struct Registry {
    /// The live entries, and the attempts that wait in this process for room.
    pub(crate) entries: OwnEntries<Entry>,
    orphans: HashMap<Owner, Arc<Orphan>>,
    /// The owners that have left, and until when that is remembered.
    tombstones: HashMap<Owner, Moment>,
    /// The locks' nodes that this client made.
    pub(crate) containers: Containers,
    push: Pusher,
}

impl Registry {
    pub(crate) fn new(push: Pusher) -> Self {
        Self {
            entries: OwnEntries::default(),
            orphans: HashMap::new(),
            tombstones: HashMap::new(),
            containers: Containers::default(),
            push,
        }
    }

    /// Remembers that this owner has left, for as long as a request of it may be late.
    pub(crate) fn add_tombstone(&mut self, attempt: &Attempt, now: Moment) {
        self.tombstones.retain(|_, until| *until > now);
        self.tombstones.insert(attempt.owner, now + attempt.ttl * 2);
    }

    pub(crate) fn has_tombstone(&self, owner: Owner, now: Moment) -> bool {
        self.tombstones.get(&owner).is_some_and(|until| *until > now)
    }

    /// Returns the live entry of this owner. One whose lease has lapsed becomes an orphan.
    pub(crate) fn live_entry(&mut self, owner: Owner, now: Moment) -> Option<&mut OwnEntry<Entry>> {
        let own = self.entries.get(owner)?;
        if own.kept_at + own.attempt.ttl < now {
            self.make_orphan(owner, now);
        }
        self.entries.get_mut(owner)
    }

    /// Returns the live entry of this owner, whose lease is extended.
    pub(crate) fn keep(&mut self, owner: Owner, now: Moment) -> Option<&mut Entry> {
        self.live_entry(owner, now)?;
        self.entries.keep(owner, now).map(|own| &mut own.entry)
    }

    /// Removes a live entry, and wakes the attempts that waited for it in this process.
    pub(crate) fn remove(&mut self, owner: Owner) -> Option<OwnEntry<Entry>> {
        let own = self.entries.remove(owner)?;
        own.entry.session.watches().stop_waiting(owner, &own.entry.blockers);
        self.wake_local_waiters(&own.attempt);
        Some(own)
    }

    /// Wakes the attempts that waited in this process behind one that has left.
    pub(crate) fn wake_local_waiters(&self, left: &Attempt) {
        for owner in self.entries.unblocked_by(left) {
            self.push.push(Wakeup::Check { owner });
        }
    }

    /// Makes a live entry an orphan.
    pub(crate) fn make_orphan(&mut self, owner: Owner, now: Moment) -> Option<Arc<Orphan>> {
        let OwnEntry { attempt, entry, .. } = self.remove(owner)?;
        let nodes = entry.nodes.map(|nodes| [nodes.paths, entry.surplus].concat());
        Some(self.add_orphan(Orphan { session: entry.session, attempt, nodes, since: now }))
    }

    pub(crate) fn add_orphan(&mut self, orphan: Orphan) -> Arc<Orphan> {
        let orphan = Arc::new(orphan);
        self.orphans.insert(orphan.attempt.owner, orphan.clone());
        orphan
    }

    /// Makes all entries orphans whose leases have lapsed.
    pub(crate) fn orphan_lapsed(&mut self, now: Moment) {
        for owner in self.entries.expire(now) {
            self.make_orphan(owner, now);
        }
    }

    pub(crate) fn orphan_of(&self, owner: Owner) -> Option<Arc<Orphan>> {
        self.orphans.get(&owner).cloned()
    }

    /// Returns whether this orphan is still to be deleted.
    pub(crate) fn has_orphan(&self, orphan: &Arc<Orphan>) -> bool {
        self.orphans.get(&orphan.attempt.owner).is_some_and(|there| Arc::ptr_eq(there, orphan))
    }

    /// Forgets an orphan whose nodes are gone.
    pub(crate) fn remove_orphan(&mut self, orphan: &Arc<Orphan>) {
        if self.has_orphan(orphan) {
            self.orphans.remove(&orphan.attempt.owner);
        }
    }

    pub(crate) fn orphans_in<'a>(
        &'a self,
        session: &'a Arc<Session>,
    ) -> impl Iterator<Item = &'a Arc<Orphan>> {
        self.orphans.values().filter(|orphan| Arc::ptr_eq(&orphan.session, session))
    }

    /// Returns the live entries in this session.
    pub(crate) fn entries_in<'a>(
        &'a self,
        session: &'a Arc<Session>,
    ) -> impl Iterator<Item = (Owner, &'a OwnEntry<Entry>)> {
        self.entries.iter().filter(|(_, own)| Arc::ptr_eq(&own.entry.session, session))
    }

    /// Removes everything that has ended with this session, and tells the owners.
    pub(crate) fn remove_session(&mut self, session: &Arc<Session>, reason: LostReason) {
        self.orphans.retain(|_, orphan| !Arc::ptr_eq(&orphan.session, session));
        let lost: Vec<Owner> = self.entries_in(session).map(|(owner, _)| owner).collect();
        for owner in lost {
            let was_granted = self.remove(owner).is_some_and(|own| own.entry.award.is_some());
            self.push.push(if was_granted {
                Wakeup::Lost { owner, reason }
            } else {
                Wakeup::Check { owner }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_is_chosen_once() {
        let paths = ["/a/1", "/b/2", "/c/3"].map(str::to_owned).to_vec();
        let mut nodes = Nodes { paths, token: 7 };
        assert_eq!(nodes.choose(1), Some(vec!["/a/1".to_owned(), "/c/3".to_owned()]));
        assert_eq!((nodes.choose(0), nodes.choose(2)), (None, None));
        assert_eq!(nodes.choose(1), Some(Vec::new()));
        assert_eq!(nodes, Nodes { paths: vec![String::new(), "/b/2".to_owned(), String::new()], token: 7 });
    }
}
