//! What a client does when keys that it watches change.

use std::sync::Weak;

use fencepost_core::backend::Wakeup;
use fencepost_core::clock::Moment;
use fencepost_core::{LockName, LostReason, Owner};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::client_state::{ClientState, Entry};
use crate::link::{Change, WatchEvent};
use crate::watches::Purpose;

/// What is written over a key whose holder is being sent away.
pub(crate) const BROKEN: &[u8] = b"broken";

/// Hears what happens to the keys that are watched, for as long as there is a client.
pub(crate) async fn listen(client: Weak<ClientState>, mut events: UnboundedReceiver<WatchEvent>) {
    while let Some(event) = events.recv().await {
        let Some(client) = client.upgrade() else { return };
        client.hear(event).await;
    }
}

/// Watches grants that last, for as long as there is a client.
pub(crate) async fn watch_what_lasts(client: Weak<ClientState>) {
    loop {
        let Some(strong) = client.upgrade() else { return };
        let (next, clock, granted) = (strong.watch_due(), strong.clock.clone(), strong.granted.clone());
        drop(strong);
        match next {
            Some(at) => {
                if clock.sleep_until(at).await.is_err() {
                    return;
                }
            }
            None => granted.notified().await,
        }
    }
}

impl ClientState {
    /// Watches what has lasted; when to look again, if there is anything.
    fn watch_due(&self) -> Option<Moment> {
        let now = self.clock.now();
        let mut state = self.state();
        let state = &mut *state;
        while let Some((at, owner)) = state.watches.later.front().copied() {
            let is_held = |entry: &Entry| entry.held.is_some() && !entry.ending;
            let Some(place) = state.places.get(owner).filter(|place| is_held(&place.entry)) else {
                state.watches.later.pop_front();
                continue;
            };
            if at > now {
                return Some(at);
            }
            state.watches.later.pop_front();
            let Some(revision) = place.entry.revision else { continue };
            for want in place.entry.wants(&place.attempt) {
                let seat = self.store.keys.seat(want, state.seats.called(owner));
                state.watches.own(&self.store.link, owner, seat, revision + 1);
            }
        }
        None
    }

    async fn hear(&self, event: WatchEvent) {
        let purpose = self.state().watches.purpose(event.id);
        match (event.what, purpose) {
            (Change::Missed | Change::Refused, _) => self.push.push(Wakeup::CheckAll),
            (Change::Put { value }, Some(Purpose::Own(owner))) if value == BROKEN => {
                self.lose(owner, LostReason::Broken).await;
            }
            (Change::Put { value }, Some(Purpose::Line(name))) => self.saw_holder(&name, &value),
            (Change::Put { .. }, _) | (_, None) => {}
            (Change::Deleted, Some(Purpose::Own(owner))) => self.lose(owner, LostReason::NotHeld).await,
            (Change::Deleted, Some(Purpose::Ahead(owner))) => {
                let mut state = self.state();
                state.watches.spent(&self.store.link, owner, event.id);
                // A waiter that the transaction which ended the key is about to tell need not ask.
                if !state.successors.contains(&owner) {
                    self.wake(owner);
                }
            }
            (Change::Deleted, Some(Purpose::Line(name))) => {
                self.saw_release(&name);
                self.state().watches.line_has_moved(&name);
                self.wake_line(&name);
            }
        }
    }

    /// Wakes the first attempt of this client that waits in this line; when it enters, it wakes the next.
    pub(crate) fn wake_line(&self, name: &LockName) {
        let state = self.state();
        let owners = state.watches.owners(name);
        // Of those who wait in this process only the first may come, although another may have begun to watch before it.
        let mut inside = state.places.local_waiters(name).map(|attempt| attempt.owner);
        let place = |owner: &Owner| state.places.get(*owner)?.entry.revision;
        // An attempt that lapsed while it waited in this process may still be among them.
        let is_here = |owner: &Owner| state.places.get(*owner).is_some();
        let first = inside.find(|owner| owners.contains(owner));
        if let Some(owner) = first.or_else(|| owners.iter().copied().filter(is_here).min_by_key(place)) {
            self.wake(owner);
        }
    }
}
