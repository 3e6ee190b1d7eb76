//! Writes the rows that have changed in the lock table.

use fencepost_core::Result;
use fencepost_core::lock_table::LockTable;
use fencepost_sql::{
    RowChanges, Value, cell_columns, cell_values, codec, holder_columns, holder_values, ticket_columns,
    ticket_values,
};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{ToSql, params, params_from_iter};

use super::Statements;

const PUT_HOLDER: &str = concat!(
    "INSERT INTO holders (",
    holder_columns!(),
    ", clock) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) \
     ON CONFLICT (name, owner) DO UPDATE SET until_ns = excluded.until_ns, clock = excluded.clock, \
        token = excluded.token, since_ms = excluded.since_ms, client = excluded.client, chosen = excluded.chosen"
);
const PUT_TICKET: &str = concat!(
    "INSERT INTO tickets (",
    ticket_columns!(),
    ", clock) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
     ON CONFLICT (name, seq) DO UPDATE SET until_ns = excluded.until_ns, clock = excluded.clock, \
        client = excluded.client"
);
const PUT_CELL: &str = concat!(
    "INSERT OR REPLACE INTO cells (",
    cell_columns!(),
    ", clock) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
);

impl Statements {
    /// Writes the changed rows, and deletes those that the table no longer has.
    pub(crate) fn save(&self, table: &LockTable) -> Result<()> {
        let changes = RowChanges::of(table);
        for (name, owner) in changes.removed_holders {
            let key = params![name.as_str(), owner.to_bytes()];
            self.run("DELETE FROM holders WHERE name = ?1 AND owner = ?2", key)?;
        }
        for (name, seq) in changes.removed_tickets {
            let key = params![name.as_str(), codec::signed(seq)];
            self.run("DELETE FROM tickets WHERE name = ?1 AND seq = ?2", key)?;
        }
        for name in changes.removed_cells {
            self.run("DELETE FROM cells WHERE name = ?1", params![name.as_str()])?;
        }
        for (name, holder) in changes.holders {
            self.put(PUT_HOLDER, holder_values(name, holder))?;
        }
        for (name, ticket) in changes.tickets {
            self.put(PUT_TICKET, ticket_values(name, ticket))?;
        }
        for (name, stored) in changes.cells {
            self.put(PUT_CELL, cell_values(name, stored))?;
        }
        Ok(())
    }

    /// Writes a row with these values and this process's clock.
    fn put<const N: usize>(&self, sql: &str, values: [Value<'_>; N]) -> Result<usize> {
        let clock = Value::Integer(self.clock);
        self.run(sql, params_from_iter(values.into_iter().chain([clock]).map(Param)))
    }
}

/// A value as SQLite's driver takes it.
struct Param<'a>(Value<'a>);

impl ToSql for Param<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match &self.0 {
            Value::Null => ValueRef::Null,
            Value::Integer(number) => ValueRef::Integer(*number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}
