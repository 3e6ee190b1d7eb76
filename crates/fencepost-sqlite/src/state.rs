//! The state of one client, which its writer thread owns, and the transactions in which it changes.
//!
//! The records of locks that were read stay in a [`LockTable`]. They equal the file as long as no other process has written,
//! which SQLite reports; until then an operation writes one row and reads none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Result;
use fencepost_core::backend::Wakeup;
use fencepost_core::clock::{Clock, StorageTime, wall_time};
use fencepost_core::lock_table::LockTable;
use fencepost_core::push::Pusher;
use fencepost_core::record::ClientId;

use crate::identity::FileIdentity;
use crate::statements::{Counter, Statements};
use crate::turnstile::Turnstile;
use crate::waiter_poll::WaiterPoll;
use crate::wake::Sockets;

/// The size of the blocks in which tokens are reserved on disk, so that none is repeated after a power failure.
pub(crate) const RESERVED_BLOCK: i64 = 1 << 20;
/// The smallest number of reserved tokens with which a transaction begins.
const MIN_RESERVED: i64 = 1 << 17;
/// The interval at which expired rows of unused locks are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// How many locks one sweep reads.
const SWEEP_LIMIT: i64 = 256;
/// How many records the table keeps before empty ones are dropped.
const MAX_CACHED_RECORDS: usize = 16_384;

/// The state of one client.
pub(crate) struct ClientState {
    pub(crate) client: ClientId,
    pub(crate) statements: Statements,
    pub(crate) turnstile: Turnstile,
    pub(crate) sockets: Arc<Sockets>,
    /// Pushes wake-ups to this client itself, without a socket.
    pub(crate) pusher: Pusher,
    pub(crate) boot_id: i64,
    pub(crate) table: LockTable,
    pub(crate) counter: Counter,
    /// The version of the file that the table equals.
    pub(crate) version: Option<i64>,
    /// The waiters of this client.
    pub(crate) waiter_poll: WaiterPoll,
    /// The open files, to detect that others are at their paths.
    pub(crate) file: FileIdentity,
}

impl ClientState {
    /// Runs `act` in one write transaction. If it fails, the table is cleared because the file does not equal it.
    pub(crate) fn transact<T>(
        &mut self,
        clock: &Clock,
        act: impl FnOnce(&mut Self, StorageTime) -> Result<T>,
    ) -> Result<T> {
        let committed = self.counter;
        let outcome = self.try_transact(clock, act);
        if outcome.is_err() {
            self.statements.rollback();
            self.version = None;
            self.counter = committed;
            self.table.forget_records();
        }
        outcome
    }

    fn try_transact<T>(
        &mut self,
        clock: &Clock,
        act: impl FnOnce(&mut Self, StorageTime) -> Result<T>,
    ) -> Result<T> {
        let turn = self.turnstile.enter(clock)?;
        self.file.check()?;
        self.statements.begin()?;
        self.refresh()?;
        if self.counter.reserved - self.counter.last < MIN_RESERVED || self.counter.boot != self.boot_id {
            self.reserve()?;
        }
        let now = StorageTime::read(clock);
        let before = self.counter;
        let out = act(self, now)?;
        self.statements.check_in_transaction()?;
        let swept = self.counter.swept;
        if now >= swept + SWEEP_INTERVAL || swept > now {
            self.sweep(now)?;
        }
        self.save()?;
        if self.counter != before {
            self.statements.set_counter(self.counter)?;
        }
        self.statements.commit()?;
        // A commit into files that were removed before is not seen by any other process: it does not count.
        self.file.check()?;
        self.send_wakeups();
        drop(turn);
        if self.table.records().len() > MAX_CACHED_RECORDS {
            self.table.tidy(now);
        }
        Ok(out)
    }

    /// Clears the table and reads the counter again if another process has written.
    fn refresh(&mut self) -> Result<()> {
        let version = self.statements.data_version()?;
        if self.version != Some(version) {
            self.table.forget_records();
            let counter = self.statements.counter()?;
            if counter.last < self.counter.last {
                return Err(self.file.mark_restored());
            }
            self.counter = counter;
            self.version = Some(version);
        }
        Ok(())
    }

    /// Reserves a block of tokens on disk. After a power failure the last commits may be missing, so a new boot continues above
    /// every token that may have been granted.
    fn reserve(&mut self) -> Result<()> {
        let (statements, boot_id) = (&self.statements, self.boot_id);
        // The durability of a commit cannot be changed inside a transaction. Another process may write in between, hence the
        // `refresh` at the end.
        statements.rollback();
        self.counter = statements.durably(|| {
            statements.begin()?;
            let mut counter = statements.counter()?;
            if counter.boot != boot_id {
                let micros = i64::try_from(wall_time().as_micros()).unwrap_or(0);
                counter.last = counter.reserved.max(micros);
                counter.boot = boot_id;
            }
            counter.reserved = counter.last + RESERVED_BLOCK;
            statements.set_counter(counter)?;
            statements.commit().map(|()| counter)
        })?;
        self.statements.begin()?;
        self.refresh()
    }

    fn sweep(&mut self, now: StorageTime) -> Result<()> {
        for name in self.statements.overdue(now, SWEEP_LIMIT)? {
            self.decide(now, |table, context| table.sweep(&name, context))?;
        }
        self.table.tidy(now);
        self.counter.swept = now;
        self.statements.delete_unused_sightings().map(drop)
    }

    /// Sends the wake-ups of the commit: to this client directly, to each other client in one datagram.
    fn send_wakeups(&mut self) {
        let mut others: HashMap<ClientId, Vec<Wakeup>> = HashMap::new();
        for (client, wakeup) in self.table.take_pushes() {
            if client == self.client {
                self.pusher.push(wakeup);
            } else {
                others.entry(client).or_default().push(wakeup);
            }
        }
        for (client, wakeups) in others {
            self.sockets.send(client, &wakeups);
        }
    }
}
