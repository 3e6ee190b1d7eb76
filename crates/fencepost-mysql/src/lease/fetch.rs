//! Locks the rows of locks and fetches everything about them, in one round trip.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use fencepost_core::backend::{Op, Reply};
use fencepost_core::clock::StorageTime;
use fencepost_core::lock_table::FIRST_WAITERS;
use fencepost_core::record::{ClientId, LockRecord, StoredCell, Ticket};
use fencepost_core::{Cell, FencingToken, Keep, LockName, Owner, Result};
use fencepost_sql::{Labels, Row, codec, holder, holder_columns, ticket, ticket_columns};

use crate::lease::layout::Tables;
use crate::literal::Sql;
use crate::session::{Rows, ServerRow, Session};

/// The server's time: that of the execution, which is after the locks; the session's time zone is UTC.
pub(crate) const NOW_MICROS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// From this many locks on, their first waiters are fetched by one common query: most have none.
const MANY_NAMES: usize = 8;
/// The maximum number of waiters that the common query returns.
const MANY_WAITERS: usize = 256;

/// What a flight needs.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// The locks, sorted: all transactions lock in this order, so none waits for one that waits for it.
    pub(crate) names: BTreeSet<LockName>,
    /// The locks whose whole queue is needed.
    pub(crate) whole: HashSet<LockName>,
    /// The owners whose tickets are needed, also if they are far behind.
    pub(crate) waiting: Vec<Owner>,
    /// The owners that may have tombstones.
    pub(crate) acquiring: Vec<Owner>,
    /// The locks whose cells are read.
    pub(crate) cells: BTreeSet<LockName>,
    /// Whether the waiters of each lock are fetched by a query of their own, because there are many.
    pub(crate) by_name: bool,
}

impl Wanted {
    /// Returns what these operations and sweeps need. An owner that was never sent before has no ticket and no tombstone.
    pub(crate) fn of(ops: &[Op], sweeps: &[LockName], was_sent: impl Fn(Owner) -> bool) -> Self {
        let mut wanted = Self::default();
        wanted.names.extend(ops.iter().flat_map(Op::names).chain(sweeps).cloned());
        wanted.whole.extend(sweeps.iter().cloned());
        for op in ops {
            match op {
                Op::Acquire { attempt, .. } if was_sent(attempt.owner) => {
                    wanted.waiting.push(attempt.owner);
                    wanted.acquiring.push(attempt.owner);
                }
                Op::ReadCell(name) => {
                    wanted.cells.insert(name.clone());
                }
                Op::Check(attempt) | Op::Leave(attempt) => wanted.waiting.push(attempt.owner),
                _ => {}
            }
        }
        wanted
    }
}

/// A part of what is fetched: the result of one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Nothing,
    /// The time, and each lock with its holders and its cell without the bytes.
    Locks,
    FirstWaiters,
    Waiting,
    CellBytes,
    Tombstones,
}

/// What a fetch does with the counter of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    Keep,
    /// Raises it to the server's time: on a replica that was promoted, or after a backup was restored, it may be behind tokens that
    /// were granted. Tokens are never ahead of the time, since fewer are minted than microseconds pass.
    Raise,
}

impl Counter {
    /// Returns what the next request on this session does. If that request fails, the one after it raises the counter, too.
    pub(crate) fn of(session: &mut Session) -> Self {
        if std::mem::take(&mut session.has_raised) { Self::Keep } else { Self::Raise }
    }
}

/// The columns of [`Part::Locks`]: those of a holder, of a cell, and the time.
static LOCK_COLUMNS: LazyLock<String> = LazyLock::new(|| {
    let of_holder = holder_columns!().replacen("name, ", "", 1).replace(", ", ", h.");
    format!("l.name, h.{of_holder}, c.token, c.keep, c.keep_ns, c.until_ns, {NOW_MICROS}")
});

/// The statements of a fetch, and what each of them returns.
pub(crate) struct Fetch {
    pub(crate) sql: Sql,
    parts: Vec<Part>,
}

impl Fetch {
    /// Begins a transaction and locks the rows of these locks.
    pub(crate) fn locking(tables: &Tables, wanted: &Wanted, is_galera: bool, counter: Counter) -> Self {
        let mut fetch = Self { sql: Sql::default(), parts: Vec::new() };
        fetch.next(Part::Nothing).text("START TRANSACTION");
        if counter == Counter::Raise {
            Self::raise(fetch.next(Part::Nothing), tables);
        }
        let update = if is_galera { "is_plain = 0, version = version + 1" } else { "is_plain = 0" };
        Self::lock(fetch.next(Part::Nothing), tables, &wanted.names, ("0", update));
        fetch.records(tables, wanted, FIRST_WAITERS);
        fetch
    }

    /// Writes the statement that raises the counter of tokens, which outlives a rollback.
    pub(crate) fn raise(sql: &mut Sql, tables: &Tables) {
        // A row with the number exists if another client does the same in the same microsecond.
        sql.text("INSERT IGNORE INTO ")
            .text(&tables.tokens)
            .text(" (id) VALUES (")
            .text(NOW_MICROS)
            .text(")");
    }

    /// Writes the statement that locks the rows of these locks, sorted, and creates those that do not exist, with this `is_plain`;
    /// `update` changes the others. It waits for other flights, but not for long for a program that keeps a row locked: see the
    /// session's settings.
    pub(crate) fn lock(
        sql: &mut Sql,
        tables: &Tables,
        names: &BTreeSet<LockName>,
        (is_plain, update): (&str, &str),
    ) {
        sql.text("INSERT INTO ").text(&tables.locks).text(" (name, is_plain) VALUES ").list(
            names,
            |sql, name| {
                sql.text("(").name(name).text(", ").text(is_plain).text(")");
            },
        );
        sql.text(" ON DUPLICATE KEY UPDATE ").text(update);
    }

    /// Reads these locks with this many of their first waiters, and locks nothing.
    pub(crate) fn reading(tables: &Tables, wanted: &Wanted, first_waiters: usize) -> Self {
        let mut fetch = Self { sql: Sql::default(), parts: Vec::new() };
        fetch.records(tables, wanted, first_waiters);
        fetch
    }

    fn next(&mut self, part: Part) -> &mut Sql {
        if !self.parts.is_empty() {
            self.sql.text("; ");
        }
        self.parts.push(part);
        &mut self.sql
    }

    fn records(&mut self, tables: &Tables, wanted: &Wanted, first_waiters: usize) {
        let sql =
            self.next(Part::Locks).text("SELECT ").text(&LOCK_COLUMNS).text(" FROM ").text(&tables.locks);
        sql.text(" AS l LEFT JOIN ").text(&tables.holders).text(" AS h ON h.name = l.name LEFT JOIN ");
        sql.text(&tables.cells).text(" AS c ON c.name = l.name WHERE l.name").among(&wanted.names);
        self.waiters(tables, wanted, first_waiters);
        if !wanted.waiting.is_empty() {
            let sql = self.next(Part::Waiting);
            sql.text(concat!("SELECT ", ticket_columns!(), " FROM ")).text(&tables.tickets);
            sql.text(" WHERE owner").owners(wanted.waiting.iter().copied());
        }
        if !wanted.cells.is_empty() {
            let sql = self.next(Part::CellBytes).text("SELECT name, bytes FROM ").text(&tables.cells);
            sql.text(" WHERE name").among(&wanted.cells);
        }
        if !wanted.acquiring.is_empty() {
            let sql = self.next(Part::Tombstones);
            sql.text("SELECT owner, until_ns FROM ").text(&tables.tombstones);
            sql.text(" WHERE owner").owners(wanted.acquiring.iter().copied());
        }
    }

    /// Fetches the first waiters of each lock with whether their clients are connected, or the whole queue where it is needed.
    fn waiters(&mut self, tables: &Tables, wanted: &Wanted, first_waiters: usize) {
        let select = |sql: &mut Sql| {
            sql.text(concat!(
                "SELECT ",
                ticket_columns!(),
                ", IS_USED_LOCK(CONCAT('fencepost.', client)) FROM "
            ));
            sql.text(&tables.tickets).text(" WHERE name");
        };
        let sql = self.next(Part::FirstWaiters);
        if wanted.by_name || wanted.names.len() < MANY_NAMES {
            sql.separated(" UNION ALL ", &wanted.names, |sql, name| {
                sql.text("(");
                select(sql);
                sql.text(" = ").name(name).text(" ORDER BY seq");
                if !wanted.whole.contains(name) {
                    sql.text(" LIMIT ").number(first_waiters);
                }
                sql.text(")");
            });
        } else {
            select(sql);
            sql.among(&wanted.names).text(" LIMIT ").number(MANY_WAITERS);
        }
    }
}

impl Sql {
    /// Writes ` IN (…)` with these owners.
    pub(crate) fn owners(&mut self, owners: impl IntoIterator<Item = Owner>) -> &mut Self {
        self.text(" IN (").list(owners, |sql, owner| {
            sql.owner(owner);
        });
        self.text(")")
    }
}

/// The column of [`Part::Locks`] at which those of the cell begin.
const CELL_AT: usize = 12;

/// What was fetched.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) now: StorageTime,
    pub(crate) records: HashMap<LockName, (LockRecord, Vec<Ticket>)>,
    /// Tickets of owners that are behind the first waiters.
    pub(crate) behind: HashMap<Owner, Ticket>,
    /// Whether clients with tickets are connected.
    pub(crate) connected: HashMap<ClientId, bool>,
    tombstones: HashMap<Owner, StorageTime>,
    /// Whether the common query of waiters was cut off: they have to be fetched lock by lock.
    pub(crate) is_cut_off: bool,
    /// The locks with a lease or a ticket that has more time left than its length: the server's clock was set back.
    pub(crate) set_back: BTreeSet<LockName>,
}

impl Fetched {
    pub(crate) fn decode(
        fetch: &Fetch,
        sets: Vec<Rows>,
        wanted: &Wanted,
        labels: &mut Labels,
    ) -> Result<Self> {
        let mut fetched = Self {
            now: StorageTime::from_nanos(0),
            records: wanted.names.iter().map(|name| (name.clone(), Default::default())).collect(),
            behind: HashMap::new(),
            connected: HashMap::new(),
            tombstones: HashMap::new(),
            is_cut_off: false,
            set_back: BTreeSet::new(),
        };
        for (part, rows) in fetch.parts.iter().zip(sets) {
            fetched.is_cut_off |= *part == Part::FirstWaiters
                && wanted.names.len() >= MANY_NAMES
                && !wanted.by_name
                && rows.len() == MANY_WAITERS;
            rows.iter().try_for_each(|row| fetched.add(*part, row, labels))?;
        }
        for (name, (record, tickets)) in &mut fetched.records {
            record.queue = tickets.iter().map(|ticket| (ticket.seq, ticket.attempt.owner)).collect();
            let is_partial = tickets.len() >= FIRST_WAITERS && !wanted.whole.contains(name);
            let last = record.queue.last_key_value().filter(|_| is_partial);
            record.unknown_from = last.map(|(seq, _)| seq + 1);
            for ticket in tickets {
                fetched.behind.remove(&ticket.attempt.owner);
            }
        }
        Ok(fetched)
    }

    /// Adds a row.
    fn add(&mut self, part: Part, row: &ServerRow, labels: &mut Labels) -> Result<()> {
        let now = self.now;
        match part {
            Part::Nothing => {}
            Part::Locks => {
                self.now = micros(row.integer(CELL_AT + 4)?);
                self.add_lock(row, labels)?;
            }
            Part::FirstWaiters => {
                let mut ticket = ticket(row, labels)?;
                self.limit(row, &mut ticket.until, now + ticket.attempt.ttl)?;
                self.connected.insert(ticket.client, row.optional_integer(11)?.is_some());
                self.record(row)?.1.push(ticket);
            }
            Part::Waiting => {
                let mut ticket = ticket(row, labels)?;
                self.limit(row, &mut ticket.until, now + ticket.attempt.ttl)?;
                self.behind.insert(ticket.attempt.owner, ticket);
            }
            Part::CellBytes => {
                let bytes: Arc<[u8]> = row.bytes(1)?.into();
                if let Some(stored) = &mut self.record(row)?.0.cell {
                    stored.cell.bytes = bytes;
                }
            }
            Part::Tombstones => {
                self.tombstones.insert(row.owner(0)?, codec::time(row.integer(1)?));
            }
        }
        Ok(())
    }

    fn add_lock(&mut self, row: &ServerRow, labels: &mut Labels) -> Result<()> {
        let now = self.now;
        if row.optional_integer(2)?.is_some() {
            let mut holder = holder(row, labels)?;
            self.limit(row, &mut holder.until, now + holder.ttl)?;
            self.record(row)?.0.holders.insert(holder);
        }
        if let Some(token) = row.optional_integer(CELL_AT)? {
            let cell = Cell { token: FencingToken::new(codec::unsigned(token)), bytes: [].into() };
            let keep = codec::keep_of(row.integer(CELL_AT + 1)?, row.integer(CELL_AT + 2)?);
            let mut until = codec::time(row.integer(CELL_AT + 3)?);
            if let Keep::For(keep) = keep {
                self.limit(row, &mut until, now + keep)?;
            }
            self.record(row)?.0.cell = Some(StoredCell { cell, keep, until });
        }
        Ok(())
    }

    /// Shortens what ends later than it can.
    fn limit(&mut self, row: &impl Row, until: &mut StorageTime, latest: StorageTime) -> Result<()> {
        if *until > latest {
            *until = latest;
            self.set_back.insert(row.name()?);
        }
        Ok(())
    }

    fn record(&mut self, row: &impl Row) -> Result<&mut (LockRecord, Vec<Ticket>)> {
        Ok(self.records.entry(row.name()?).or_default())
    }

    /// Returns the reply to an operation of an owner with a tombstone.
    pub(crate) fn reply_of_tombstone(&self, op: &Op) -> Option<Reply> {
        let Op::Acquire { attempt, .. } = op else { return None };
        self.tombstones.get(&attempt.owner).is_some_and(|until| *until > self.now).then_some(Reply::Busy)
    }
}

/// Returns the time that [`NOW_MICROS`] selects.
pub(crate) fn micros(micros: i64) -> StorageTime {
    StorageTime::from_nanos(u64::try_from(micros).unwrap_or(0).saturating_mul(1000))
}
