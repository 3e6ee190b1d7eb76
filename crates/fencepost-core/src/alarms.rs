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
