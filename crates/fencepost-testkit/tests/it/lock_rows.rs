//! A backend that writes the rows that a lock table reports as changed, and forgets everything else after every operation.
//! It fetches one waiter of a queue at first: databases that share the lock table rely on that.

use std::collections::{BTreeMap, HashMap};
use std::future::{Future, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::clock::{Clock, ManualClock, StorageTime};
use fencepost_core::lock_table::{Context, LockTable, Needs, RowKey};
use fencepost_core::record::{ClientId, Holder, LockRecord, StoredCell, Ticket};
use fencepost_core::{LockName, Owner, Result, StorageId};
use fencepost_testkit::{StoredCounts, TestBench, state_machine};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};

#[derive(Default)]
struct Rows {
    last: u64,
    holders: BTreeMap<(LockName, Owner), Holder>,
    tickets: BTreeMap<(LockName, u64), Ticket>,
    cells: HashMap<LockName, StoredCell>,
}

impl Rows {
    /// A queue with its first waiters.
    fn fetch(&self, name: &LockName, waiters: usize) -> (LockRecord, Vec<Ticket>) {
        let mut tickets =
            self.tickets.iter().filter(|((on, _), _)| on == name).map(|(_, ticket)| ticket.clone());
        let first: Vec<Ticket> = tickets.by_ref().take(waiters).collect();
        let holders = self.holders.iter().filter(|((on, _), _)| on == name);
        let record = LockRecord {
            holders: holders.map(|(_, holder)| holder.clone()).collect(),
            queue: first.iter().map(|ticket| (ticket.seq, ticket.attempt.owner)).collect(),
            unknown_from: tickets.next().map(|next| next.seq),
            cell: self.cells.get(name).cloned(),
        };
        (record, first)
    }

    fn write(&mut self, table: &LockTable) {
        for key in table.changed() {
            match key {
                RowKey::Holder(name, owner) => {
                    let holder = table.record(name).and_then(|record| record.holders.get(owner)).cloned();
                    put(&mut self.holders, (name.clone(), owner), holder);
                }
                RowKey::Ticket(name, seq, owner) => {
                    let ticket = table.tickets().get(&owner).filter(|ticket| ticket.seq == seq).cloned();
                    put(&mut self.tickets, (name.clone(), seq), ticket);
                }
                RowKey::Cell(name) => {
                    self.cells.remove(name);
                    let cell = table.record(name).and_then(|record| record.cell.clone());
                    self.cells.extend(cell.map(|cell| (name.clone(), cell)));
                }
            }
        }
    }
}

fn put<K: Ord, V>(rows: &mut BTreeMap<K, V>, key: K, row: Option<V>) {
    match row {
        Some(row) => rows.insert(key, row),
        None => rows.remove(&key),
    };
}

#[derive(Default)]
struct RowStore {
    table: Option<LockTable>,
    rows: Rows,
}

impl RowStore {
    fn execute(&mut self, client: ClientId, op: &Op, now: StorageTime) -> Result<Reply> {
        let Self { table, rows } = self;
        let table = table.get_or_insert_with(LockTable::of_rows);
        let reply = loop {
            let last = &mut rows.last;
            let mut numbers = std::iter::repeat_with(|| {
                *last += 1;
                *last
            });
            let mut context =
                Context { client, now, wall: Duration::ZERO, numbers: &mut numbers, reachable: &|_| true };
            match table.decide(op, &mut context) {
                Ok(reply) => break reply,
                Err(Needs::Records(names)) => {
                    assert!(names.is_sorted(), "{names:?}");
                    for name in names {
                        let waiters = if table.record(&name).is_some() { usize::MAX } else { 1 };
                        let (record, tickets) = rows.fetch(&name, waiters);
                        table.insert(name, record, tickets);
                    }
                }
                Err(Needs::Ticket(_, owner)) => {
                    let found = rows.tickets.values().find(|ticket| ticket.attempt.owner == owner);
                    table.insert_ticket(owner, found.cloned());
                }
                Err(Needs::Numbers) => unreachable!("there are enough"),
            }
        };
        rows.write(table);
        table.forget_records();
        reply
    }
}

struct RowsBackend {
    client: ClientId,
    clock: Clock,
    store: Arc<Mutex<RowStore>>,
}

#[async_trait]
impl Backend for RowsBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("rows", "rows:", Scope::Process, StorageId::from_bytes([7; 16]));
        info.min_ttl = Duration::from_millis(1);
        info.max_ttl = Duration::from_secs(3600);
        info.max_flights = 4;
        info.max_batch = 1024;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let mut store = self.store.lock().unwrap();
        let now = StorageTime::read(&self.clock);
        ops.iter().map(|op| store.execute(self.client, op, now)).collect()
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        stream::pending().boxed()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let (record, tickets) = self.store.lock().unwrap().rows.fetch(name, usize::MAX);
        let tickets = tickets.into_iter().map(|ticket| (ticket.attempt.owner, ticket)).collect();
        Ok(record.state(name, &tickets, StorageTime::read(&self.clock), Duration::ZERO))
    }

    async fn list(&self, _prefix: &str, _page: Page) -> Result<ListPage> {
        Ok(ListPage { locks: Vec::new(), next: None })
    }

    async fn close(&self) {}
}

/// The minimum that the state machine test needs.
struct RowsBench {
    clock: ManualClock,
    store: Arc<Mutex<RowStore>>,
    clients: Mutex<u64>,
}

impl RowsBench {
    fn new() -> Self {
        Self { clock: ManualClock::new(), store: Arc::default(), clients: Mutex::default() }
    }
}

impl TestBench for RowsBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        let mut clients = self.clients.lock().unwrap();
        *clients += 1;
        let backend: Arc<dyn Backend> = Arc::new(RowsBackend {
            client: ClientId(*clients),
            clock: self.clock.clone().into(),
            store: self.store.clone(),
        });
        ready(Ok(backend))
    }

    fn peek(&self) -> impl Future<Output = StoredCounts> + Send {
        ready(StoredCounts::default())
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
fn a_table_reports_what_it_needs_and_everything_that_changed() {
    state_machine::check(1_000, RowsBench::new);
}
