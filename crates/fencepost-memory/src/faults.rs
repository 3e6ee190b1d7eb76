//! Faults that tests inject, one flight at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The fault of one flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    LoseReply,
    LoseRequest,
    Delay(Duration),
}

#[derive(Debug, Default)]
struct Script {
    is_cut: bool,
    next: VecDeque<Fault>,
}

/// The faults of a [`Memory`](crate::Memory), for all of its clients.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Script>>);

impl Faults {
    /// Loses the reply of the next flight, which takes effect.
    pub fn lose_reply(&self) {
        self.script().next.push_back(Fault::LoseReply);
    }

    /// Loses the next flight, which has no effect. The client cannot distinguish it from a lost reply.
    pub fn lose_request(&self) {
        self.script().next.push_back(Fault::LoseRequest);
    }

    /// Delays the next flight by this much, on the backend's clock. Later flights may overtake it.
    pub fn delay(&self, by: Duration) {
        self.script().next.push_back(Fault::Delay(by));
    }

    /// Makes the backend unreachable: every flight fails.
    pub fn cut(&self) {
        self.script().is_cut = true;
    }

    /// Makes the backend reachable again.
    pub fn heal(&self) {
        self.script().is_cut = false;
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.script().is_cut
    }

    pub(crate) fn take(&self) -> Option<Fault> {
        self.script().next.pop_front()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
