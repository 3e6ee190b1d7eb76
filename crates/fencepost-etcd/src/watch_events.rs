//! Handles the changes of watched keys.

use std::sync::Weak;

use fencepost_core::backend::Wakeup;
use fencepost_core::clock::Moment;
use fencepost_core::{LockName, LostReason, Owner};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::link::{Change, WatchEvent};
use crate::state::{ClientState, Entry};
use crate::watch_registry::Purpose;

/// The value of a key whose lock was broken by an administrator.
pub(crate) const BROKEN: &[u8] = b"broken";

/// Handles watch events until the client is dropped.
pub(crate) async fn handle_events(client: Weak<ClientState>, mut events: UnboundedReceiver<WatchEvent>) {
    while let Some(event) = events.recv().await {
        let Some(client) = client.upgrade() else { return };
        client.on_event(event).await;
    }
}

/// Watches grants that are held for long, until the client is dropped.
pub(crate) async fn watch_long_grants(client: Weak<ClientState>) {
    loop {
        let Some(strong) = client.upgrade() else { return };
        let (next, clock, granted) = (strong.watch_due(), strong.clock.clone(), strong.granted.clone());
        drop(strong);
        match next {
            Some(due) => {
                if clock.sleep_until(due).await.is_err() {
                    return;
                }
            }
            None => granted.notified().await,
        }
    }
}

impl ClientState {
    /// Watches the grants that are due. Returns when the next one is.
    fn watch_due(&self) -> Option<Moment> {
        let now = self.clock.now();
        let mut state = self.state();
        let state = &mut *state;
        while let Some((due, owner)) = state.watches.deferred.front().copied() {
            let is_held = |entry: &Entry| entry.held.is_some() && !entry.is_ending;
            let Some(own) = state.own_entries.get(owner).filter(|own| is_held(&own.entry)) else {
                state.watches.deferred.pop_front();
                continue;
            };
            if due > now {
                return Some(due);
            }
            state.watches.deferred.pop_front();
            let Some(create_revision) = own.entry.create_revision else { continue };
            for want in own.entry.wants(&own.attempt) {
                let key = self.cluster.keys.entry(want, state.suffixes.get(owner));
                state.watches.watch_own(&self.cluster.link, owner, key, create_revision + 1);
            }
        }
        None
    }

    async fn on_event(&self, event: WatchEvent) {
        let purpose = self.state().watches.purpose(event.id);
        match (event.change, purpose) {
            (Change::Missed | Change::Refused, _) => self.pusher.push(Wakeup::CheckAll),
            (Change::Put { value }, Some(Purpose::Own(owner))) if value == BROKEN => {
                self.lose(owner, LostReason::Broken).await;
            }
            (Change::Put { value }, Some(Purpose::Queue(name))) => self.observe_holder(&name, &value),
            (Change::Put { .. }, _) | (_, None) => {}
            (Change::Deleted, Some(Purpose::Own(owner))) => self.lose(owner, LostReason::NotHeld).await,
            (Change::Deleted, Some(Purpose::Predecessor(owner))) => {
                let mut state = self.state();
                state.watches.remove_watch(&self.cluster.link, owner, event.id);
                // A release in flight, which deleted the key, reads the position of this waiter and grants it the lock or
                // wakes it.
                if !state.successors.contains(&owner) {
                    self.wake(owner);
                }
            }
            (Change::Deleted, Some(Purpose::Queue(name))) => {
                self.observe_release(&name);
                self.state().watches.record_deletion(&name);
                self.wake_first_in_queue(&name);
            }
        }
    }

    /// Wakes the first attempt of this client that waits in this queue; when it is granted, it wakes the next.
    pub(crate) fn wake_first_in_queue(&self, name: &LockName) {
        let state = self.state();
        let watching = state.watches.queue_waiters(name);
        // Only the first local waiter may create keys, although another may have started to watch before it.
        let mut local = state.own_entries.local_waiters(name).map(|attempt| attempt.owner);
        if let Some(first) = local.find(|owner| watching.contains(owner)) {
            self.wake(first);
            return;
        }
        // A local waiter that has expired may still be watching.
        let has_entry = |owner: &Owner| state.own_entries.get(*owner).is_some();
        let create_revision = |owner: &Owner| state.own_entries.get(*owner)?.entry.create_revision;
        if let Some(first) = watching.iter().copied().filter(has_entry).min_by_key(create_revision) {
            self.wake(first);
        }
    }
}
