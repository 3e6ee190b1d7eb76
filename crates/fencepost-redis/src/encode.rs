//! Encodes operations as the arguments of `execute.lua`; the format is described there.

use std::fmt::Write;
use std::time::Duration;

use fencepost_core::backend::{Keep, OnBusy, Op};
use fencepost_core::{Attempt, Grant, Mode, Rule, Want};
use fencepost_core::{FencingToken, LockName, Owner};
use redis::Cmd;
use serde_json::{Value as Json, json};

/// Adds the arguments of an operation.
pub(crate) fn add_op(command: &mut Cmd, op: &Op, client_id: &str) {
    match op {
        Op::Acquire { attempt, on_busy } => {
            let kind = match on_busy {
                OnBusy::Wait => "A",
                OnBusy::Return => "T",
            };
            match single_exclusive(&attempt.wants) {
                Some(name) => {
                    command.arg(kind).arg(name.as_str()).arg(attempt.owner.to_hex()).arg(millis(attempt.ttl));
                    command.arg(tail(attempt, client_id));
                }
                None => add_attempt_op(command, attempt, kind, json!({ "tail": tail(attempt, client_id) })),
            }
        }
        Op::Check(attempt) => add_attempt_op(command, attempt, "C", json!({})),
        Op::Leave(attempt) => add_attempt_op(command, attempt, "L", json!({})),
        Op::Renew(grant) => add_grant_op(command, grant, "N"),
        Op::Release(grant) => add_grant_op(command, grant, "R"),
        Op::ReadCell(name) => {
            let detail = json!({ "op": "V", "wants": [[name.as_str(), "x"]] });
            add_general_op(command, name, "", "0", &detail);
        }
        Op::WriteCell { grant, name, bytes, keep } => {
            let keep = match keep {
                Keep::WhileHeld => "held".into(),
                Keep::Always => "always".into(),
                Keep::For(duration) => millis(*duration).max(1).to_string(),
            };
            let token = grant.award.token.to_string();
            let detail = json!({ "op": "W", "wants": [[name.as_str(), "x"]], "token": token, "keep": keep });
            add_general_op(command, name, &grant.attempt.owner.to_hex(), &bytes[..], &detail);
        }
        Op::Break { name, token } => {
            let detail = json!({ "op": "B", "wants": [[name.as_str(), "x"]], "token": token.to_string() });
            add_general_op(command, name, "", "0", &detail);
        }
    }
}

/// Adds the arguments of the operation that continues the unfinished hand-overs of these locks.
pub(crate) fn add_finish_hand_overs(command: &mut Cmd, names: &[String]) {
    let wants: Vec<Json> = names.iter().map(|name| json!([name, "x"])).collect();
    let detail = json!({ "op": "S", "wants": wants });
    command.arg("G").arg(&names[0]).arg("").arg("0").arg(detail.to_string());
}

/// Returns the name if the wants are exactly one exclusive lock.
pub(crate) fn single_exclusive(wants: &[Want]) -> Option<&LockName> {
    match wants {
        [Want { name, mode: Mode::Exclusive }] => Some(name),
        _ => None,
    }
}

fn add_grant_op(command: &mut Cmd, grant: &Grant, kind: &str) {
    let Grant { attempt, award } = grant;
    let Some(name) = single_exclusive(grant.held()) else {
        let detail = json!({ "token": award.token.to_string(), "wants": wants_json(grant.held()) });
        return add_attempt_op(command, attempt, kind, detail);
    };
    command.arg(kind).arg(name.as_str()).arg(value_prefix(attempt.owner, award.token));
    if kind == "N" {
        command.arg(millis(award.ttl));
    }
}

fn add_attempt_op(command: &mut Cmd, attempt: &Attempt, kind: &str, mut detail: Json) {
    let rule = match attempt.rule {
        Rule::All => "all",
        Rule::Any => "any",
    };
    detail["op"] = kind.into();
    detail["rule"] = rule.into();
    if detail.get("wants").is_none() {
        detail["wants"] = wants_json(&attempt.wants);
    }
    add_general_op(
        command,
        &attempt.wants[0].name,
        &attempt.owner.to_hex(),
        millis(attempt.ttl).to_string(),
        &detail,
    );
}

fn add_general_op(command: &mut Cmd, name: &LockName, owner: &str, ttl: impl AsRef<[u8]>, detail: &Json) {
    command.arg("G").arg(name.as_str()).arg(owner).arg(ttl.as_ref()).arg(detail.to_string());
}

fn wants_json(wants: &[Want]) -> Json {
    wants.iter().map(|want| json!([want.name.as_str(), want.mode.to_word()])).collect()
}

/// Returns the end of a stored record, `TTL CLIENT LENGTH REST`, where `REST` is JSON with the label and metadata.
pub(crate) fn tail(attempt: &Attempt, client_id: &str) -> String {
    let mut rest = format!("{{\"label\":{}", json!(&*attempt.label));
    if !attempt.meta.is_empty() {
        let _ = write!(rest, ",\"meta\":{}", json!(&*attempt.meta));
    }
    if attempt.rule == Rule::All && attempt.wants.len() > 1 {
        let names: Vec<&str> = attempt.wants.iter().map(|want| want.name.as_str()).collect();
        let _ = write!(rest, ",\"names\":{}", json!(names));
    }
    rest.push('}');
    format!("{} {client_id} {} {rest}", millis(attempt.ttl), rest.len())
}

/// Returns what the stored value begins with while this owner holds the lock with this token.
fn value_prefix(owner: Owner, token: FencingToken) -> String {
    format!("{} {token} ", owner.to_hex())
}

/// Returns whole milliseconds, rounded up: a lease is never shorter than requested.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
