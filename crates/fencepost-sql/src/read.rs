//! Converts rows that were read.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::record::{ClientId, Holder, StoredCell, Ticket};
use fencepost_core::{Attempt, Cell, Error, ErrorKind, FencingToken, LockName, Owner, Result};

use crate::{Labels, codec};

/// A row of a result, by columns from 0.
pub trait Row {
    /// Returns a number.
    ///
    /// # Errors
    /// If the column has no number.
    fn integer(&self, column: usize) -> Result<i64>;

    /// Returns a text, or `None` for null.
    ///
    /// # Errors
    /// If the column has no text.
    fn optional_text(&self, column: usize) -> Result<Option<String>>;

    /// Returns bytes.
    ///
    /// # Errors
    /// If the column has no bytes.
    fn bytes(&self, column: usize) -> Result<Vec<u8>>;

    /// Returns a text.
    ///
    /// # Errors
    /// If the column has no text.
    fn text(&self, column: usize) -> Result<String> {
        self.optional_text(column)?.ok_or_else(|| damaged("a text is null"))
    }

    /// Returns the name of the lock in column 0.
    ///
    /// # Errors
    /// If it is not a valid name.
    fn name(&self) -> Result<LockName> {
        LockName::new(self.text(0)?)
    }

    /// Returns an owner.
    ///
    /// # Errors
    /// If the column has no owner.
    fn owner(&self, column: usize) -> Result<Owner> {
        let bytes = self.bytes(column)?.try_into().map_err(|_| damaged("an owner has not 16 bytes"))?;
        Ok(Owner::from_bytes(bytes))
    }
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Backend, format!("a row of a lock is damaged: {what}"))
}

/// Converts a row with the columns [`holder_columns!`](crate::holder_columns).
///
/// # Errors
/// If it is damaged.
pub fn holder(row: &impl Row, labels: &mut Labels) -> Result<Holder> {
    Ok(Holder {
        owner: row.owner(1)?,
        token: FencingToken::new(codec::unsigned(row.integer(2)?)),
        mode: codec::mode_of(row.integer(3)?),
        ttl: codec::duration(row.integer(4)?),
        until: codec::time(row.integer(5)?),
        since: Duration::from_millis(codec::unsigned(row.integer(6)?)),
        client: ClientId(row.integer(7)?.cast_unsigned()),
        names: row.optional_text(8)?.map(|names| codec::names_of(&names)).transpose()?,
        chosen: usize::try_from(row.integer(9)?).unwrap_or(0),
        label: labels.interned(row.text(10)?),
        meta: codec::meta_of(&row.text(11)?),
    })
}

/// Converts a row with the columns [`ticket_columns!`](crate::ticket_columns).
///
/// # Errors
/// If it is damaged.
pub fn ticket(row: &impl Row, labels: &mut Labels) -> Result<Ticket> {
    let attempt = Attempt {
        owner: row.owner(2)?,
        wants: codec::wants_of(&row.text(8)?)?,
        rule: codec::rule_of(row.integer(7)?),
        ttl: codec::duration(row.integer(3)?),
        label: labels.interned(row.text(9)?),
        meta: codec::meta_of(&row.text(10)?),
    };
    Ok(Ticket {
        attempt: Arc::new(attempt),
        seq: codec::unsigned(row.integer(1)?),
        until: codec::time(row.integer(4)?),
        since: Duration::from_millis(codec::unsigned(row.integer(5)?)),
        client: ClientId(row.integer(6)?.cast_unsigned()),
    })
}

/// Converts a row with the columns [`cell_columns!`](crate::cell_columns).
///
/// # Errors
/// If it is damaged.
pub fn cell(row: &impl Row) -> Result<StoredCell> {
    let cell =
        Cell { token: FencingToken::new(codec::unsigned(row.integer(1)?)), bytes: row.bytes(5)?.into() };
    let keep = codec::keep_of(row.integer(2)?, row.integer(3)?);
    Ok(StoredCell { cell, keep, until: codec::time(row.integer(4)?) })
}
