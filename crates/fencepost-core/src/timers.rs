//! Timers of the client's thread, multiplexed on its one system timer, which is a file descriptor.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::clock::Moment;
use crate::handle::Mailbox;

/// The time, and a sequence number for timers with the same time.
type Key = (Moment, u64);

/// The pending timers. The engine fires them, and polls the futures that wait for them.
pub(crate) struct Timers {
    set: Mutex<Set>,
    mailbox: Arc<Mailbox>,
}

#[derive(Default)]
struct Set {
    pending: BTreeMap<Key, oneshot::Sender<()>>,
    next_sequence: u64,
}

impl Timers {
    /// Creates an empty set for the engine with this mailbox.
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { set: Mutex::default(), mailbox }
    }

    /// Waits until this time.
    pub(crate) async fn sleep_until(&self, at: Moment) {
        let (notify, notified) = oneshot::channel();
        let key = {
            let mut set = self.set();
            let key = (at, set.next_sequence);
            set.next_sequence += 1;
            set.pending.insert(key, notify);
            key
        };
        let _unset = RemoveOnDrop { timers: self, key };
        // The engine may have armed the system timer for a later time.
        self.mailbox.arrived.notify_one();
        let _ = notified.await;
    }

    /// Notifies the receiver at this time, unless it has been dropped.
    pub(crate) async fn notify_at(self: Arc<Self>, at: Moment, mut fire: oneshot::Sender<()>) {
        tokio::select! {
            () = self.sleep_until(at) => {}
            () = fire.closed() => return,
        }
        let _ = fire.send(());
    }

    /// Returns when to call [`Timers::fire`] next.
    pub(crate) fn next_due(&self) -> Moment {
        self.set().pending.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at)
    }

    /// Notifies the timers that are due.
    pub(crate) fn fire(&self, now: Moment) {
        let mut set = self.set();
        while let Some(first) = set.pending.first_entry()
            && first.key().0 <= now
        {
            let _ = first.remove().send(());
        }
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a timer whose future has been dropped.
struct RemoveOnDrop<'a> {
    timers: &'a Timers,
    key: Key,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        self.timers.set().pending.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn only_due_timers_fire_and_dropped_timers_are_removed() {
        let timers = Timers::new(Arc::default());
        let at = |seconds| Moment::START + Duration::from_secs(seconds);
        let (mut soon, mut late) = (Box::pin(timers.sleep_until(at(1))), Box::pin(timers.sleep_until(at(2))));
        assert!((&mut late).now_or_never().is_none());
        assert!((&mut soon).now_or_never().is_none());
        assert_eq!(timers.next_due(), at(1));
        timers.fire(at(1));
        assert!((&mut soon).now_or_never().is_some());
        assert!((&mut late).now_or_never().is_none());
        assert_eq!(timers.next_due(), at(2));
        drop(late);
        assert_eq!(timers.next_due(), Moment::NEVER);
    }
}
