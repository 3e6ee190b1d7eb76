//! Operations as the words that the script `execute.lua` reads.

use std::fmt::Write;
use std::time::Duration;

use fencepost_core::backend::{Keep, OnBusy, Op};
use fencepost_core::{Attempt, Grant, Mode, Rule, Want};
use fencepost_core::{FencingToken, LockName, Owner};
use redis::Cmd;
use serde_json::{Value as Json, json};

/// Adds the words of an operation.
pub(crate) fn words(command: &mut Cmd, op: &Op, client: &str) {
    match op {
        Op::Acquire { attempt, on_busy } => {
            let kind = match on_busy {
                OnBusy::Wait => "A",
                OnBusy::Return => "T",
            };
            match plain(&attempt.wants) {
                Some(name) => {
                    command.arg(kind).arg(name.as_str()).arg(attempt.owner.to_hex()).arg(millis(attempt.ttl));
                    command.arg(tail(attempt, client));
                }
                None => general(command, attempt, kind, json!({ "tail": tail(attempt, client) })),
            }
        }
        Op::Check(attempt) => general(command, attempt, "C", json!({})),
        Op::Leave(attempt) => general(command, attempt, "L", json!({})),
        Op::Renew(grant) => of_grant(command, grant, "N"),
        Op::Release(grant) => of_grant(command, grant, "R"),
        Op::ReadCell(name) => {
            let detail = json!({ "op": "V", "wants": [[name.as_str(), "x"]] });
            five(command, name, "", "0", &detail);
        }
        Op::WriteCell { grant, name, bytes, keep } => {
            let keep = match keep {
                Keep::WhileHeld => "held".into(),
                Keep::Always => "always".into(),
                Keep::For(duration) => millis(*duration).max(1).to_string(),
            };
            let token = grant.award.token.to_string();
            let detail = json!({ "op": "W", "wants": [[name.as_str(), "x"]], "token": token, "keep": keep });
            five(command, name, &grant.attempt.owner.to_hex(), &bytes[..], &detail);
        }
        Op::Break { name, token } => {
            let detail = json!({ "op": "B", "wants": [[name.as_str(), "x"]], "token": token.to_string() });
            five(command, name, "", "0", &detail);
        }
    }
}

/// Adds the words that go on with what a call has left undone for these locks.
pub(crate) fn settle(command: &mut Cmd, names: &[String]) {
    let wants: Vec<Json> = names.iter().map(|name| json!([name, "x"])).collect();
    let detail = json!({ "op": "S", "wants": wants });
    command.arg("G").arg(&names[0]).arg("").arg("0").arg(detail.to_string());
}

/// The name, if the wants are no more than one exclusive lock.
pub(crate) fn plain(wants: &[Want]) -> Option<&LockName> {
    match wants {
        [Want { name, mode: Mode::Exclusive }] => Some(name),
        _ => None,
    }
}

fn of_grant(command: &mut Cmd, grant: &Grant, kind: &str) {
    let Grant { attempt, award } = grant;
    let Some(name) = plain(grant.held()) else {
        let detail = json!({ "token": award.token.to_string(), "wants": wanted(grant.held()) });
        return general(command, attempt, kind, detail);
    };
    command.arg(kind).arg(name.as_str()).arg(proof(attempt.owner, award.token));
    if kind == "N" {
        command.arg(millis(award.ttl));
    }
}

fn general(command: &mut Cmd, attempt: &Attempt, kind: &str, mut detail: Json) {
    let rule = match attempt.rule {
        Rule::All => "all",
        Rule::Any => "any",
    };
    detail["op"] = kind.into();
    detail["rule"] = rule.into();
    if detail.get("wants").is_none() {
        detail["wants"] = wanted(&attempt.wants);
    }
    five(command, &attempt.wants[0].name, &attempt.owner.to_hex(), millis(attempt.ttl).to_string(), &detail);
}

fn five(command: &mut Cmd, name: &LockName, owner: &str, ttl: impl AsRef<[u8]>, detail: &Json) {
    command.arg("G").arg(name.as_str()).arg(owner).arg(ttl.as_ref()).arg(detail.to_string());
}

fn wanted(wants: &[Want]) -> Json {
    wants.iter().map(|want| json!([want.name.as_str(), want.mode.to_word()])).collect()
}

/// What a lock's value ends with: ttl, client, and who it is, for people.
pub(crate) fn tail(attempt: &Attempt, client: &str) -> String {
    let mut rest = format!("{{\"label\":{}", json!(&*attempt.label));
    if !attempt.meta.is_empty() {
        let _ = write!(rest, ",\"meta\":{}", json!(&*attempt.meta));
    }
    if attempt.rule == Rule::All && attempt.wants.len() > 1 {
        let names: Vec<&str> = attempt.wants.iter().map(|want| want.name.as_str()).collect();
        let _ = write!(rest, ",\"names\":{}", json!(names));
    }
    rest.push('}');
    format!("{} {client} {} {rest}", millis(attempt.ttl), rest.len())
}

/// What the value of a lock begins with that this owner holds with this token.
fn proof(owner: Owner, token: FencingToken) -> String {
    format!("{} {token} ", owner.to_hex())
}

/// Whole milliseconds, rounded up: a lease is never shorter than was asked for.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
