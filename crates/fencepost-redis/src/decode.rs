//! Answers, pushes and stored values, as the core knows them.

mod state;

use std::time::Duration;

use fencepost_core::backend::{Cell, Op, Reply, Wakeup};
use fencepost_core::{Award, LostReason, Mode};
use fencepost_core::{Error, ErrorKind, FencingToken, Owner, Result, StorageId};
use redis::Value;

use crate::encode::lease;
use crate::error::caught;

pub(crate) use state::lock_state;

/// What the script answered to an operation.
pub(crate) fn reply(location: &str, op: &Op, answer: &Value) -> Result<Reply> {
    let ttl = lease(op).unwrap_or_default();
    let award = |token: i64, chosen: i64| Award {
        token: FencingToken::new(token.unsigned_abs()),
        ttl,
        chosen: usize::try_from(chosen).unwrap_or_default(),
        spent: Duration::ZERO,
    };
    let reply = match answer {
        Value::Int(0) => Reply::Busy,
        Value::Int(1) => Reply::Released,
        Value::Int(2) => Reply::Renewed { ttl },
        Value::Int(3) => Reply::NotHeld,
        Value::Int(4) => Reply::Left,
        Value::Int(5) => Reply::NoTicket,
        Value::Int(6) => Reply::Written,
        // Tokens are microseconds since 1970.
        Value::Int(token) => Reply::Granted(award(*token, 0)),
        Value::Array(parts) => match (text(parts.first()), parts.get(1..).unwrap_or_default()) {
            (Some("G"), [Value::Int(token), Value::Int(chosen)]) => Reply::Granted(award(*token, *chosen)),
            (Some("H"), [Value::Int(token), Value::Int(chosen)]) => {
                Reply::HadBeenGranted(award(*token, *chosen))
            }
            (Some("W"), [Value::Int(turn_in)]) => {
                Reply::Waiting { turn_in: Duration::from_millis(turn_in.unsigned_abs()) }
            }
            (Some("V"), []) => Reply::Cell(None),
            (Some("V"), [Value::Int(token), Value::BulkString(bytes)]) => {
                let token = FencingToken::new(token.unsigned_abs());
                Reply::Cell(Some(Cell { token, bytes: bytes.as_slice().into() }))
            }
            (Some("C"), [name, there, wanted]) => return Err(conflict(name, there, wanted)),
            (Some("E"), [message]) => return Err(caught(location, text(Some(message)).unwrap_or_default())),
            _ => return Err(nonsense(location)),
        },
        _ => return Err(nonsense(location)),
    };
    Ok(reply)
}

fn conflict(name: &Value, there: &Value, wanted: &Value) -> Error {
    let name = text(Some(name)).unwrap_or_default();
    let words = |value| match text(Some(value)).and_then(mode) {
        Some(mode) => mode.to_string(),
        None => "something else".into(),
    };
    let message =
        format!("lock {name:?} is in use as {}, and cannot be taken as {}", words(there), words(wanted));
    Error::new(ErrorKind::Conflict, message)
        .with_hint("all clients of one lock must agree on what it is; use another name for another purpose")
}

/// A message on the client's channel: its name, and what is said.
pub(crate) fn push(data: &[Value]) -> Option<Wakeup> {
    let mut words = text(data.get(1))?.split(' ');
    let kind = words.next()?;
    let owner = owner(words.next()?)?;
    let mut number = || words.next()?.parse::<u64>().ok();
    match kind {
        "G" => {
            let (token, ttl, chosen) = (number()?, number()?, number()?);
            let award = Award {
                token: FencingToken::new(token),
                ttl: Duration::from_millis(ttl),
                chosen: usize::try_from(chosen).ok()?,
                spent: Duration::ZERO,
            };
            Some(Wakeup::Granted { owner, award })
        }
        "T" => Some(Wakeup::Turn { owner }),
        "X" => Some(Wakeup::Gone { owner, why: LostReason::Broken }),
        _ => None,
    }
}

fn owner(hex: &str) -> Option<Owner> {
    let number = u128::from_str_radix(hex, 16).ok()?;
    Some(Owner::from_bytes(number.to_be_bytes()))
}

/// The id of a storage as it is kept.
pub(crate) fn storage_id(hex: &str) -> Option<StorageId> {
    let number = u128::from_str_radix(hex, 16).ok()?;
    Some(StorageId::from_bytes(number.to_be_bytes()))
}

/// A mode as it is stored.
pub(crate) fn mode(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => Some(Mode::Slots { of: text.strip_prefix('n')?.parse().ok()? }),
    }
}

/// A value that is text.
pub(crate) fn text(value: Option<&Value>) -> Option<&str> {
    match value? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// An answer that no script of ours gives.
pub(crate) fn nonsense(location: &str) -> Error {
    Error::new(ErrorKind::Storage, format!("{location} answered in a way that we do not understand"))
}
