//! Who is woken by what: a waiter by the end of whoever stands before it, everybody by the end of its own key. A grant that
//! is held for but a moment is not watched at all.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::backend::Wakeup;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LockName, LostReason, Owner};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::home::Home;
use crate::keys::Stretch;
use crate::link::{Change, Link, WatchEvent, WatchId, Watched};

/// What is held longer than this is watched.
const LASTING: Duration = Duration::from_millis(50);
/// What is written over a key whose holder is being sent away.
pub(crate) const BROKEN: &[u8] = b"broken";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Purpose {
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
    /// Who waits in it.
    owners: Vec<Owner>,
    /// Whether somebody has left it since one of ours last asked for a place.
    has_moved: bool,
}

/// The watchers of one client.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watched: HashMap<WatchId, Purpose>,
    by_owner: HashMap<Owner, Vec<(WatchId, Vec<u8>)>>,
    lines: HashMap<LockName, Line>,
    /// Who waits for the end of a key.
    heirs: HashMap<Vec<u8>, Owner>,
    /// Grants to be watched if they last, and when.
    later: VecDeque<(Moment, Owner)>,
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
        self.heirs.insert(key.clone(), owner);
        self.key(link, Purpose::Ahead(owner), owner, key, from);
    }

    /// Returns the one key whose end this owner waits for, if that is all it waits for.
    pub(crate) fn awaited(&self, owner: Owner) -> Option<&[u8]> {
        let there = self.by_owner.get(&owner)?;
        let is_ahead = |id: &WatchId| matches!(self.watched.get(id), Some(Purpose::Ahead(_)));
        let mut ahead = there.iter().filter(|(id, _)| is_ahead(id)).map(|(_, key)| key.as_slice());
        ahead.next().filter(|_| ahead.next().is_none())
    }

    /// The owner of ours who waits for the end of this key.
    pub(crate) fn heir(&self, key: &[u8]) -> Option<Owner> {
        self.heirs.get(key).copied()
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

    /// Whether somebody has left one of its lines since one of ours last asked for a place in it.
    pub(crate) fn have_moved(&self, attempt: &Attempt) -> bool {
        attempt.wants.iter().any(|want| self.lines.get(&want.name).is_some_and(|line| line.has_moved))
    }

    /// The owner waits no more: of interest are only the keys that it holds.
    pub(crate) fn arrived(&mut self, link: &Link, owner: Owner, held: &[Vec<u8>]) {
        let Self { watched, by_owner, heirs, .. } = self;
        if let Some(there) = by_owner.get_mut(&owner) {
            there.retain(|(id, key)| {
                let stays = held.contains(key);
                if !stays {
                    if heirs.get(key) == Some(&owner) {
                        heirs.remove(key);
                    }
                    watched.remove(id);
                    link.unwatch(*id);
                }
                stays
            });
        }
        self.leave_lines(link, owner);
    }

    /// Nothing about this owner is of interest any more.
    pub(crate) fn end(&mut self, link: &Link, owner: Owner) {
        for (id, key) in self.by_owner.remove(&owner).into_iter().flatten() {
            if self.heirs.get(&key) == Some(&owner) {
                self.heirs.remove(&key);
            }
            self.watched.remove(&id);
            link.unwatch(id);
        }
        self.leave_lines(link, owner);
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

    /// Watches a grant if it lasts.
    pub(crate) fn later(&mut self, owner: Owner, now: Moment) {
        self.later.push_back((now + LASTING, owner));
    }

    /// The key before this owner's is gone: it is not watched any more.
    fn spent(&mut self, link: &Link, owner: Owner, id: WatchId) {
        self.watched.remove(&id);
        if let Some(there) = self.by_owner.get_mut(&owner) {
            let heirs = &mut self.heirs;
            there.retain(|(known, key)| {
                if *known == id && heirs.get(key) == Some(&owner) {
                    heirs.remove(key);
                }
                *known != id
            });
        }
        link.unwatch(id);
    }
}

/// Hears what happens to the keys that are watched, for as long as there is a client.
pub(crate) async fn listen(home: Weak<Home>, mut events: UnboundedReceiver<WatchEvent>) {
    while let Some(event) = events.recv().await {
        let Some(home) = home.upgrade() else { return };
        home.hear(event).await;
    }
}

/// Watches grants that last, for as long as there is a client.
pub(crate) async fn watch_what_lasts(home: Weak<Home>) {
    loop {
        let Some(strong) = home.upgrade() else { return };
        let next = strong.watch_due();
        let clock = strong.clock.clone();
        match next {
            Some(at) => {
                drop(strong);
                if clock.sleep_until(at).await.is_err() {
                    return;
                }
            }
            None => wait_for_grants(strong).await,
        }
    }
}

/// Waits until something is granted, without keeping the client.
async fn wait_for_grants(home: Arc<Home>) {
    let granted = home.granted.clone();
    drop(home);
    granted.notified().await;
}

impl Home {
    /// Watches what has lasted; when to look again, if there is anything.
    fn watch_due(&self) -> Option<Moment> {
        let now = self.clock.now();
        let mut state = self.state();
        let state = &mut *state;
        while let Some((at, owner)) = state.watches.later.front().copied() {
            let Some(place) = state.places.get(owner).filter(|place| place.entry.held.is_some()) else {
                state.watches.later.pop_front();
                continue;
            };
            if at > now {
                return Some(at);
            }
            state.watches.later.pop_front();
            let (Some(revision), Some(chosen)) = (place.entry.revision, place.entry.held) else { continue };
            for want in held(&place.attempt, chosen) {
                let seat = self.keys.seat(want, state.seats.called(owner));
                state.watches.own(&self.link, owner, seat, revision + 1);
            }
        }
        None
    }

    async fn hear(&self, event: WatchEvent) {
        match event.what {
            Change::Missed | Change::Refused => self.push(Wakeup::Recheck),
            Change::Deleted => self.heard_of_an_end(event.id).await,
            Change::Put { value } => {
                let watched = self.state().watches.watched.get(&event.id).cloned();
                match watched {
                    Some(Purpose::Own(owner)) if value == BROKEN => {
                        self.is_gone(owner, LostReason::Broken).await;
                    }
                    Some(Purpose::Line(name)) => self.saw_holder(&name, &value),
                    _ => {}
                }
            }
        }
    }

    async fn heard_of_an_end(&self, id: WatchId) {
        let watched = self.state().watches.watched.get(&id).cloned();
        match watched {
            None => {}
            Some(Purpose::Own(owner)) => self.is_gone(owner, LostReason::NotHeld).await,
            Some(Purpose::Ahead(owner)) => {
                let mut state = self.state();
                state.watches.spent(&self.link, owner, id);
                // Whoever is about to be told by the very transaction that ended the key need not ask.
                if !state.heirs.contains(&owner) {
                    self.push(Wakeup::Turn { owner });
                }
            }
            Some(Purpose::Line(name)) => {
                self.saw_release(&name);
                if let Some(line) = self.state().watches.lines.get_mut(&name) {
                    line.has_moved = true;
                }
                self.wake_line(&name);
            }
        }
    }

    /// Wakes the first of ours that waits in this line; whoever then enters wakes the next.
    pub(crate) fn wake_line(&self, name: &LockName) {
        let state = self.state();
        let Some(Line { owners, .. }) = state.watches.lines.get(name) else { return };
        // Of those who wait in this process only the first may come, whoever began to watch before it.
        let mut inside = state.places.waiting_for(name).map(|attempt| attempt.owner);
        let place = |owner: &Owner| state.places.get(*owner)?.entry.revision;
        // Whoever lapsed in this process was forgotten without a word.
        let is_here = |owner: &Owner| state.places.get(*owner).is_some();
        let first = inside.find(|owner| owners.contains(owner));
        if let Some(owner) = first.or_else(|| owners.iter().copied().filter(is_here).min_by_key(place)) {
            self.push(Wakeup::Turn { owner });
        }
    }

    /// The key of an owner of ours is gone.
    async fn is_gone(&self, owner: Owner, why: LostReason) {
        let place = self.state().places.get(owner).map(|it| (it.attempt.clone(), it.entry.held.is_some()));
        let Some((attempt, is_held)) = place else { return };
        if !is_held {
            self.push(Wakeup::Turn { owner });
            return;
        }
        self.push(Wakeup::Gone { owner, why });
        // Of several names the others go too; and whoever has marked a key may not come to remove it.
        if why == LostReason::Broken || attempt.wants.len() > 1 {
            self.end(&attempt).await;
        } else {
            self.forget(owner);
        }
    }
}

/// The wants that an attempt holds.
pub(crate) fn held(attempt: &Attempt, chosen: usize) -> &[fencepost_core::Want] {
    match attempt.rule {
        fencepost_core::Rule::All => &attempt.wants,
        fencepost_core::Rule::Any => {
            std::slice::from_ref(&attempt.wants[chosen.min(attempt.wants.len() - 1)])
        }
    }
}
