//! The storage itself: a lock table that all clients share.

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

/// A storage in memory. Clones share it; each [`Memory::client`] is a client of its own, as another process would be.
#[derive(Clone, Debug)]
pub struct Memory {
    pub(crate) clock: Clock,
    pub(crate) id: StorageId,
    faults: Faults,
    state: Arc<Mutex<State>>,
}

/// How much a [`Memory`] remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Locks about which anything is remembered.
    pub lines: usize,
    /// Holders: one for each name of a grant.
    pub holders: usize,
    /// Waiters.
    pub tickets: usize,
    /// Cells.
    pub cells: usize,
    /// Owners that have left before they came.
    pub departures: usize,
}

#[derive(Debug)]
struct State {
    table: LockTable,
    /// The last number that was used for a token or a place in line.
    last: u64,
    next_client: u64,
    pushers: HashMap<ClientId, Pusher>,
    /// How many operations there were since everything was swept.
    unswept: usize,
}

/// After this many operations, and as many as there are locks and waiters, everything is swept: so it costs next to
/// nothing.
const SWEEP_AFTER: usize = 64;

const IN_MEMORY: &str = "everything is in memory";

impl State {
    /// Asks the table, with what it depends on. Every client that listens can be reached.
    fn ask<T>(
        &mut self,
        client: ClientId,
        now: StorageTime,
        ask: impl FnOnce(&mut LockTable, &mut Context<'_>) -> T,
    ) -> T {
        let Self { table, last, pushers, .. } = self;
        let mut numbers = std::iter::repeat_with(|| {
            *last += 1;
            *last
        });
        let reachable = |client| pushers.get(&client).is_some_and(|pusher: &Pusher| !pusher.is_closed());
        let wall = wall_time();
        ask(table, &mut Context { client, now, wall, numbers: &mut numbers, reachable: &reachable })
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An empty storage on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// An empty storage on this clock, which its clients use too.
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

    /// A new client of this storage.
    ///
    /// # Errors
    /// If its thread cannot be started.
    pub fn client(&self) -> Result<Client> {
        self.client_with(Options::new())
    }

    /// A new client of this storage with these options, on the storage's clock.
    ///
    /// # Errors
    /// If an option makes no sense, or its thread cannot be started.
    pub fn client_with(&self, options: Options) -> Result<Client> {
        options.clock(self.clock.clone()).client(Arc::new(self.backend()))
    }

    /// A new backend of this storage, for one client.
    pub fn backend(&self) -> MemoryBackend {
        let mut state = self.state();
        let client = ClientId(state.next_client);
        state.next_client += 1;
        drop(state);
        MemoryBackend::new(self.clone(), client)
    }

    /// What this storage is to do wrong.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Forgets every lock, ticket and cell, as a server that restarts empty. Tokens go on rising.
    pub fn forget(&self) {
        self.state().table = LockTable::default();
    }

    /// Forgets who holds this lock, as if its record had been deleted: for tests.
    pub fn forget_holders(&self, name: &LockName) {
        self.state().table.forget_holders(name);
    }

    /// How much is remembered, ended or not: for tests that look for leaks.
    pub fn count(&self) -> Count {
        let state = self.state();
        let lines = || state.table.records().map(|(_, line)| line).filter(|line| !line.is_empty());
        Count {
            lines: lines().count(),
            holders: lines().map(|line| line.holders.len()).sum(),
            tickets: state.table.tickets().len(),
            cells: lines().filter(|line| line.cell.is_some()).count(),
            departures: state.table.tombstones(),
        }
    }

    /// Whether there is nothing to remember: no holder, no waiter, no cell.
    pub fn is_clean(&self) -> bool {
        self.state().table.records().all(|(_, line)| line.is_empty())
    }

    pub(crate) fn execute(&self, client: ClientId, ops: &[Op]) -> Vec<Result<Reply>> {
        let mut state = self.state();
        let now = StorageTime::read(&self.clock);
        let decide = |op| {
            let reply = state.ask(client, now, |table, context| table.decide(op, context));
            reply.expect(IN_MEMORY)
        };
        let replies = ops.iter().map(decide).collect();
        state.unswept += ops.len();
        let table = &state.table;
        if state.unswept > SWEEP_AFTER.max(table.records().len() + table.tickets().len() + table.tombstones())
        {
            state.unswept = 0;
            state.ask(client, now, LockTable::sweep_all).expect(IN_MEMORY);
        }
        for (to, push) in state.table.take_pushes() {
            if let Some(pusher) = state.pushers.get(&to) {
                pusher.push(push);
            }
        }
        replies
    }

    pub(crate) fn listen(&self, client: ClientId, pusher: Pusher) {
        self.state().pushers.insert(client, pusher);
    }

    pub(crate) fn hang_up(&self, client: ClientId) {
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
