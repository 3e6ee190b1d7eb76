//! The storage itself: a book of lines that all clients share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{ListPage, LockState, Op, Page, Reply, Wakeup};
use fencepost_core::book::{Book, Shelf};
use fencepost_core::clock::{Clock, Moment, wall_time};
use fencepost_core::line::{ClientId, Line, Ticket};
use fencepost_core::{Client, LockName, Options, Result, StorageId, Want};
use tokio::sync::mpsc::UnboundedSender;

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
    book: Book,
    desk: Desk,
    /// How many operations there were since everything was swept.
    unswept: usize,
}

/// After this many operations, and as many as there are locks and waiters, everything is swept: so it costs next to
/// nothing.
const SWEEP_AFTER: usize = 64;

/// Ends what has ended in locks that nobody asks for any more, and forgets them.
fn sweep(book: &mut Book, desk: &mut Desk, now: Moment) {
    let names: Vec<LockName> = book.lines().map(|(name, _)| name.clone()).collect();
    for name in names {
        // Nothing is loaded here, so nothing can fail.
        let _ = book.sweep(desk, &name, now);
    }
    book.tidy(now);
}

/// The locks that an operation names, and so may have opened a line for.
fn named(op: &Op) -> impl Iterator<Item = &LockName> {
    let (wants, name): (&[Want], _) = match op {
        Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt) => (&attempt.wants, None),
        Op::Renew(grant) | Op::Release(grant) => (grant.held(), None),
        Op::ReadCell(name) | Op::WriteCell { name, .. } | Op::Break { name, .. } => (&[], Some(name)),
    };
    wants.iter().map(|want| &want.name).chain(name)
}

/// What the book asks for: nothing is loaded, everybody who has a mailbox can be reached.
#[derive(Debug)]
struct Desk {
    last: u64,
    next_client: u64,
    mailboxes: HashMap<ClientId, UnboundedSender<Wakeup>>,
}

impl Shelf for Desk {
    fn load(&mut self, _name: &LockName) -> Result<Option<(Line, Vec<Ticket>)>> {
        Ok(None)
    }

    fn mint(&mut self) -> Result<u64> {
        self.last += 1;
        Ok(self.last)
    }

    fn reachable(&mut self, client: ClientId) -> bool {
        self.mailboxes.get(&client).is_some_and(|mailbox| !mailbox.is_closed())
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
        let desk = Desk { last, next_client: 1, mailboxes: HashMap::new() };
        Self {
            clock: clock.into(),
            id: StorageId::random(),
            faults: Faults::default(),
            state: Arc::new(Mutex::new(State { book: Book::default(), desk, unswept: 0 })),
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
        let client = ClientId(state.desk.next_client);
        state.desk.next_client += 1;
        drop(state);
        MemoryBackend::new(self.clone(), client)
    }

    /// What this storage is to do wrong.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Forgets every lock, ticket and cell, as a server that restarts empty. Tokens go on rising.
    pub fn forget(&self) {
        self.state().book = Book::default();
    }

    /// Forgets who holds this lock, as if somebody had deleted it behind the holder's back: for tests.
    pub fn forget_holders(&self, name: &LockName) {
        self.state().book.forget_holders(name);
    }

    /// How much is remembered, ended or not: for tests that look for leaks.
    pub fn count(&self) -> Count {
        let state = self.state();
        let lines = || state.book.lines().map(|(_, line)| line);
        Count {
            lines: state.book.len(),
            holders: lines().map(|line| line.holders.len()).sum(),
            tickets: state.book.tickets().len(),
            cells: lines().filter(|line| line.cell.is_some()).count(),
            departures: state.book.departures(),
        }
    }

    /// Whether there is nothing to remember: no holder, no waiter, no cell.
    pub fn is_clean(&self) -> bool {
        let mut state = self.state();
        state.book.tidy(self.clock.now());
        state.book.is_empty()
    }

    pub(crate) fn execute(&self, client: ClientId, ops: &[Op]) -> Vec<Result<Reply>> {
        let mut state = self.state();
        state.unswept += ops.len();
        let State { book, desk, unswept } = &mut *state;
        let now = self.clock.now();
        let replies = ops.iter().map(|op| book.execute(desk, client, op, now)).collect();
        let remembered = book.len() + book.tickets().len() + book.departures();
        if *unswept > SWEEP_AFTER.max(remembered) {
            *unswept = 0;
            sweep(book, desk, now);
        }
        let touched = std::mem::take(&mut book.touched);
        let changed = touched.holders.iter().map(|(name, _)| name);
        let changed = changed.chain(touched.tickets.iter().map(|(name, ..)| name));
        for name in changed.chain(ops.iter().flat_map(named)) {
            book.tidy_line(name);
        }
        for (to, push) in std::mem::take(&mut book.pushes) {
            if let Some(mailbox) = desk.mailboxes.get(&to) {
                // Whoever has gone will not miss it.
                let _ = mailbox.send(push);
            }
        }
        replies
    }

    pub(crate) fn listen(&self, client: ClientId, mailbox: UnboundedSender<Wakeup>) {
        self.state().desk.mailboxes.insert(client, mailbox);
    }

    pub(crate) fn hang_up(&self, client: ClientId) {
        self.state().desk.mailboxes.remove(&client);
    }

    pub(crate) fn inspect(&self, name: &LockName) -> LockState {
        let state = self.state();
        let line = state.book.line(name).cloned().unwrap_or_default();
        line.state(name, state.book.tickets(), self.clock.now(), wall_time())
    }

    pub(crate) fn list(&self, prefix: &str, page: &Page) -> ListPage {
        let state = self.state();
        let (now, wall) = (self.clock.now(), wall_time());
        let mut names: Vec<&LockName> = state
            .book
            .lines()
            .filter(|(name, _)| {
                name.as_str().starts_with(prefix) && page.after.as_ref().is_none_or(|after| *name > after)
            })
            .map(|(name, _)| name)
            .collect();
        names.sort();
        let mut locks = names
            .into_iter()
            .filter_map(|name| Some(state.book.line(name)?.state(name, state.book.tickets(), now, wall)))
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
