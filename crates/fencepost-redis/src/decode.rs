//! Decodes script replies, pushes and stored values into the core's types.

mod lock_state;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Cell, Op, Reply, Wakeup};
use fencepost_core::{Attempt, Award, LostReason, Mode, Rule, Want};
use fencepost_core::{Error, ErrorKind, FencingToken, LockName, Owner, Result};
use redis::Value;
use serde_json::Value as Json;

use crate::error::script_error;
use crate::layout::Layout;

pub(crate) use lock_state::lock_state;

/// Decodes the script's reply to one operation.
pub(crate) fn op_reply(location: &str, op: &Op, value: &Value) -> Result<Reply> {
    let ttl = op.ttl().unwrap_or_default();
    let award = |token: i64, chosen: i64| Award {
        token: FencingToken::new(token.unsigned_abs()),
        ttl,
        chosen: usize::try_from(chosen).unwrap_or_default(),
        elapsed: Duration::ZERO,
    };
    let reply = match value {
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
                Reply::AlreadyGranted(award(*token, *chosen))
            }
            (Some("W"), [Value::Int(check_after), ..]) => {
                Reply::Waiting { check_after: Duration::from_millis(check_after.unsigned_abs()) }
            }
            (Some("V"), []) => Reply::Cell(None),
            (Some("V"), [Value::Int(token), Value::BulkString(bytes)]) => {
                let token = FencingToken::new(token.unsigned_abs());
                Reply::Cell(Some(Cell { token, bytes: bytes.as_slice().into() }))
            }
            (Some("C"), [name, current, wanted]) => return Err(conflict(name, current, wanted)),
            (Some("E"), [message]) => {
                return Err(script_error(location, text(Some(message)).unwrap_or_default()));
            }
            _ => return Err(unexpected_reply(location)),
        },
        _ => return Err(unexpected_reply(location)),
    };
    Ok(reply)
}

/// Removes the value that follows those of the `ops` operations, and returns it: the names of the locks whose hand-overs the
/// script has left unfinished.
pub(crate) fn unfinished_locks(values: &mut Vec<Value>, ops: usize) -> Vec<String> {
    match values.get(ops) {
        Some(Value::Array(names)) if values.len() == ops + 1 => {
            let names = names.iter().filter_map(|name| text(Some(name)).map(str::to_owned)).collect();
            values.truncate(ops);
            names
        }
        _ => Vec::new(),
    }
}

fn conflict(name: &Value, current: &Value, wanted: &Value) -> Error {
    let name = text(Some(name)).unwrap_or_default();
    let mode = |value| match text(Some(value)).and_then(Mode::from_word) {
        Some(mode) => mode.to_string(),
        None => "an unknown mode".into(),
    };
    let message =
        format!("lock {name:?} is in use as {}, and cannot be acquired as {}", mode(current), mode(wanted));
    Error::new(ErrorKind::Conflict, message)
        .with_hint("all clients of one lock must agree on what it is; use another name for another purpose")
}

/// Decodes a message on the client's channel; `data` is the channel and the message.
pub(crate) fn wakeup(layout: &Layout, data: &[Value]) -> Option<Wakeup> {
    parse_push(layout, text(data.get(1))?)
}

/// Parses `G OWNER TOKEN TTL CHOSEN WANTS` (granted), `T OWNER TTL WANTS` (the lock is offered) or `X OWNER` (broken).
/// Scripts of older clients omit `TTL WANTS` of `T` and `WANTS` of `G`.
fn parse_push(layout: &Layout, message: &str) -> Option<Wakeup> {
    let (kind, rest) = message.split_once(' ')?;
    let mut words = rest.splitn(if kind == "G" { 5 } else { 3 }, ' ');
    let owner = Owner::from_hex(words.next()?)?;
    let mut number = || words.next()?.parse::<u64>().ok();
    match kind {
        "G" => {
            let (token, ttl, chosen) = (number()?, Duration::from_millis(number()?), number()?);
            let chosen = usize::try_from(chosen).ok()?;
            let award = Award { token: FencingToken::new(token), ttl, chosen, elapsed: Duration::ZERO };
            let attempt = words.next().and_then(|wants| parse_ticket(layout, owner, ttl, wants));
            Some(attempt.map_or(Wakeup::Check { owner }, |attempt| Wakeup::Granted { attempt, award }))
        }
        "T" => {
            let ttl = number().map(Duration::from_millis);
            let attempt = ttl.and_then(|ttl| parse_ticket(layout, owner, ttl, words.next()?));
            Some(attempt.map_or(Wakeup::Check { owner }, |attempt| Wakeup::Offered { attempt }))
        }
        "X" => Some(Wakeup::Lost { owner, reason: LostReason::Broken }),
        _ => None,
    }
}

/// Parses the wants of a ticket: `x STEM` for one exclusive lock, otherwise the JSON that the ticket has stored.
fn parse_ticket(layout: &Layout, owner: Owner, ttl: Duration, wants: &str) -> Option<Arc<Attempt>> {
    let (wants, rule) = match wants.strip_prefix("x ") {
        Some(stem) => {
            let name = LockName::new(layout.name_of(stem)?).ok()?;
            (vec![Want { name, mode: Mode::Exclusive }], Rule::All)
        }
        None => parse_wants(&serde_json::from_str(wants).ok()?)?,
    };
    Some(Arc::new(Attempt { owner, wants, rule, ttl, label: "".into(), meta: [].into() }))
}

fn parse_wants(json: &Json) -> Option<(Vec<Want>, Rule)> {
    let want = |want: &Json| {
        let name = LockName::new(want.get(0)?.as_str()?).ok()?;
        Some(Want { name, mode: Mode::from_word(want.get(1)?.as_str()?)? })
    };
    let wants: Vec<Want> = json["wants"].as_array()?.iter().map(want).collect::<Option<_>>()?;
    let rule = if json["rule"] == "any" { Rule::Any } else { Rule::All };
    (!wants.is_empty()).then_some((wants, rule))
}

/// Returns a value that is text.
pub(crate) fn text(value: Option<&Value>) -> Option<&str> {
    match value? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// The error for a reply that neither the scripts nor the commands of this client return.
pub(crate) fn unexpected_reply(location: &str) -> Error {
    Error::new(ErrorKind::Backend, format!("{location} sent an unexpected reply"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Dialect;

    const OWNER: &str = "000102030405060708090a0b0c0d0e0f";

    fn pushed(message: &str) -> Option<Wakeup> {
        parse_push(&Layout::new("fp", false, None), message)
    }

    fn wants(attempt: &Attempt) -> String {
        let wants = attempt.wants.iter().map(|want| format!("{} {}", want.name.as_str(), want.mode));
        wants.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_push_contains_its_ticket() {
        let plain = pushed(&format!("G {OWNER} 77 1500 0 x a b {{c"));
        let Some(Wakeup::Granted { attempt, award }) = plain else { panic!("{plain:?}") };
        assert_eq!((wants(&attempt), award.token.get()), ("a b {c exclusive".into(), 77));
        assert_eq!((attempt.ttl, attempt.rule), (Duration::from_millis(1500), Rule::All));
        let stored = r#"{"wants":[["a","s"],["b","n3"]],"rule":"any"}"#;
        let several = pushed(&format!("T {OWNER} 1500 {stored}"));
        let Some(Wakeup::Offered { attempt }) = several else { panic!("{several:?}") };
        assert_eq!((wants(&attempt), attempt.rule), ("a shared, b semaphore of 3".into(), Rule::Any));
    }

    #[test]
    fn a_push_in_a_dialect_names_the_lock_by_its_key() {
        let layout = Layout::new("fp", false, Some(Dialect::PythonRedisLock));
        let offered = parse_push(&layout, &format!("T {OWNER} 1500 x lock:a b"));
        let Some(Wakeup::Offered { attempt }) = offered else { panic!("{offered:?}") };
        assert_eq!(wants(&attempt), "a b exclusive");
    }

    /// A push by the script of an older client has the owner and nothing else that could be acted on.
    #[test]
    fn a_push_without_a_ticket_only_asks_for_a_check() {
        for message in [format!("G {OWNER} 77 1500 0"), format!("T {OWNER}")] {
            let wakeup = pushed(&message);
            assert!(matches!(wakeup, Some(Wakeup::Check { .. })), "{wakeup:?}");
        }
        for garbage in ["", "G", "G x", "T none 1 x a", "Z 00"] {
            assert!(pushed(garbage).is_none(), "{garbage}");
        }
    }
}
