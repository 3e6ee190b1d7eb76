//! PostgreSQL with the rules in the client, as `fencepost-mysql` has them: one request locks the rows of a flight and fetches
//! them, the lock table of the core decides, a second request saves and commits. Both are pipelined, all values are in arrays.

mod statements;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Op, Reply};
use fencepost_core::clock::StorageTime;
use fencepost_core::lock_table::{Context, FIRST_WAITERS, LockTable, Needs};
use fencepost_core::record::{ClientId, LockRecord, Ticket};
use fencepost_core::{LockName, Owner, Result};
use fencepost_sql::{Labels, Row, RowChanges, Value, holder, holder_values, ticket, ticket_values};
use futures_util::future::{BoxFuture, join_all, join4};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

use self::statements::{CREATE, FREE, HOLD, JOIN, LEAVE, LOCK, OWN, SETUP, TABLES, WAITERS};
use super::prototype::{Connections, Flown, Prototype, failed, name_of};

const CLIENT: ClientId = ClientId(1);
/// The column of a row of a lock after those of its holder.
const LAST_TOKEN: usize = 12;
/// The column of a row of a ticket after its own.
const TIME: usize = 11;

/// The prototype.
pub(crate) struct ClientRules {
    connections: Connections<Connection>,
    labels: Mutex<Labels>,
}

struct Connection {
    client: Client,
    lock: Statement,
    create: Statement,
    waiters: Statement,
    own: Statement,
    hold: Statement,
    free: Statement,
    leave: Statement,
    join: Statement,
}

impl ClientRules {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let (url, namespace) = url.split_once("?namespace=").unwrap_or((url, "public"));
        let schema =
            format!("CREATE SCHEMA IF NOT EXISTS {namespace}; SET search_path = {namespace}; {SETUP}");
        let first = Connection::open(url, &format!("{schema}; {TABLES}")).await.map_err(failed)?;
        let second = Connection::open(url, &schema).await.map_err(failed)?;
        Ok(Self { connections: Connections::new([first, second]), labels: Mutex::default() })
    }
}

impl Connection {
    async fn open(url: &str, setup: &str) -> std::result::Result<Self, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(setup).await?;
        Ok(Self {
            lock: client.prepare(LOCK).await?,
            create: client.prepare(CREATE).await?,
            waiters: client.prepare(WAITERS).await?,
            own: client.prepare(OWN).await?,
            hold: client.prepare(HOLD).await?,
            free: client.prepare(FREE).await?,
            leave: client.prepare(LEAVE).await?,
            join: client.prepare(JOIN).await?,
            client,
        })
    }
}

#[async_trait]
impl Prototype for ClientRules {
    async fn fly(&self, ops: &[Op]) -> Flown {
        let connection = self.connections.get().await;
        let names: BTreeSet<&LockName> = ops.iter().map(name_of).collect::<Result<_>>()?;
        let names: Vec<&str> = names.into_iter().map(LockName::as_str).collect();
        let checking = ops.iter().filter(|op| matches!(op, Op::Check(_) | Op::Leave(_)));
        let own: Vec<Vec<u8>> =
            checking.filter_map(Op::owner).map(|owner| owner.to_bytes().to_vec()).collect();
        let fetched = self.fetch(&connection, &names, &own).await?;
        let mut table = LockTable::of_rows();
        let replies = decide(ops, fetched, &mut table)?;
        save(&connection, &RowChanges::of(&table)).await?;
        let wakeups = table.take_pushes().into_iter().map(|(_, wakeup)| wakeup).collect();
        Ok((replies, wakeups))
    }
}

/// What was fetched of the locks of a flight.
struct Fetched {
    now: StorageTime,
    last_token: u64,
    records: HashMap<LockName, (LockRecord, Vec<Ticket>)>,
    behind: HashMap<Owner, Ticket>,
}

impl ClientRules {
    async fn fetch(&self, connection: &Connection, names: &[&str], own: &[Vec<u8>]) -> Result<Fetched> {
        let Connection { client, lock, create, waiters, .. } = connection;
        let first = i64::try_from(FIRST_WAITERS).unwrap_or(i64::MAX);
        let own_rows = async {
            if own.is_empty() { Ok(Vec::new()) } else { client.query(&connection.own, &[&own]).await }
        };
        // Polled in this order, and sent without waiting for replies.
        let (begun, locked, queued, own) = join4(
            client.batch_execute("BEGIN"),
            client.query(lock, &[&names]),
            client.query(waiters, &[&names, &first]),
            own_rows,
        )
        .await;
        begun.map_err(failed)?;
        let (mut locked, mut queued) = (locked.map_err(failed)?, queued.map_err(failed)?);
        if locked.len() < names.len() {
            client.execute(create, &[&names]).await.map_err(failed)?;
            locked = client.query(lock, &[&names]).await.map_err(failed)?;
            queued = client.query(waiters, &[&names, &first]).await.map_err(failed)?;
        }
        self.decode(locked, queued, own.map_err(failed)?)
    }

    fn decode(
        &self,
        locked: Vec<tokio_postgres::Row>,
        queued: Vec<tokio_postgres::Row>,
        own: Vec<tokio_postgres::Row>,
    ) -> Result<Fetched> {
        let labels = &mut *self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let now = StorageTime::from_nanos(0);
        let mut fetched = Fetched { now, last_token: 0, records: HashMap::new(), behind: HashMap::new() };
        for row in locked.into_iter().map(PostgresRow) {
            let mut record = LockRecord::default();
            fetched.last_token = fetched.last_token.max(row.integer(LAST_TOKEN)?.cast_unsigned());
            if row.0.get::<_, Option<&[u8]>>(1).is_some() {
                record.holders.insert(holder(&row, labels)?);
            }
            fetched.records.insert(row.name()?, (record, Vec::new()));
        }
        for row in queued.into_iter().map(PostgresRow) {
            fetched.now = StorageTime::from_nanos(row.integer(TIME)?.cast_unsigned() * 1000);
            if row.optional_text(0)?.is_some() {
                let (record, tickets) = fetched.records.entry(row.name()?).or_default();
                let ticket = ticket(&row, labels)?;
                record.queue.insert(ticket.seq, ticket.attempt.owner);
                tickets.push(ticket);
            }
        }
        for (record, tickets) in fetched.records.values_mut() {
            let last = record.queue.last_key_value().filter(|_| tickets.len() >= FIRST_WAITERS);
            record.unknown_from = last.map(|(seq, _)| seq + 1);
        }
        for row in own.into_iter().map(PostgresRow) {
            let ticket = ticket(&row, labels)?;
            fetched.behind.insert(ticket.attempt.owner, ticket);
        }
        Ok(fetched)
    }
}

fn decide(ops: &[Op], mut fetched: Fetched, table: &mut LockTable) -> Result<Vec<Reply>> {
    let now = fetched.now;
    let first = fetched.last_token.max(now.as_nanos() / 1000) + 1;
    let mut context = Context {
        client: CLIENT,
        now,
        wall: Duration::from_nanos(now.as_nanos()),
        numbers: &mut (first..),
        reachable: &|_| true,
    };
    for (name, (record, tickets)) in fetched.records {
        table.insert(name, record, tickets);
    }
    let mut decide = |op| loop {
        match table.decide(op, &mut context) {
            Ok(reply) => return reply,
            Err(Needs::Ticket(_, owner)) => table.insert_ticket(owner, fetched.behind.remove(&owner)),
            Err(needs) => return Err(failed(format!("{needs:?}"))),
        }
    };
    ops.iter().map(&mut decide).collect()
}

async fn save(connection: &Connection, changes: &RowChanges<'_>) -> Result<()> {
    let Connection { client, hold, free, leave, join, .. } = connection;
    let held: Vec<_> = changes.holders.iter().map(|(name, holder)| holder_values(name, holder)).collect();
    let is_held = |name: &&LockName| changes.holders.iter().any(|(held, _)| held == name);
    let freed = changes.removed_holders.iter().map(|(name, _)| *name).filter(|name| !is_held(name));
    let freed: Vec<&str> = freed.map(LockName::as_str).collect();
    let left: Vec<&str> = changes.removed_tickets.iter().map(|(name, _)| name.as_str()).collect();
    let left_seq: Vec<i64> = changes.removed_tickets.iter().map(|(_, seq)| seq.cast_signed()).collect();
    let joined: Vec<_> = changes.tickets.iter().map(|(name, ticket)| ticket_values(name, ticket)).collect();
    let holder_columns = [0, 1, 2, 4, 5, 6, 7, 10, 11].map(|column| Column::of(&held, column));
    let ticket_columns: [Column<'_>; 11] = std::array::from_fn(|column| Column::of(&joined, column));
    let holders = holder_columns.each_ref().map(Column::parameter);
    let tickets = ticket_columns.each_ref().map(Column::parameter);
    let (free_values, leave_values): ([&(dyn ToSql + Sync); 1], [&(dyn ToSql + Sync); 2]) =
        ([&freed], [&left, &left_seq]);
    let mut sent: Vec<BoxFuture<'_, std::result::Result<u64, tokio_postgres::Error>>> = Vec::new();
    if !freed.is_empty() {
        sent.push(Box::pin(client.execute(free, &free_values)));
    }
    if !held.is_empty() {
        sent.push(Box::pin(client.execute(hold, &holders)));
    }
    if !left.is_empty() {
        sent.push(Box::pin(client.execute(leave, &leave_values)));
    }
    if !joined.is_empty() {
        sent.push(Box::pin(client.execute(join, &tickets)));
    }
    sent.push(Box::pin(async { client.batch_execute("COMMIT").await.map(|()| 0) }));
    join_all(sent).await.into_iter().collect::<std::result::Result<Vec<_>, _>>().map(drop).map_err(failed)
}

/// The values of one column of many rows.
enum Column<'a> {
    Integers(Vec<Option<i64>>),
    Texts(Vec<Option<&'a str>>),
    Bytes(Vec<Option<&'a [u8]>>),
}

impl<'a> Column<'a> {
    fn of<const N: usize>(rows: &'a [[Value<'a>; N]], column: usize) -> Self {
        let values = rows.iter().map(|row| &row[column]);
        match rows.first().map(|row| &row[column]) {
            Some(Value::Integer(_)) => Self::Integers(
                values
                    .map(|value| if let Value::Integer(number) = value { Some(*number) } else { None })
                    .collect(),
            ),
            Some(Value::Bytes(_)) => Self::Bytes(
                values
                    .map(|value| if let Value::Bytes(bytes) = value { Some(&**bytes) } else { None })
                    .collect(),
            ),
            _ => Self::Texts(
                values
                    .map(|value| if let Value::Text(text) = value { Some(&**text) } else { None })
                    .collect(),
            ),
        }
    }

    fn parameter(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Integers(values) => values,
            Self::Texts(values) => values,
            Self::Bytes(values) => values,
        }
    }
}

struct PostgresRow(tokio_postgres::Row);

impl Row for PostgresRow {
    fn integer(&self, column: usize) -> Result<i64> {
        self.0.try_get(column).map_err(failed)
    }

    fn optional_text(&self, column: usize) -> Result<Option<String>> {
        self.0.try_get(column).map_err(failed)
    }

    fn bytes(&self, column: usize) -> Result<Vec<u8>> {
        self.0.try_get(column).map_err(failed)
    }
}
