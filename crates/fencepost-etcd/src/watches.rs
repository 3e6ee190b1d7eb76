//! The watches of one client, and which owner each of them is for: a waiter is woken by the end of the key before it, and every
//! attempt by the end of its own key. A grant that is held for but a moment is not watched at all.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LockName, Owner};

use crate::keys::Stretch;
use crate::link::{Link, WatchId, Watched};

/// What is held longer than this is watched.
const LASTING: Duration = Duration::from_millis(50);

/// What a watch is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The owner's own key.
    Own(Owner),
    /// The key before this owner's.
    Ahead(Owner),
    /// A whole line.
    Line(LockName),
}

/// A line that is watched as a whole.
#[derive(Debug)]
struct Line {
    id: WatchId,
    /// The owners that wait in it.
    owners: Vec<Owner>,
    /// Whether an attempt has left it since one of this client last asked for a place.
    has_moved: bool,
}

/// The watchers of one client.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watched: HashMap<WatchId, Purpose>,
    by_owner: HashMap<Owner, Vec<(WatchId, Vec<u8>)>>,
    lines: HashMap<LockName, Line>,
    /// Which owner waits for the end of a key.
    waiting_for: HashMap<Vec<u8>, Owner>,
    /// Grants to be watched if they last, and when.
    pub(crate) later: VecDeque<(Moment, Owner)>,
}

impl Watches {
    /// Watches a key for this owner from this revision on, unless it does so already.
    fn key(&mut self, link: &Link, what: Purpose, owner: Owner, key: Vec<u8>, from: i64) {
        let there = self.by_owner.entry(owner).or_default();
        if there.iter().any(|(_, known)| *known == key) {
            return;
        }
        let only_deletes = matches!(what, Purpose::Ahead(_));
        let id = link.watch(Watched {
            key: key.clone(),
            range_end: Vec::new(),
            start_revision: from,
            only_deletes,
        });
        there.push((id, key));
        self.watched.insert(id, what);
    }

    pub(crate) fn own(&mut self, link: &Link, owner: Owner, key: Vec<u8>, from: i64) {
        self.key(link, Purpose::Own(owner), owner, key, from);
    }

    pub(crate) fn ahead(&mut self, link: &Link, owner: Owner, key: Vec<u8>, from: i64) {
        self.waiting_for.insert(key.clone(), owner);
        self.key(link, Purpose::Ahead(owner), owner, key, from);
    }

    /// Returns the one key whose end this owner waits for, if that is all it waits for.
    pub(crate) fn awaited(&self, owner: Owner) -> Option<&[u8]> {
        let there = self.by_owner.get(&owner)?;
        let is_ahead = |id: &WatchId| matches!(self.watched.get(id), Some(Purpose::Ahead(_)));
        let mut ahead = there.iter().filter(|(id, _)| is_ahead(id)).map(|(_, key)| key.as_slice());
        ahead.next().filter(|_| ahead.next().is_none())
    }

    /// Returns the owner that waits for the end of this key.
    pub(crate) fn waits_for(&self, key: &[u8]) -> Option<Owner> {
        self.waiting_for.get(key).copied()
    }

    /// Watches a whole line, once for all who wait in it.
    pub(crate) fn line(
        &mut self,
        link: &Link,
        owner: Owner,
        name: &LockName,
        (stretch, from): (Stretch, i64),
        only_deletes: bool,
    ) {
        if let Some(line) = self.lines.get_mut(name) {
            if !line.owners.contains(&owner) {
                line.owners.push(owner);
            }
            return;
        }
        let Stretch { from: key, to: range_end } = stretch;
        let id = link.watch(Watched { key, range_end, start_revision: from, only_deletes });
        self.watched.insert(id, Purpose::Line(name.clone()));
        self.lines.insert(name.clone(), Line { id, owners: vec![owner], has_moved: false });
    }

    /// This attempt asks for its places now, and will be told of every end that was heard of until now.
    pub(crate) fn asks(&mut self, attempt: &Attempt) {
        for want in &attempt.wants {
            if let Some(line) = self.lines.get_mut(&want.name) {
                line.has_moved = false;
            }
        }
    }

    /// Returns whether an attempt has left one of its lines since one of this client last asked for a place in it.
    pub(crate) fn have_moved(&self, attempt: &Attempt) -> bool {
        attempt.wants.iter().any(|want| self.lines.get(&want.name).is_some_and(|line| line.has_moved))
    }

    /// The owner waits no more: of interest are only the keys that it holds.
    pub(crate) fn arrived(&mut self, link: &Link, owner: Owner, held: &[Vec<u8>]) {
        self.unwatch(link, owner, |_, key| held.contains(key));
        self.leave_lines(link, owner);
    }

    /// Nothing about this owner is of interest any more.
    pub(crate) fn end(&mut self, link: &Link, owner: Owner) {
        self.unwatch(link, owner, |_, _| false);
        self.leave_lines(link, owner);
    }

    /// The key before this owner's is gone: it is not watched any more.
    pub(crate) fn spent(&mut self, link: &Link, owner: Owner, id: WatchId) {
        self.unwatch(link, owner, |known, _| known != id);
    }

    /// Stops watching the keys of this owner that are not of interest any more.
    fn unwatch(&mut self, link: &Link, owner: Owner, stays: impl Fn(WatchId, &Vec<u8>) -> bool) {
        let Some(there) = self.by_owner.get_mut(&owner) else { return };
        for (id, key) in there.extract_if(.., |(id, key)| !stays(*id, key)) {
            if self.waiting_for.get(&key) == Some(&owner) {
                self.waiting_for.remove(&key);
            }
            self.watched.remove(&id);
            link.unwatch(id);
        }
        if there.is_empty() {
            self.by_owner.remove(&owner);
        }
    }

    fn leave_lines(&mut self, link: &Link, owner: Owner) {
        let watched = &mut self.watched;
        self.lines.retain(|_, line| {
            line.owners.retain(|there| *there != owner);
            if line.owners.is_empty() {
                watched.remove(&line.id);
                link.unwatch(line.id);
            }
            !line.owners.is_empty()
        });
    }

    /// Returns what a watch is for.
    pub(crate) fn purpose(&self, id: WatchId) -> Option<Purpose> {
        self.watched.get(&id).cloned()
    }

    /// Records that an attempt has left this line.
    pub(crate) fn line_has_moved(&mut self, name: &LockName) {
        if let Some(line) = self.lines.get_mut(name) {
            line.has_moved = true;
        }
    }

    /// Returns the owners for which this line is watched.
    pub(crate) fn owners(&self, name: &LockName) -> &[Owner] {
        self.lines.get(name).map_or(&[], |line| &line.owners)
    }

    /// Watches a grant if it lasts.
    pub(crate) fn later(&mut self, owner: Owner, now: Moment) {
        self.later.push_back((now + LASTING, owner));
    }
}
