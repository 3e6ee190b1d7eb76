//! Decodes the rows that a flight returns.

use std::time::Duration;

use fencepost_core::backend::{Cell, Op, Reply};
use fencepost_core::{Award, Error, ErrorKind, FencingToken, LockName, Result};
use fencepost_sql::codec;
use tokio_postgres::Row;

/// The code of a row that is a push to this client.
pub(crate) const PUSH: i32 = 20;
/// The code of an operation whose row another transaction has locked.
pub(crate) const LOCKED: i32 = 13;

/// One row of a flight's result.
#[derive(Debug)]
pub(crate) struct ReplyRow {
    /// The number of the operation, from 1; 0 for none.
    pub(crate) op: usize,
    pub(crate) code: i32,
    token: Option<i64>,
    number: Option<i64>,
    pub(crate) note: Option<String>,
    bytes: Option<Vec<u8>>,
}

impl ReplyRow {
    pub(crate) fn read(row: &Row) -> std::result::Result<Self, tokio_postgres::Error> {
        Ok(Self {
            op: usize::try_from(row.try_get::<_, i32>(0)?).unwrap_or_default(),
            code: row.try_get(1)?,
            token: row.try_get(2)?,
            number: row.try_get(3)?,
            note: row.try_get(4)?,
            bytes: row.try_get(5)?,
        })
    }

    /// Returns the reply to this operation; `None` if the row of its lock is locked by another transaction.
    pub(crate) fn reply(self, op: &Op, location: &str) -> Result<Option<Reply>> {
        let ttl = op.ttl().unwrap_or_default();
        let token = FencingToken::new(codec::unsigned(self.token.unwrap_or_default()));
        let number = codec::unsigned(self.number.unwrap_or_default());
        let award = || Award {
            token,
            ttl,
            chosen: usize::try_from(number).unwrap_or_default(),
            elapsed: Duration::ZERO,
        };
        let waiting = Reply::Waiting { check_after: Duration::from_millis(number) };
        Ok(Some(match self.code {
            0 => Reply::Busy,
            1 => Reply::Released,
            2 => Reply::Renewed { ttl },
            3 => Reply::NotHeld,
            4 => Reply::Left,
            5 => Reply::NoTicket,
            6 => Reply::Written,
            7 => Reply::Granted(award()),
            8 => Reply::AlreadyGranted(award()),
            9 => waiting,
            10 => Reply::Cell(self.bytes.map(|bytes| Cell { token, bytes: bytes.into() })),
            12 => return Err(conflict(op, self.note.as_deref(), self.number, location)),
            LOCKED if self.number.is_some() => waiting,
            LOCKED => return Ok(None),
            _ => return Err(unexpected(location)),
        }))
    }
}

/// The error for a result that the functions of this version do not return.
pub(crate) fn unexpected(location: &str) -> Error {
    Error::new(ErrorKind::Backend, format!("{location} sent an unexpected reply"))
}

fn conflict(op: &Op, name: Option<&str>, mode: Option<i64>, location: &str) -> Error {
    let name = name.and_then(|name| LockName::new(name).ok());
    let want = op.wants().iter().find(|want| Some(&want.name) == name.as_ref());
    let disagreement = want.zip(mode).and_then(|(want, mode)| want.agree([codec::mode_of(mode)]).err());
    disagreement.unwrap_or_else(|| unexpected(location))
}
