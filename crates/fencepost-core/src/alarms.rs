//! Waits of the client's thread, all on its one timer: a timer of the system is a descriptor, and those are few.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::clock::Moment;
use crate::handle::Mailbox;

/// When to ring, and a number for those that ring together.
type Key = (Moment, u64);

/// Who is to be woken when. The engine rings; whoever waits must be polled by it.
pub(crate) struct Alarms {
    set: Mutex<Set>,
    mailbox: Arc<Mailbox>,
}

#[derive(Default)]
struct Set {
    bells: BTreeMap<Key, oneshot::Sender<()>>,
    next_number: u64,
}

impl Alarms {
    /// The mailbox is that of the engine that rings.
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { set: Mutex::default(), mailbox }
    }

    /// Waits until then.
    pub(crate) async fn at(&self, at: Moment) {
        let (bell, rung) = oneshot::channel();
        let key = {
            let mut set = self.set();
            let key = (at, set.next_number);
            set.next_number += 1;
            set.bells.insert(key, bell);
            key
        };
        let _unset = Unset { alarms: self, key };
        // The engine has armed its timer before it knew.
        self.mailbox.arrived.notify_one();
        let _ = rung.await;
    }

    /// Rings at this time, unless nobody listens any more.
    pub(crate) async fn ring_at(self: Arc<Self>, at: Moment, mut ring: oneshot::Sender<()>) {
        tokio::select! {
            () = self.at(at) => {}
            () = ring.closed() => return,
        }
        let _ = ring.send(());
    }

    /// When to call [`Alarms::ring`] next.
    pub(crate) fn next(&self) -> Moment {
        self.set().bells.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at)
    }

    /// Wakes whoever is due.
    pub(crate) fn ring(&self, now: Moment) {
        let mut set = self.set();
        while let Some(first) = set.bells.first_entry()
            && first.key().0 <= now
        {
            let _ = first.remove().send(());
        }
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes an alarm back that nobody waits for any more.
struct Unset<'a> {
    alarms: &'a Alarms,
    key: Key,
}

impl Drop for Unset<'_> {
    fn drop(&mut self) {
        self.alarms.set().bells.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn only_what_is_due_rings_and_what_is_dropped_is_forgotten() {
        let alarms = Alarms::new(Arc::default());
        let at = |seconds| Moment::START + Duration::from_secs(seconds);
        let (mut soon, mut late) = (Box::pin(alarms.at(at(1))), Box::pin(alarms.at(at(2))));
        assert!((&mut late).now_or_never().is_none());
        assert!((&mut soon).now_or_never().is_none());
        assert_eq!(alarms.next(), at(1));
        alarms.ring(at(1));
        assert!((&mut soon).now_or_never().is_some());
        assert!((&mut late).now_or_never().is_none());
        assert_eq!(alarms.next(), at(2));
        drop(late);
        assert_eq!(alarms.next(), Moment::NEVER);
    }
}
