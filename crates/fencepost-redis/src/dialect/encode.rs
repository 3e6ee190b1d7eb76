//! Encodes operations as the arguments of `dialect.lua`; the format is described there.

use std::sync::atomic::Ordering;

use fencepost_core::backend::{OnBusy, Op};
use fencepost_core::clock::wall_time;
use fencepost_core::{Attempt, FencingToken, LockName};
use redis::Cmd;

use super::Dialect;
use super::value::value;
use crate::encode::{millis, tail};
use crate::state::ClientState;

/// Adds the arguments of a flight.
pub(crate) fn add_arguments(command: &mut Cmd, dialect: &Dialect, state: &ClientState, ops: &[&Op]) {
    let ClientState { client_id, layout, largest_token, .. } = state;
    let pace = dialect.pace();
    command.arg(layout.prefix("")).arg(layout.counter()).arg(client_id).arg(layout.channels());
    command
        .arg(largest_token.load(Ordering::Relaxed))
        .arg(millis(pace.poll_interval))
        .arg(millis(pace.max_streak))
        .arg(rand::random::<f32>());
    for op in ops {
        add_op(command, dialect, client_id, op);
    }
}

fn add_op(command: &mut Cmd, dialect: &Dialect, client_id: &str, op: &Op) {
    let name = op.names().next().map_or("", LockName::as_str);
    let token = |token: &FencingToken| token.to_string();
    let (kind, attempt, token) = match op {
        Op::Acquire { attempt, on_busy: OnBusy::Wait } => ("A", Some(attempt), String::new()),
        Op::Acquire { attempt, on_busy: OnBusy::Return } => ("T", Some(attempt), String::new()),
        Op::Check(attempt) => ("C", Some(attempt), String::new()),
        Op::Leave(attempt) => ("L", Some(attempt), String::new()),
        Op::Renew(grant) => ("N", Some(&grant.attempt), token(&grant.award.token)),
        Op::Release(grant) => ("R", Some(&grant.attempt), token(&grant.award.token)),
        Op::Break { token: broken, .. } => ("B", None, token(broken)),
        // Rejected before they get here.
        Op::ReadCell(_) | Op::WriteCell { .. } => ("", None, String::new()),
    };
    command.arg(kind).arg(dialect.key(name)).arg(dialect.signal_list(name).unwrap_or_default());
    let owner = attempt.map(|attempt| attempt.owner.to_hex()).unwrap_or_default();
    command.arg(owner).arg(millis(op.ttl().unwrap_or_default())).arg(token);
    match attempt.filter(|_| matches!(op, Op::Acquire { .. } | Op::Check(_))) {
        Some(attempt) => {
            let Attempt { owner, label, .. } = &**attempt;
            command.arg(value(dialect, *owner, label, wall_time())).arg(tail(attempt, client_id));
        }
        None => {
            command.arg("").arg("");
        }
    }
}
