//! Decodes the replies of `inspect.lua` and `inspect_dialect.lua` for the listing.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Mode;
use fencepost_core::backend::{Cell, HolderState, LockState, WaiterState};
use fencepost_core::{FencingToken, LockName};
use redis::Value;
use serde_json::Value as Json;

use super::text;

/// Decodes one lock: its value, the time left, its kept cell, the number of waiters, the first tickets.
pub(crate) fn lock_state(name: LockName, now: u64, found: &Value) -> Option<LockState> {
    let Value::Array(parts) = found else {
        return None;
    };
    let [lock, Value::Int(left), kept_cell, Value::Int(waiters), Value::Array(tickets)] = parts.as_slice()
    else {
        return None;
    };
    let mut cell = bytes(kept_cell).and_then(stored_cell);
    let mut holders = Vec::new();
    match lock {
        Value::BulkString(value) => {
            let (holder, held_cell) = exclusive_holder(value, now, *left);
            cell = held_cell.or(cell);
            holders.push(holder);
        }
        Value::Array(fields) => {
            let mut held_cell = None;
            for pair in fields.chunks_exact(2) {
                match (text(pair.first()), bytes(&pair[1])) {
                    (Some("="), Some(value)) => held_cell = stored_cell(value),
                    (_, Some(value)) => holders.extend(shared_holder(value, now)),
                    _ => {}
                }
            }
            holders.sort_by_key(|holder| holder.token);
            cell = held_cell
                .filter(|cell| holders.iter().any(|holder| holder.token == Some(cell.token)))
                .or(cell);
        }
        _ => {}
    }
    let mut state = LockState::new(name);
    let waiting = tickets.iter().filter_map(bytes).filter_map(|ticket| waiter(ticket, &state.name, now));
    state.waiters = waiting.collect();
    state.waiter_count = usize::try_from(*waiters).unwrap_or_default();
    (state.holders, state.cell) = (holders, cell);
    Some(state)
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// Parses `TOKEN BYTES`.
fn stored_cell(value: &[u8]) -> Option<Cell> {
    let mut words = Words(value);
    let token = FencingToken::new(words.number()?);
    Some(Cell { token, bytes: words.0.into() })
}

/// Parses the value of an exclusive lock. A value that cannot be parsed belongs to a foreign client.
fn exclusive_holder(value: &[u8], now: u64, left: i64) -> (HolderState, Option<Cell>) {
    let expires_in = u64::try_from(left).map_or(HolderState::NO_EXPIRY, Duration::from_millis);
    let parsed = || {
        let mut words = Words(value);
        words.next()?;
        let token = FencingToken::new(words.number()?);
        let (mut holder, after) = holder_record(words, token, Mode::Exclusive, now)?;
        holder.expires_in = Some(expires_in);
        let cell = after.split_first().map(|(_, bytes)| Cell { token, bytes: bytes.into() });
        Some((holder, cell))
    };
    parsed().unwrap_or_else(|| (foreign_holder(expires_in), None))
}

/// A holder that is not a Fencepost client: only the expiry of its key is known.
fn foreign_holder(expires_in: Duration) -> HolderState {
    let mut holder = HolderState::new(Mode::Exclusive, "not a Fencepost client");
    holder.expires_in = Some(expires_in);
    holder
}

/// Parses one field of a lock that several clients may hold. Returns `None` if its lease has expired.
fn shared_holder(value: &[u8], now: u64) -> Option<HolderState> {
    let mut words = Words(value);
    let mode = Mode::from_word(words.next()?)?;
    let token = FencingToken::new(words.number()?);
    let until = words.number()?;
    let (mut holder, _) = holder_record(words, token, mode, now)?;
    let expires_in = Duration::from_millis(until.checked_sub(now).filter(|left| *left > 0)?);
    holder.expires_in = holder.ttl.map(|ttl| expires_in.min(ttl));
    Some(holder)
}

/// Parses `SINCE CHOSEN TTL CLIENT LENGTH REST`, and returns the bytes after it too.
fn holder_record(
    mut words: Words<'_>,
    token: FencingToken,
    mode: Mode,
    now: u64,
) -> Option<(HolderState, &[u8])> {
    let (since, _chosen) = (words.number()?, words.number()?);
    let (ttl, description, after) = record_tail(words)?;
    let mut holder = HolderState::new(mode, description.label);
    holder.token = Some(token);
    holder.meta = description.meta;
    (holder.ttl, holder.expires_in) = (Some(ttl), Some(ttl));
    holder.held_for = Some(Duration::from_millis(now.saturating_sub(since)));
    Some((holder, after))
}

/// Parses a ticket: `POSITION SINCE LENGTH WANTS`, and the tail of the record.
fn waiter(ticket: &[u8], name: &LockName, now: u64) -> Option<WaiterState> {
    let mut words = Words(ticket);
    let (_position, since, length) = (words.number()?, words.number()?, words.number()?);
    let (wants, after) = words.0.split_at_checked(usize::try_from(length).ok()?)?;
    let (_, description, _) = record_tail(Words(after))?;
    let wanted = || {
        let wants: Json = serde_json::from_slice(wants).ok()?;
        let want = wants["wants"].as_array()?.iter().find(|want| want[0] == name.as_str())?.clone();
        Mode::from_word(want[1].as_str()?)
    };
    let mut waiter = WaiterState::new(wanted().unwrap_or(Mode::Exclusive), description.label);
    waiter.waiting_for = Some(Duration::from_millis(now.saturating_sub(since)));
    Some(waiter)
}

/// What a client stored about an attempt for the listing.
struct Description {
    label: Arc<str>,
    meta: Arc<[(String, String)]>,
}

/// Parses `TTL CLIENT LENGTH REST`, and returns the bytes after it too.
fn record_tail(mut words: Words<'_>) -> Option<(Duration, Description, &[u8])> {
    let ttl = Duration::from_millis(words.number()?);
    words.next()?;
    let length = usize::try_from(words.number()?).ok()?;
    let (rest, after) = words.0.split_at_checked(length)?;
    let rest: Json = serde_json::from_slice(rest).ok()?;
    let meta: Vec<(String, String)> = serde_json::from_value(rest["meta"].clone()).unwrap_or_default();
    let label = rest["label"].as_str().unwrap_or_default();
    let description = Description { label: label.into(), meta: meta.into() };
    Some((ttl, description, after))
}

/// The rest of a record, read word by word. A word ends at a space.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let end = self.0.iter().position(|byte| *byte == b' ')?;
        let (word, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        std::str::from_utf8(word).ok()
    }

    fn number(&mut self) -> Option<u64> {
        self.next()?.parse().ok()
    }
}
