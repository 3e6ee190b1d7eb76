//! A storage that writes down what a book says has changed, and forgets the rest after every operation: what storages
//! that share the rules of the book rely on.

use std::collections::{BTreeMap, HashMap};
use std::future::{Future, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::book::{Book, Shelf, Touched};
use fencepost_core::clock::{Clock, ManualClock};
use fencepost_core::line::{ClientId, Holder, Line, StoredCell, Ticket};
use fencepost_core::{LockName, Owner, Result, StorageId};
use fencepost_testkit::{Leftovers, TestBench, state_machine};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};

/// What is written down.
#[derive(Default)]
struct Rows {
    last: u64,
    holders: BTreeMap<(LockName, Owner), Holder>,
    tickets: BTreeMap<(LockName, u64), Ticket>,
    cells: HashMap<LockName, StoredCell>,
}

impl Shelf for Rows {
    fn load(&mut self, name: &LockName) -> Result<Option<(Line, Vec<Ticket>)>> {
        let tickets = self.tickets.iter().filter(|((on, _), _)| on == name);
        let tickets: Vec<Ticket> = tickets.map(|(_, ticket)| ticket.clone()).collect();
        let holders = self.holders.iter().filter(|((on, _), _)| on == name);
        let line = Line {
            holders: holders.map(|(_, holder)| holder.clone()).collect(),
            queue: tickets.iter().map(|ticket| (ticket.seq, ticket.attempt.owner)).collect(),
            cell: self.cells.get(name).cloned(),
        };
        Ok(Some((line, tickets)))
    }

    fn mint(&mut self) -> Result<u64> {
        self.last += 1;
        Ok(self.last)
    }

    fn reachable(&mut self, _client: ClientId) -> bool {
        true
    }
}

impl Rows {
    fn write_down(&mut self, book: &Book, touched: Touched) {
        for (name, owner) in touched.holders {
            match book.line(&name).and_then(|line| line.holder(owner)) {
                Some(holder) => self.holders.insert((name, owner), holder.clone()),
                None => self.holders.remove(&(name, owner)),
            };
        }
        for (name, seq, owner) in touched.tickets {
            match book.tickets().get(&owner).filter(|ticket| ticket.seq == seq) {
                Some(ticket) => self.tickets.insert((name, seq), ticket.clone()),
                None => self.tickets.remove(&(name, seq)),
            };
        }
        for name in touched.cells {
            match book.line(&name).and_then(|line| line.cell.clone()) {
                Some(cell) => self.cells.insert(name, cell),
                None => self.cells.remove(&name),
            };
        }
    }
}

struct ShelfBackend {
    client: ClientId,
    clock: Clock,
    storage: Arc<Mutex<(Book, Rows)>>,
}

#[async_trait]
impl Backend for ShelfBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            scheme: "shelf",
            location: "shelf:".into(),
            scope: Scope::Process,
            storage_id: StorageId::from_bytes([7; 16]),
            min_ttl: Duration::from_millis(1),
            max_ttl: Duration::from_secs(3600),
            flights: 4,
            batch: 1024,
            may_share: None,
        }
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let mut storage = self.storage.lock().unwrap();
        let (book, rows) = &mut *storage;
        let now = self.clock.now();
        let replies = ops.iter().map(|op| book.execute(rows, self.client, op, now)).collect();
        let touched = std::mem::take(&mut book.touched);
        rows.write_down(book, touched);
        book.forget_lines();
        book.pushes.clear();
        replies
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        stream::pending().boxed()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let mut storage = self.storage.lock().unwrap();
        let (line, tickets) = storage.1.load(name)?.unwrap_or_default();
        let tickets = tickets.into_iter().map(|ticket| (ticket.attempt.owner, ticket)).collect();
        Ok(line.state(name, &tickets, self.clock.now(), Duration::ZERO))
    }

    async fn list(&self, _prefix: &str, _page: Page) -> Result<ListPage> {
        Ok(ListPage { locks: Vec::new(), next: None })
    }

    async fn close(&self) {}
}

/// The least that the state machine needs.
struct ShelfBench {
    clock: ManualClock,
    storage: Arc<Mutex<(Book, Rows)>>,
    clients: Mutex<u64>,
}

impl ShelfBench {
    fn new() -> Self {
        Self { clock: ManualClock::new(), storage: Arc::default(), clients: Mutex::default() }
    }
}

impl TestBench for ShelfBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        let mut clients = self.clients.lock().unwrap();
        *clients += 1;
        let backend: Arc<dyn Backend> = Arc::new(ShelfBackend {
            client: ClientId(*clients),
            clock: self.clock.clone().into(),
            storage: self.storage.clone(),
        });
        ready(Ok(backend))
    }

    fn peek(&self) -> impl Future<Output = Leftovers> + Send {
        ready(Leftovers::default())
    }

    fn steal(&self, _name: &LockName) -> impl Future<Output = ()> + Send {
        ready(())
    }

    fn cut(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    fn heal(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    fn manual_clock(&self) -> Option<ManualClock> {
        Some(self.clock.clone())
    }
}

#[test]
fn a_book_tells_everything_that_changed() {
    state_machine::check(1_000, ShelfBench::new);
}
