//! Executes one flight: all of its operations are sent at once. The engine keeps operations apart for which
//! [`may_share`] returns false.

use std::sync::Arc;

use fencepost_core::Result;
use fencepost_core::backend::{Op, Reply};
use futures_util::future::join_all;

use crate::acquire::{acquire, leave};
use crate::cell;
use crate::listing;
use crate::release::release;
use crate::renew::{Renewal, renew};
use crate::session::Session;
use crate::state::ClientState;

/// Replies, each with the index of its operation in the flight.
pub(crate) type Replies = Vec<(usize, Result<Reply>)>;

/// Returns whether two operations on the same lock are independent, so that they can be sent at once.
///
/// * Acquires create nodes of their own, and the server orders them.
/// * Checks and renewals read, and verify nodes of their own.
/// * Releases and leaves delete nodes of their own.
/// * Reads of a cell are independent.
///
/// Every other operation must see the effect of the operation before it: an acquire after a release finds the lock
/// free, a check after a release is granted, a read after a write or break sees it.
pub(crate) fn may_share(one: &Op, other: &Op) -> bool {
    match one {
        Op::Acquire { .. } => matches!(other, Op::Acquire { .. }),
        Op::Check(_) | Op::Renew(_) => matches!(other, Op::Check(_) | Op::Renew(_)),
        Op::Release(_) | Op::Leave(_) => matches!(other, Op::Release(_) | Op::Leave(_)),
        Op::ReadCell(_) => matches!(other, Op::ReadCell(_)),
        Op::WriteCell { .. } | Op::Break { .. } => false,
    }
}

/// Executes the operations and returns the replies in their order.
pub(crate) async fn execute(state: &Arc<ClientState>, ops: &[Op]) -> Vec<Result<Reply>> {
    let (mut renewals, mut grants, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for (at, op) in ops.iter().enumerate() {
        match op {
            Op::Renew(grant) => renewals.push((at, Renewal::Grant(grant))),
            Op::Check(attempt) => renewals.push((at, Renewal::Ticket(attempt))),
            Op::Release(grant) => grants.push((at, grant)),
            op => alone.push(async move { (at, execute_alone(state, op).await) }),
        }
    }
    let (renewed, released, alone) =
        futures_util::join!(renew(state, renewals), release(state, grants), join_all(alone));
    let mut replies: Replies = renewed.into_iter().chain(released).chain(alone).collect();
    replies.sort_by_key(|(at, _)| *at);
    replies.into_iter().map(|(_, reply)| reply).collect()
}

async fn execute_alone(state: &Arc<ClientState>, op: &Op) -> Result<Reply> {
    match op {
        Op::Acquire { attempt, on_busy } => acquire(state, attempt, *on_busy).await,
        Op::Leave(attempt) => leave(state, attempt).await,
        Op::ReadCell(name) => listing::read_cell(state, name).await,
        Op::WriteCell { grant, name, bytes, keep } => cell::write(state, grant, name, bytes, *keep).await,
        Op::Break { name, token } => listing::break_lock(state, name, *token).await,
        Op::Renew(_) | Op::Check(_) | Op::Release(_) => Err(state.node_removed()),
    }
}

/// Groups items by session.
pub(crate) fn group_by_session<T>(all: Vec<(Arc<Session>, T)>) -> Vec<(Arc<Session>, Vec<T>)> {
    let mut groups: Vec<(Arc<Session>, Vec<T>)> = Vec::new();
    for (session, one) in all {
        match groups.iter_mut().find(|(there, _)| Arc::ptr_eq(there, &session)) {
            Some((_, members)) => members.push(one),
            None => groups.push((session, vec![one])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost_core::backend::OnBusy;
    use fencepost_core::{Attempt, Award, FencingToken, Grant, Keep, LockName, Mode, Owner, Rule, Want};

    use super::*;

    fn ops() -> Vec<Op> {
        let name = LockName::new("a").unwrap();
        let attempt = Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: name.clone(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: Duration::from_secs(10),
            label: "test".into(),
            meta: [].into(),
        });
        let token = FencingToken::new(1);
        let award = Award { token, ttl: attempt.ttl, chosen: 0, elapsed: Duration::ZERO };
        let grant = Grant { attempt: attempt.clone(), award };
        vec![
            Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait },
            Op::Check(attempt.clone()),
            Op::Renew(grant.clone()),
            Op::Leave(attempt),
            Op::Release(grant.clone()),
            Op::ReadCell(name.clone()),
            Op::WriteCell { grant, name: name.clone(), bytes: [].into(), keep: Keep::Always },
            Op::Break { name, token },
        ]
    }

    #[test]
    fn independent_operations_on_one_lock_share_a_flight() {
        let ops = ops();
        let together = [vec![0], vec![1, 2], vec![3, 4], vec![5]];
        for (one, first) in ops.iter().enumerate() {
            for (other, second) in ops.iter().enumerate() {
                let expected = together.iter().any(|group| group.contains(&one) && group.contains(&other));
                assert_eq!(may_share(first, second), expected, "{first:?} and {second:?}");
            }
        }
    }
}
