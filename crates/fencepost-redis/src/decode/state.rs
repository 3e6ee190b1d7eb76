//! What `inspect.lua` found, as people see it.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Mode;
use fencepost_core::backend::{Cell, HolderState, LockState, WaiterState};
use fencepost_core::{FencingToken, LockName};
use redis::Value;
use serde_json::Value as Json;

use super::text;

/// One lock: what holds it, the time left, the cell, how many wait, the first of them.
pub(crate) fn lock_state(name: LockName, now: u64, found: &Value) -> Option<LockState> {
    let Value::Array(parts) = found else {
        return None;
    };
    let [lock, Value::Int(left), kept, Value::Int(waiters), Value::Array(places)] = parts.as_slice() else {
        return None;
    };
    let mut cell = bytes(kept).and_then(stored_cell);
    let mut holders = Vec::new();
    match lock {
        Value::BulkString(value) => {
            let (holder, held_cell) = exclusive(value, now, *left);
            cell = held_cell.or(cell);
            holders.push(holder);
        }
        Value::Array(fields) => {
            let mut held_cell = None;
            for pair in fields.chunks_exact(2) {
                match (text(pair.first()), bytes(&pair[1])) {
                    (Some("="), Some(value)) => held_cell = stored_cell(value),
                    (_, Some(value)) => holders.extend(several(value, now)),
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
    let waiting = places.iter().filter_map(bytes).filter_map(|place| waiter(place, &state.name, now));
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

/// `TOKEN BYTES`.
fn stored_cell(value: &[u8]) -> Option<Cell> {
    let mut words = Words(value);
    let token = FencingToken::new(words.number()?);
    Some(Cell { token, bytes: words.0.into() })
}

/// The value of an exclusive lock; whatever we do not understand is held by somebody we do not know.
fn exclusive(value: &[u8], now: u64, left: i64) -> (HolderState, Option<Cell>) {
    let expires_in = u64::try_from(left).map_or(HolderState::NO_EXPIRY, Duration::from_millis);
    let known = || {
        let mut words = Words(value);
        words.next()?;
        let token = FencingToken::new(words.number()?);
        let (mut holder, after) = rest(words, token, Mode::Exclusive, now)?;
        holder.expires_in = Some(expires_in);
        let cell = after.split_first().map(|(_, bytes)| Cell { token, bytes: bytes.into() });
        Some((holder, cell))
    };
    known().unwrap_or_else(|| (foreign(expires_in), None))
}

/// A holder that is not a Fencepost client: the key says nothing but when it expires.
fn foreign(expires_in: Duration) -> HolderState {
    let mut holder = HolderState::new(Mode::Exclusive, "not a Fencepost client");
    holder.expires_in = Some(expires_in);
    holder
}

/// One field of a lock that several may hold, unless its lease has ended.
fn several(value: &[u8], now: u64) -> Option<HolderState> {
    let mut words = Words(value);
    let mode = Mode::from_word(words.next()?)?;
    let token = FencingToken::new(words.number()?);
    let until = words.number()?;
    let (mut holder, _) = rest(words, token, mode, now)?;
    let expires_in = Duration::from_millis(until.checked_sub(now).filter(|left| *left > 0)?);
    holder.expires_in = holder.ttl.map(|ttl| expires_in.min(ttl));
    Some(holder)
}

/// `SINCE CHOSEN TTL CLIENT LENGTH REST`, and what comes after it.
fn rest(mut words: Words<'_>, token: FencingToken, mode: Mode, now: u64) -> Option<(HolderState, &[u8])> {
    let (since, _chosen) = (words.number()?, words.number()?);
    let (ttl, person, after) = person(words)?;
    let mut holder = HolderState::new(mode, person.label);
    holder.token = Some(token);
    holder.meta = person.meta;
    (holder.ttl, holder.expires_in) = (Some(ttl), Some(ttl));
    holder.held_for = Some(Duration::from_millis(now.saturating_sub(since)));
    Some((holder, after))
}

/// `PLACE SINCE LENGTH WANTS`, then who it is.
fn waiter(place: &[u8], name: &LockName, now: u64) -> Option<WaiterState> {
    let mut words = Words(place);
    let (_place, since, length) = (words.number()?, words.number()?, words.number()?);
    let (wants, after) = words.0.split_at_checked(usize::try_from(length).ok()?)?;
    let (_, person, _) = person(Words(after))?;
    let wanted = || {
        let wants: Json = serde_json::from_slice(wants).ok()?;
        let want = wants["wants"].as_array()?.iter().find(|want| want[0] == name.as_str())?.clone();
        Mode::from_word(want[1].as_str()?)
    };
    let mut waiter = WaiterState::new(wanted().unwrap_or(Mode::Exclusive), person.label);
    waiter.waiting_for = Some(Duration::from_millis(now.saturating_sub(since)));
    Some(waiter)
}

struct Person {
    label: Arc<str>,
    meta: Arc<[(String, String)]>,
}

/// `TTL CLIENT LENGTH REST`.
fn person(mut words: Words<'_>) -> Option<(Duration, Person, &[u8])> {
    let ttl = Duration::from_millis(words.number()?);
    words.next()?;
    let length = usize::try_from(words.number()?).ok()?;
    let (rest, after) = words.0.split_at_checked(length)?;
    let rest: Json = serde_json::from_slice(rest).ok()?;
    let meta: Vec<(String, String)> = serde_json::from_value(rest["meta"].clone()).unwrap_or_default();
    let label = rest["label"].as_str().unwrap_or_default();
    let person = Person { label: label.into(), meta: meta.into() };
    Some((ttl, person, after))
}

/// Words up to the next space.
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
