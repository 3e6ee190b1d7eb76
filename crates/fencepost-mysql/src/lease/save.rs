//! Writes what a flight has decided, and commits, in one round trip.

use std::collections::BTreeSet;

use fencepost_core::backend::Wakeup;
use fencepost_core::clock::StorageTime;
use fencepost_core::lock_table::LockTable;
use fencepost_core::record::ClientId;
use fencepost_core::{LockName, Owner};
use fencepost_sql::{
    RowChanges, Value, cell_columns, cell_values, codec, holder_columns, holder_values, ticket_columns,
    ticket_values,
};

use crate::lease::layout::Tables;
use crate::literal::{Sql, UNMINTED};

/// The length from which statements are sent in several requests: half of the smallest limit that servers have by default.
pub(crate) const MAX_REQUEST: usize = 1 << 20;

/// The columns of a key, and their values.
pub(crate) type Key<'k, const N: usize> = [(&'static str, Value<'k>); N];

/// What a flight has decided.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) tombstones: Vec<(Owner, StorageTime)>,
    /// Pushes to other clients.
    pub(crate) notices: Vec<(ClientId, Wakeup)>,
    /// How many numbers were used.
    pub(crate) numbers: u64,
    /// The locks that are no longer in use.
    pub(crate) unused: Vec<LockName>,
    /// The locks of which nothing but a holder is stored.
    pub(crate) plain: BTreeSet<LockName>,
    /// The server's time.
    pub(crate) now: StorageTime,
    /// The locks of which something ends later than it can.
    pub(crate) set_back: BTreeSet<LockName>,
}

impl Decided {
    /// Returns nothing decided yet, at this time of the server.
    pub(crate) fn at(now: StorageTime) -> Self {
        Self {
            tombstones: Vec::new(),
            notices: Vec::new(),
            numbers: 0,
            unused: Vec::new(),
            plain: BTreeSet::new(),
            now,
            set_back: BTreeSet::new(),
        }
    }
}

/// Requests that save a flight: statements, of which the last is the commit.
#[derive(Debug, Default)]
pub(crate) struct Save {
    pub(crate) requests: Vec<Statements>,
}

/// Statements that are sent together.
#[derive(Debug, Default)]
pub(crate) struct Statements {
    pub(crate) sql: Sql,
    pub(crate) count: usize,
}

impl Statements {
    /// Begins another statement.
    pub(crate) fn next(&mut self) -> &mut Sql {
        if self.count > 0 {
            self.sql.text("; ");
        }
        self.count += 1;
        &mut self.sql
    }

    /// Mints numbers; the rows of the locks must be locked: each grant of a lock has a larger one than all before it. The rows of
    /// the numbers are swept later.
    pub(crate) fn mint(&mut self, tables: &Tables, count: u64) {
        let sql = self.next().text("INSERT INTO ").text(&tables.tokens);
        sql.text(" (id) VALUES ").list(0..count, |sql, _| {
            sql.text("(NULL)");
        });
    }
}

impl Save {
    pub(crate) fn new(tables: &Tables, table: &LockTable, decided: &Decided) -> Self {
        let mut save = Self { requests: vec![Statements::default()] };
        if decided.numbers > 0 {
            // The first statement, because the driver reports the number with it.
            save.requests[0].mint(tables, decided.numbers);
        }
        let changes = RowChanges::of(table);
        save.remove(tables, &changes, decided);
        save.put(tables, &changes);
        save.shorten(tables, decided);
        save.put_notes(tables, decided);
        if !decided.plain.is_empty() {
            let sql = save
                .next()
                .text("UPDATE ")
                .text(&tables.locks)
                .text(" FORCE INDEX (PRIMARY) SET is_plain = 1 WHERE name");
            sql.among(&decided.plain);
        }
        save.next().text("COMMIT");
        save
    }

    /// Begins another statement.
    pub(crate) fn next(&mut self) -> &mut Sql {
        if self.requests.last().is_none_or(|request| request.sql.len() > MAX_REQUEST) {
            self.requests.push(Statements::default());
        }
        let at = self.requests.len() - 1;
        self.requests[at].next()
    }

    fn put(&mut self, tables: &Tables, changes: &RowChanges<'_>) {
        if !changes.holders.is_empty() {
            let sql = self.next().text("INSERT INTO ").text(&tables.holders);
            sql.text(concat!(" (", holder_columns!(), ") VALUES ")).list(
                &changes.holders,
                |sql, (name, holder)| {
                    sql.row_with(&holder_values(name, holder), 2, holder.token.get());
                },
            );
            sql.text(
                " ON DUPLICATE KEY UPDATE until_ns = VALUES(until_ns), token = VALUES(token), since_ms = VALUES(since_ms), \
                 client = VALUES(client), chosen = VALUES(chosen)",
            );
        }
        if !changes.tickets.is_empty() {
            let sql = self.next().text("INSERT INTO ").text(&tables.tickets);
            sql.text(concat!(" (", ticket_columns!(), ") VALUES ")).list(
                &changes.tickets,
                |sql, (name, ticket)| {
                    sql.row_with(&ticket_values(name, ticket), 1, ticket.seq);
                },
            );
            sql.text(" ON DUPLICATE KEY UPDATE until_ns = VALUES(until_ns), client = VALUES(client)");
        }
        for (name, stored) in &changes.cells {
            let sql = self.next().text("REPLACE INTO ").text(&tables.cells);
            sql.text(concat!(" (", cell_columns!(), ") VALUES "));
            sql.row_with(&cell_values(name, stored), 1, stored.cell.token.get());
        }
    }

    fn remove(&mut self, tables: &Tables, changes: &RowChanges<'_>, decided: &Decided) {
        let holders = changes.removed_holders.iter().map(|(name, owner)| {
            [("name", Value::from(name.as_str())), ("owner", Value::Bytes(owner.to_bytes().to_vec().into()))]
        });
        self.delete(&tables.holders, holders);
        // A ticket that was never written need not be deleted.
        let written = changes.removed_tickets.iter().filter(|(_, seq)| *seq < UNMINTED);
        let tickets = written
            .map(|(name, seq)| [("name", Value::from(name.as_str())), ("seq", codec::signed(*seq).into())]);
        self.delete(&tables.tickets, tickets);
        self.delete(&tables.cells, changes.removed_cells.iter().map(|name| [("name", name.as_str().into())]));
        self.delete(&tables.locks, decided.unused.iter().map(|name| [("name", name.as_str().into())]));
    }

    /// Deletes rows by their keys.
    pub(crate) fn delete<'k, const N: usize>(&mut self, table: &str, keys: impl Iterator<Item = Key<'k, N>>) {
        let keys: Vec<_> = keys.collect();
        if !keys.is_empty() {
            self.next().text("DELETE d FROM ").keyed(table, &keys).text(" WHERE ").matching(&keys);
        }
    }

    /// Shortens leases, tickets and cells after the server's clock was set back: they would end much later, and be shortened
    /// by every flight again.
    fn shorten(&mut self, tables: &Tables, decided: &Decided) {
        let now = codec::stamp(decided.now);
        for name in &decided.set_back {
            for (table, length, condition) in [
                (&tables.holders, "ttl_ns", ""),
                (&tables.tickets, "ttl_ns", ""),
                (&tables.cells, "keep_ns", " AND keep = 1"),
            ] {
                let sql =
                    self.next().text("UPDATE ").text(table).text(" FORCE INDEX (PRIMARY) SET until_ns = ");
                sql.text(length).text(" + ").number(now).text(" WHERE name = ").name(name);
                sql.text(" AND until_ns > ").text(length).text(" + ").number(now).text(condition);
            }
        }
    }

    fn put_notes(&mut self, tables: &Tables, decided: &Decided) {
        if !decided.tombstones.is_empty() {
            let sql = self.next().text("REPLACE INTO ").text(&tables.tombstones);
            sql.text(" (owner, until_ns) VALUES ").list(&decided.tombstones, |sql, (owner, until)| {
                sql.text("(").owner(*owner).text(", ").number(codec::stamp(*until)).text(")");
            });
        }
        if !decided.notices.is_empty() {
            let now = decided.now;
            let sql = self.next().text("REPLACE INTO ").text(&tables.notices);
            sql.text(" (client, owner, token, ttl_ns, chosen, until_ns) VALUES ");
            sql.list(&decided.notices, |sql, (client, wakeup)| {
                sql.notice(*client, wakeup, now);
            });
        }
    }
}

/// How long a notice without a lease is kept.
const NOTICE_LIFE: std::time::Duration = std::time::Duration::from_secs(60);

impl Sql {
    /// Writes a table `d` of which the rows with these keys are wanted; the condition is [`Sql::matching`]. With several keys it is
    /// a join with them, `k`: a condition on several may make the server scan a small table, which waits for the locks of other
    /// transactions; a join in this order finds each row by its key.
    pub(crate) fn keyed<const N: usize>(&mut self, table: &str, keys: &[Key<'_, N>]) -> &mut Self {
        if keys.len() > 1 {
            self.text("(").separated(" UNION ALL ", keys, |sql, key| {
                sql.text("SELECT ").list(key, |sql, (column, value)| {
                    sql.value(value).text(" AS ").text(column);
                });
            });
            self.text(") AS k STRAIGHT_JOIN ");
        }
        self.text(table).text(" AS d").text(if keys.len() > 1 { " FORCE INDEX (PRIMARY)" } else { "" })
    }

    /// Writes the condition that a row `d` of [`Sql::keyed`] has one of these keys, of which there is at least one.
    pub(crate) fn matching<const N: usize>(&mut self, keys: &[Key<'_, N>]) -> &mut Self {
        self.separated(" AND ", &keys[0], |sql, (column, value)| {
            sql.text("d.").text(column).text(" = ");
            if keys.len() > 1 {
                sql.text("k.").text(column);
            } else {
                sql.value(value);
            }
        })
    }

    /// Writes a row; `replace` writes a column in place of its value, or returns false.
    pub(crate) fn row(&mut self, values: &[Value<'_>], mut replace: impl FnMut(&mut Self, usize) -> bool) {
        self.text("(").list(values.iter().enumerate(), |sql, (column, value)| {
            if !replace(sql, column) {
                sql.value(value);
            }
        });
        self.text(")");
    }

    /// Writes a row, whose column `minted` is this number.
    fn row_with(&mut self, values: &[Value<'_>], minted: usize, number: u64) {
        self.row(values, |sql, column| {
            if column == minted {
                sql.minted(number);
            }
            column == minted
        });
    }

    fn notice(&mut self, client: ClientId, wakeup: &Wakeup, now: StorageTime) {
        self.text("(").number(client.0.cast_signed()).text(", ");
        match wakeup {
            Wakeup::Granted { attempt, award } => {
                self.owner(attempt.owner).text(", ").minted(award.token.get()).text(", ");
                self.number(codec::nanos(award.ttl)).text(", ").number(award.chosen).text(", ");
                self.number(codec::stamp(now + award.ttl)).text(")");
            }
            Wakeup::Lost { owner, .. } | Wakeup::Check { owner } => {
                self.owner(*owner).text(", NULL, 0, 0, ").number(codec::stamp(now + NOTICE_LIFE)).text(")");
            }
            // The lock table pushes nothing else.
            Wakeup::Offered { attempt } => {
                self.owner(attempt.owner).text(", NULL, 0, 0, 0)");
            }
            Wakeup::CheckAll => {
                self.bytes(&[0; 16]).text(", NULL, 0, 0, 0)");
            }
        }
    }
}
