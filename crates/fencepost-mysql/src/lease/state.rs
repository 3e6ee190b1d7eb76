//! The state of one client.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost_core::backend::Wakeup;
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::push::Pusher;
use fencepost_core::record::ClientId;
use fencepost_core::{LockName, StorageId};
use fencepost_sql::Labels;

use crate::config::Config;
use crate::lease::layout::Tables;
use crate::lease::poller::Poller;
use crate::lease::recent::RecentLocks;
use crate::lease::sent::SentOwners;
use crate::lease::sweep::Sweeper;
use crate::literal::Sql;
use crate::sessions::Sessions;

/// The state of one client.
pub(crate) struct ClientState {
    pub(crate) id: ClientId,
    pub(crate) config: Config,
    pub(crate) storage_id: StorageId,
    pub(crate) tables: Tables,
    /// Whether the server is a node of a Galera cluster.
    pub(crate) is_galera: bool,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) poller: Arc<Poller>,
    pub(crate) pusher: Pusher,
    /// Locks whose rows were found locked by transactions that go on: flights do not wait for them again, and so delay no other lock.
    pub(crate) blocked: RecentLocks,
    /// Locks with waiters, several holders or a cell: operations on them are not plain.
    pub(crate) busy: RecentLocks,
    /// Locks with nothing but a holder: its release is plain, acquires are not.
    pub(crate) held: RecentLocks,
    pub(crate) sent: SentOwners,
    pub(crate) sweeper: Sweeper,
    pub(crate) labels: Mutex<Labels>,
}

impl ClientState {
    pub(crate) fn location(&self) -> &str {
        &self.sessions.connector.location
    }

    pub(crate) fn clock(&self) -> Clock {
        self.sessions.connector.clock.clone()
    }

    pub(crate) fn now(&self) -> Moment {
        self.sessions.connector.clock.now()
    }

    pub(crate) fn labels(&self) -> MutexGuard<'_, Labels> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes to this client.
    pub(crate) fn push(&self, push: Wakeup) {
        self.poller.interests().pushed(&push, self.now());
        self.pusher.push(push);
    }

    /// Pushes what a flight of this client has granted to waiters of its own.
    pub(crate) fn on_committed(&self, pushes: Vec<Wakeup>) {
        for push in pushes {
            self.push(push);
        }
    }
}

impl Tables {
    /// Returns a statement that fails at once if another transaction has the row of this lock locked.
    pub(crate) fn probe(&self, name: &LockName) -> String {
        let mut sql = Sql::default();
        sql.text("SELECT 1 FROM ")
            .text(&self.locks)
            .text(" WHERE name = ")
            .name(name)
            .text(" FOR UPDATE NOWAIT");
        sql.into_string()
    }
}
