//! Writes the rows that have changed in the lock table.

use std::time::Duration;

use fencepost_core::lock_table::{LockTable, RowKey};
use fencepost_core::record::{Holder, StoredCell, Ticket};
use fencepost_core::{LockName, Result};
use rusqlite::params;

use super::{Statements, signed};
use crate::rows;

impl Statements {
    /// Writes the changed rows, and deletes those that the table no longer has.
    pub(crate) fn save(&self, table: &LockTable) -> Result<()> {
        for key in table.changed() {
            match key {
                RowKey::Holder(name, owner) => {
                    match table.record(name).and_then(|record| record.holders.get(owner)) {
                        Some(holder) => self.put_holder(name, holder)?,
                        None => self.run(
                            "DELETE FROM holders WHERE name = ?1 AND owner = ?2",
                            params![name.as_str(), owner.to_bytes()],
                        )?,
                    }
                }
                RowKey::Ticket(name, seq, owner) => match table.tickets().get(&owner) {
                    Some(ticket) if ticket.seq == seq => self.put_ticket(name, ticket)?,
                    _ => self.run(
                        "DELETE FROM tickets WHERE name = ?1 AND seq = ?2",
                        params![name.as_str(), signed(seq)],
                    )?,
                },
                RowKey::Cell(name) => match table.record(name).and_then(|record| record.cell.as_ref()) {
                    Some(stored) => self.put_cell(name, stored)?,
                    None => self.run("DELETE FROM cells WHERE name = ?1", params![name.as_str()])?,
                },
            };
        }
        Ok(())
    }

    fn put_holder(&self, name: &LockName, holder: &Holder) -> Result<usize> {
        self.run(
            "INSERT INTO holders (name, owner, token, mode, ttl_ns, until_ns, clock, since_ms, client, names, chosen, \
                label, meta) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) \
             ON CONFLICT (name, owner) DO UPDATE SET until_ns = excluded.until_ns, clock = excluded.clock, \
                token = excluded.token, since_ms = excluded.since_ms, client = excluded.client, chosen = excluded.chosen",
            params![
                name.as_str(),
                holder.owner.to_bytes(),
                signed(holder.token.get()),
                rows::mode_number(holder.mode),
                rows::nanos(holder.ttl),
                rows::stamp(holder.until),
                self.clock,
                signed_millis(holder.since),
                holder.client.0.cast_signed(),
                holder.names.as_deref().map(rows::names_text),
                signed(holder.chosen as u64),
                &*holder.label,
                rows::meta_text(&holder.meta),
            ],
        )
    }

    fn put_ticket(&self, name: &LockName, ticket: &Ticket) -> Result<usize> {
        let attempt = &ticket.attempt;
        self.run(
            "INSERT INTO tickets (name, seq, owner, ttl_ns, until_ns, clock, since_ms, client, rule, wants, label, meta) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
             ON CONFLICT (name, seq) DO UPDATE SET until_ns = excluded.until_ns, clock = excluded.clock, \
                client = excluded.client",
            params![
                name.as_str(),
                signed(ticket.seq),
                attempt.owner.to_bytes(),
                rows::nanos(attempt.ttl),
                rows::stamp(ticket.until),
                self.clock,
                signed_millis(ticket.since),
                ticket.client.0.cast_signed(),
                rows::rule_number(attempt.rule),
                rows::wants_text(&attempt.wants),
                &*attempt.label,
                rows::meta_text(&attempt.meta),
            ],
        )
    }

    fn put_cell(&self, name: &LockName, stored: &StoredCell) -> Result<usize> {
        let (keep, keep_ns) = rows::keep_numbers(stored.keep);
        self.run(
            "INSERT OR REPLACE INTO cells (name, token, bytes, keep, keep_ns, until_ns, clock) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                name.as_str(),
                signed(stored.cell.token.get()),
                &*stored.cell.bytes,
                keep,
                keep_ns,
                rows::stamp(stored.until),
                self.clock,
            ],
        )
    }
}

fn signed_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
