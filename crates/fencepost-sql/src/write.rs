//! The values of rows to write, and which rows have changed.

use std::time::Duration;

use fencepost_core::lock_table::{LockTable, RowKey};
use fencepost_core::record::{Holder, StoredCell, Ticket};
use fencepost_core::{LockName, Owner};

use crate::{Value, codec};

/// The rows that a [`LockTable`] has changed.
#[derive(Debug, Default)]
pub struct RowChanges<'a> {
    /// Holders to insert or update.
    pub holders: Vec<(&'a LockName, &'a Holder)>,
    /// Holders to delete.
    pub removed_holders: Vec<(&'a LockName, Owner)>,
    /// Tickets to insert or update.
    pub tickets: Vec<(&'a LockName, &'a Ticket)>,
    /// Tickets to delete, by position.
    pub removed_tickets: Vec<(&'a LockName, u64)>,
    /// Cells to insert or update.
    pub cells: Vec<(&'a LockName, &'a StoredCell)>,
    /// Cells to delete.
    pub removed_cells: Vec<&'a LockName>,
}

impl<'a> RowChanges<'a> {
    /// Returns the changes of a table, each list sorted by the key of its rows.
    pub fn of(table: &'a LockTable) -> Self {
        let mut changes = Self::default();
        for key in table.changed() {
            match key {
                RowKey::Holder(name, owner) => {
                    match table.record(name).and_then(|record| record.holders.get(owner)) {
                        Some(holder) => changes.holders.push((name, holder)),
                        None => changes.removed_holders.push((name, owner)),
                    }
                }
                RowKey::Ticket(name, seq, owner) => match table.tickets().get(&owner) {
                    Some(ticket) if ticket.seq == seq => changes.tickets.push((name, ticket)),
                    _ => changes.removed_tickets.push((name, seq)),
                },
                RowKey::Cell(name) => match table.record(name).and_then(|record| record.cell.as_ref()) {
                    Some(stored) => changes.cells.push((name, stored)),
                    None => changes.removed_cells.push(name),
                },
            }
        }
        changes
    }
}

/// Returns the values of the columns [`holder_columns!`](crate::holder_columns).
pub fn holder_values<'a>(name: &'a LockName, holder: &'a Holder) -> [Value<'a>; 12] {
    [
        name.as_str().into(),
        owner_value(holder.owner),
        codec::signed(holder.token.get()).into(),
        codec::mode_number(holder.mode).into(),
        codec::nanos(holder.ttl).into(),
        codec::stamp(holder.until).into(),
        millis(holder.since).into(),
        holder.client.0.cast_signed().into(),
        holder.names.as_deref().map(codec::names_text).into(),
        codec::signed(holder.chosen as u64).into(),
        (&*holder.label).into(),
        codec::meta_text(&holder.meta).into(),
    ]
}

/// Returns the values of the columns [`ticket_columns!`](crate::ticket_columns).
pub fn ticket_values<'a>(name: &'a LockName, ticket: &'a Ticket) -> [Value<'a>; 11] {
    let attempt = &ticket.attempt;
    [
        name.as_str().into(),
        codec::signed(ticket.seq).into(),
        owner_value(attempt.owner),
        codec::nanos(attempt.ttl).into(),
        codec::stamp(ticket.until).into(),
        millis(ticket.since).into(),
        ticket.client.0.cast_signed().into(),
        codec::rule_number(attempt.rule).into(),
        codec::wants_text(&attempt.wants).into(),
        (&*attempt.label).into(),
        codec::meta_text(&attempt.meta).into(),
    ]
}

/// Returns the values of the columns [`cell_columns!`](crate::cell_columns).
pub fn cell_values<'a>(name: &'a LockName, stored: &'a StoredCell) -> [Value<'a>; 6] {
    let (keep, keep_ns) = codec::keep_numbers(stored.keep);
    [
        name.as_str().into(),
        codec::signed(stored.cell.token.get()).into(),
        keep.into(),
        keep_ns.into(),
        codec::stamp(stored.until).into(),
        Value::Bytes((&*stored.cell.bytes).into()),
    ]
}

fn owner_value(owner: Owner) -> Value<'static> {
    Value::Bytes(owner.to_bytes().to_vec().into())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fencepost_core::clock::StorageTime;
    use fencepost_core::record::ClientId;
    use fencepost_core::{Attempt, Cell, FencingToken, Keep, Mode, Result, Rule, Want};

    use super::*;
    use crate::{Labels, Row, cell, cell_columns, holder, holder_columns, ticket, ticket_columns};

    impl Row for &[Value<'_>] {
        fn integer(&self, column: usize) -> Result<i64> {
            let Value::Integer(number) = self[column] else { panic!("column {column} is no number") };
            Ok(number)
        }

        fn optional_text(&self, column: usize) -> Result<Option<String>> {
            match &self[column] {
                Value::Null => Ok(None),
                Value::Text(text) => Ok(Some(text.to_string())),
                other => panic!("{other:?} is no text"),
            }
        }

        fn bytes(&self, column: usize) -> Result<Vec<u8>> {
            let Value::Bytes(bytes) = &self[column] else { panic!("column {column} is no bytes") };
            Ok(bytes.to_vec())
        }
    }

    fn columns(list: &str) -> usize {
        list.split(", ").count()
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let name = LockName::new("a b").unwrap();
        let until = StorageTime::from_nanos(7_000);
        let wants = vec![Want { name: name.clone(), mode: Mode::Shared }];
        let (owner, ttl) = (Owner::random(), Duration::from_secs(3));
        let meta: Arc<[(String, String)]> = [("team".to_owned(), "ops".to_owned())].into();
        let since = Duration::from_millis(9);
        let client = ClientId(u64::MAX - 1);
        let held = Holder {
            owner,
            token: FencingToken::new(5),
            mode: Mode::Semaphore { permits: 2 },
            ttl,
            until,
            since,
            client,
            names: Some([name.clone()].into()),
            chosen: 1,
            label: "me".into(),
            meta: meta.clone(),
        };
        let values = holder_values(&name, &held);
        assert_eq!(values.len(), columns(holder_columns!()));
        let read = holder(&&values[..], &mut Labels::default()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{held:?}"));
        assert_eq!((&values[..]).name().unwrap(), name);

        let attempt = Attempt { owner, wants, rule: Rule::Any, ttl, label: "me".into(), meta };
        let waiting = Ticket { attempt: Arc::new(attempt), seq: 4, until, since, client };
        let values = ticket_values(&name, &waiting);
        assert_eq!(values.len(), columns(ticket_columns!()));
        let read = ticket(&&values[..], &mut Labels::default()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{waiting:?}"));

        let stored = StoredCell {
            cell: Cell { token: FencingToken::new(5), bytes: [1, 0, 2].into() },
            keep: Keep::For(ttl),
            until,
        };
        let values = cell_values(&name, &stored);
        assert_eq!(values.len(), columns(cell_columns!()));
        assert_eq!(format!("{:?}", cell(&&values[..]).unwrap()), format!("{stored:?}"));
    }

    #[test]
    fn a_damaged_row_is_an_error() {
        let values = [Value::Null, Value::Bytes(vec![1, 2].into())];
        assert!((&values[..]).text(0).is_err());
        assert!((&values[..]).owner(1).is_err());
    }
}
