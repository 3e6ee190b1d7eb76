//! The entries of one client, and the rules which operations may send requests about the nodes of an owner.
//!
//! * An owner has at most one entry, which is **live** or an **orphan**.
//! * A live entry belongs to the operations of its owner. The engine has at most one acquire, check, leave or release
//!   of an owner in flight, so only one of them at a time creates, finds or deletes nodes. Renewals and cell writes may
//!   be in flight at the same time: they verify that the nodes exist and create none.
//! * The nodes of an orphan are to be deleted ([`crate::orphans`]). An entry becomes an orphan *before* an operation
//!   deletes its nodes, when its lease has expired, or when a watch finds a node of a grant missing. The maintenance
//!   task of the session retries the deletion until it succeeds. An acquire of the same owner deletes them itself
//!   before it creates new ones, a leave before anything else. Deleting twice is harmless. Nodes of a live entry are
//!   deleted only by a release, because it may have to be sent again, and by the choice of one of several locks.
//! * Watches send reads only.
//! * Requests of a dropped operation may still be applied, but before everything that is sent later in the same
//!   session. An entry whose nodes are unknown is therefore settled by a read ([`crate::nodes::recover_nodes`]).
//! * While the client closes, a leave or release may run concurrently with an acquire or check that is in flight. An
//!   acquire whose entry was removed when the reply to its create arrives deletes its nodes.

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
    /// One path for each want; empty if another lock was chosen under [`fencepost_core::Rule::Any`].
    pub(crate) paths: Vec<String>,
    /// The zxid that created them: the fencing token of their grant.
    pub(crate) token: u64,
}

impl Nodes {
    /// Keeps the path of the chosen want and returns the others, or `None` if another was chosen before.
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

/// The nodes and the state of one attempt.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) session: Arc<Session>,
    /// Whether it waits if the locks are not free.
    pub(crate) on_busy: OnBusy,
    /// `None` while the outcome of creating them is unknown.
    pub(crate) nodes: Option<Nodes>,
    /// The nodes of the locks that were not chosen. They are deleted before the grant.
    pub(crate) surplus: Vec<String>,
    pub(crate) award: Option<Award>,
    /// The nodes that it waits for, as last read.
    pub(crate) blockers: Vec<String>,
    /// A release is deleting its nodes: its watch must not report that.
    pub(crate) released: bool,
}

impl Entry {
    pub(crate) fn new(session: &Arc<Session>, on_busy: OnBusy) -> Self {
        let session = session.clone();
        let (surplus, blockers) = (Vec::new(), Vec::new());
        Self { session, on_busy, nodes: None, surplus, award: None, blockers, released: false }
    }
}

/// The live entries, orphans and tombstones of one client.
#[derive(Debug)]
pub(crate) struct Registry {
    /// The live entries, and the attempts that wait in this process because the client has its maximum number of
    /// entries.
    pub(crate) entries: OwnEntries<Entry>,
    orphans: HashMap<Owner, Arc<Orphan>>,
    /// The owners that have removed, each with the end of its tombstone.
    tombstones: HashMap<Owner, Moment>,
    /// The lock nodes that this client created.
    pub(crate) containers: Containers,
    pusher: Pusher,
}

impl Registry {
    pub(crate) fn new(pusher: Pusher) -> Self {
        Self {
            entries: OwnEntries::default(),
            orphans: HashMap::new(),
            tombstones: HashMap::new(),
            containers: Containers::default(),
            pusher,
        }
    }

    /// Adds a tombstone, so that a late acquire of this owner does nothing.
    pub(crate) fn add_tombstone(&mut self, attempt: &Attempt, now: Moment) {
        self.tombstones.retain(|_, until| *until > now);
        self.tombstones.insert(attempt.owner, now + attempt.ttl * 2);
    }

    pub(crate) fn has_tombstone(&self, owner: Owner, now: Moment) -> bool {
        self.tombstones.get(&owner).is_some_and(|until| *until > now)
    }

    /// Returns the live entry of this owner. An entry whose lease has expired becomes an orphan.
    pub(crate) fn live_entry(&mut self, owner: Owner, now: Moment) -> Option<&mut OwnEntry<Entry>> {
        let own = self.entries.get(owner)?;
        if own.kept_at + own.attempt.ttl < now {
            self.make_orphan(owner, now);
        }
        self.entries.get_mut(owner)
    }

    /// Extends the lease of this owner's live entry and returns the entry.
    pub(crate) fn keep(&mut self, owner: Owner, now: Moment) -> Option<&mut Entry> {
        self.live_entry(owner, now)?;
        self.entries.keep(owner, now).map(|own| &mut own.entry)
    }

    /// Removes a live entry, and wakes the attempts that waited for it in this process.
    pub(crate) fn remove(&mut self, owner: Owner) -> Option<OwnEntry<Entry>> {
        let own = self.entries.remove(owner)?;
        own.entry.session.watches().remove_waiter(owner, &own.entry.blockers);
        self.wake_local_waiters(&own.attempt);
        Some(own)
    }

    /// Wakes the attempts that waited in this process behind a removed one.
    pub(crate) fn wake_local_waiters(&self, removed: &Attempt) {
        for owner in self.entries.unblocked_by(removed) {
            self.pusher.push(Wakeup::Check { owner });
        }
    }

    /// Turns a live entry into an orphan.
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

    /// Turns all entries whose leases have expired into orphans.
    pub(crate) fn orphan_expired(&mut self, now: Moment) {
        for owner in self.entries.expire(now) {
            self.make_orphan(owner, now);
        }
    }

    pub(crate) fn orphan_of(&self, owner: Owner) -> Option<Arc<Orphan>> {
        self.orphans.get(&owner).cloned()
    }

    /// Returns whether the nodes of this orphan are still to be deleted.
    pub(crate) fn has_orphan(&self, orphan: &Arc<Orphan>) -> bool {
        self.orphans.get(&orphan.attempt.owner).is_some_and(|there| Arc::ptr_eq(there, orphan))
    }

    /// Removes an orphan whose nodes are deleted.
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

    /// Removes everything in a session that is over, and notifies the owners.
    pub(crate) fn remove_session(&mut self, session: &Arc<Session>, reason: LostReason) {
        self.orphans.retain(|_, orphan| !Arc::ptr_eq(&orphan.session, session));
        let lost: Vec<Owner> = self.entries_in(session).map(|(owner, _)| owner).collect();
        for owner in lost {
            let was_granted = self.remove(owner).is_some_and(|own| own.entry.award.is_some());
            self.pusher.push(if was_granted {
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
