//! What a storage in memory can be told to do wrong, one flight at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What happens to one flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    LoseReply,
    LoseRequest,
    Delay(Duration),
}

#[derive(Debug, Default)]
struct Script {
    away: bool,
    next: VecDeque<Fault>,
}

/// The faults of a [`Memory`](crate::Memory), for all of its clients.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Script>>);

impl Faults {
    /// The next flight takes effect, but its answer never arrives.
    pub fn lose_reply(&self) {
        self.script().next.push_back(Fault::LoseReply);
    }

    /// The next flight gets lost on its way: it has no effect, and nobody can tell.
    pub fn lose_request(&self) {
        self.script().next.push_back(Fault::LoseRequest);
    }

    /// The next flight arrives this much later, on the storage's clock. Later flights may overtake it.
    pub fn delay(&self, by: Duration) {
        self.script().next.push_back(Fault::Delay(by));
    }

    /// The storage is away: every flight fails.
    pub fn cut(&self) {
        self.script().away = true;
    }

    /// The storage is back.
    pub fn heal(&self) {
        self.script().away = false;
    }

    pub(crate) fn is_away(&self) -> bool {
        self.script().away
    }

    pub(crate) fn take(&self) -> Option<Fault> {
        self.script().next.pop_front()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
