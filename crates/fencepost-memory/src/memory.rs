//! A lock table that all clients share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{ListPage, LockState, Op, Page, Reply};
use fencepost_core::clock::{Clock, StorageTime, wall_time};
use fencepost_core::lock_table::{Context, LockTable};
use fencepost_core::push::Pusher;
use fencepost_core::record::{ClientId, LockRecord};
use fencepost_core::{Client, LockName, Options, Result, StorageId};

use crate::backend::MemoryBackend;
use crate::faults::Faults;

/// A backend in memory. Clones share its locks; each [`Memory::client`] is a separate client, like one in another process.
#[derive(Clone, Debug)]
pub struct Memory {
    pub(crate) clock: Clock,
    pub(crate) id: StorageId,
    faults: Faults,
    state: Arc<Mutex<State>>,
}

/// The number of entries in a [`Memory`], expired ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Locks with at least one entry.
    pub locks: usize,
    /// Holders: one for each name of a grant.
    pub holders: usize,
    /// Tickets of waiters.
    pub tickets: usize,
    /// Cells.
    pub cells: usize,
    /// Tombstones: owners that left before their acquire arrived.
    pub tombstones: usize,
}

#[derive(Debug)]
struct State {
    table: LockTable,
    /// The last number that was used for a token or a queue position.
    last: u64,
    next_client: u64,
    pushers: HashMap<ClientId, Pusher>,
    /// The number of operations since the last sweep.
    unswept: usize,
}

/// The smallest number of operations between sweeps. A sweep also waits for as many operations as there are locks and waiters, so
/// that its cost per operation is constant.
const MIN_SWEEP_INTERVAL: usize = 64;

const IN_MEMORY: &str = "the table needs no fetch: all records are in memory";

impl State {
    /// Runs a decision of the table. Clients are reachable while they are subscribed to wake-ups.
    fn decide<T>(
        &mut self,
        client: ClientId,
        now: StorageTime,
        decision: impl FnOnce(&mut LockTable, &mut Context<'_>) -> T,
    ) -> T {
        let Self { table, last, pushers, .. } = self;
        let mut numbers = std::iter::repeat_with(|| {
            *last += 1;
            *last
        });
        let reachable = |client| pushers.get(&client).is_some_and(|pusher: &Pusher| !pusher.is_closed());
        let wall = wall_time();
        decision(table, &mut Context { client, now, wall, numbers: &mut numbers, reachable: &reachable })
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// Creates an empty backend on the system clock.
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// Creates an empty backend on this clock, which its clients use too.
    pub fn with_clock(clock: impl Into<Clock>) -> Self {
        let last = u64::try_from(wall_time().as_micros()).unwrap_or_default();
        let table = LockTable::default();
        let state = State { table, last, next_client: 1, pushers: HashMap::new(), unswept: 0 };
        Self {
            clock: clock.into(),
            id: StorageId::random(),
            faults: Faults::default(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Creates a client.
    ///
    /// # Errors
    /// If its thread cannot be started.
    pub fn client(&self) -> Result<Client> {
        self.client_with(Options::new())
    }

    /// Creates a client with these options, on the clock of this backend.
    ///
    /// # Errors
    /// If an option is invalid, or its thread cannot be started.
    pub fn client_with(&self, options: Options) -> Result<Client> {
        options.clock(self.clock.clone()).client(Arc::new(self.backend()))
    }

    /// Creates the backend of one client.
    pub fn backend(&self) -> MemoryBackend {
        let mut state = self.state();
        let client = ClientId(state.next_client);
        state.next_client += 1;
        drop(state);
        MemoryBackend::new(self.clone(), client)
    }

    /// Returns the faults to inject, which all clients share.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Removes all locks, tickets and cells, like a server that restarts empty. Tokens keep growing.
    pub fn forget(&self) {
        self.state().table = LockTable::default();
    }

    /// Removes the holders of this lock, as if its record had been deleted: for tests.
    pub fn forget_holders(&self, name: &LockName) {
        self.state().table.forget_holders(name);
    }

    /// Counts all entries, expired ones included: for tests that check for leaks.
    pub fn count(&self) -> Count {
        let state = self.state();
        let locks = || state.table.records().map(|(_, lock)| lock).filter(|lock| !lock.is_empty());
        Count {
            locks: locks().count(),
            holders: locks().map(|lock| lock.holders.len()).sum(),
            tickets: state.table.tickets().len(),
            cells: locks().filter(|lock| lock.cell.is_some()).count(),
            tombstones: state.table.tombstone_count(),
        }
    }

    /// Whether there is no holder, no waiter and no cell.
    pub fn is_clean(&self) -> bool {
        self.state().table.records().all(|(_, lock)| lock.is_empty())
    }

    pub(crate) fn execute(&self, client: ClientId, ops: &[Op]) -> Vec<Result<Reply>> {
        let mut state = self.state();
        let now = StorageTime::read(&self.clock);
        let execute = |op| {
            let reply = state.decide(client, now, |table, context| table.decide(op, context));
            reply.expect(IN_MEMORY)
        };
        let replies = ops.iter().map(execute).collect();
        state.unswept += ops.len();
        let table = &state.table;
        if state.unswept
            > MIN_SWEEP_INTERVAL.max(table.records().len() + table.tickets().len() + table.tombstone_count())
        {
            state.unswept = 0;
            state.decide(client, now, LockTable::sweep_all).expect(IN_MEMORY);
        }
        for (client, wakeup) in state.table.take_pushes() {
            if let Some(pusher) = state.pushers.get(&client) {
                pusher.push(wakeup);
            }
        }
        replies
    }

    pub(crate) fn subscribe(&self, client: ClientId, pusher: Pusher) {
        self.state().pushers.insert(client, pusher);
    }

    pub(crate) fn unsubscribe(&self, client: ClientId) {
        self.state().pushers.remove(&client);
    }

    pub(crate) fn inspect(&self, name: &LockName) -> LockState {
        let state = self.state();
        let (free, now) = (LockRecord::default(), StorageTime::read(&self.clock));
        state.table.record(name).unwrap_or(&free).state(name, state.table.tickets(), now, wall_time())
    }

    pub(crate) fn list(&self, prefix: &str, page: &Page) -> ListPage {
        let state = self.state();
        let (now, wall) = (StorageTime::read(&self.clock), wall_time());
        let mut names: Vec<&LockName> = state
            .table
            .records()
            .filter(|(name, _)| {
                name.as_str().starts_with(prefix) && page.after.as_ref().is_none_or(|after| *name > after)
            })
            .map(|(name, _)| name)
            .collect();
        names.sort();
        let mut locks = names
            .into_iter()
            .filter_map(|name| Some(state.table.record(name)?.state(name, state.table.tickets(), now, wall)))
            .filter(|lock| !lock.is_idle())
            .take(page.limit + 1)
            .collect::<Vec<_>>();
        let more = locks.len() > page.limit;
        locks.truncate(page.limit);
        let next = locks.last().filter(|_| more).map(|lock| lock.name.clone());
        ListPage { locks, next }
    }

    pub(crate) const MIN_TTL: Duration = Duration::from_millis(20);
    pub(crate) const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
