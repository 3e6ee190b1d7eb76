//! Which operations on one lock may be in the same flight. etcd evaluates all comparisons of a transaction before it
//! executes any operation, so an operation that depends on another one is sent after it.

use fencepost_core::backend::{OnBusy, Op};
use fencepost_core::{Attempt, Mode, Rule};

/// Returns whether two operations of different owners on one lock may be parts of the same transaction, in this order or the
/// other.
pub(crate) fn may_share(one: &Op, other: &Op) -> bool {
    match (one, other) {
        (Op::Check(_) | Op::Renew(_), Op::Check(_) | Op::Renew(_)) | (Op::Release(_), Op::Release(_)) => true,
        // Two acquires in one transaction would both find the lock free, so there is only one. It sees the effect of a
        // release ahead of it in the transaction, and not of one behind it.
        (Op::Acquire { attempt, on_busy: OnBusy::Wait }, Op::Release(grant))
        | (Op::Release(grant), Op::Acquire { attempt, on_busy: OnBusy::Wait }) => {
            is_exclusive(attempt) && is_exclusive(&grant.attempt)
        }
        _ => false,
    }
}

/// Returns whether an attempt wants one lock, or all of several, exclusively.
fn is_exclusive(attempt: &Attempt) -> bool {
    attempt.wants.iter().all(|want| want.mode == Mode::Exclusive)
        && (attempt.rule == Rule::All || attempt.wants.len() == 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fencepost_core::{Award, FencingToken, Grant, LockName, Owner, Want};

    use super::*;

    fn attempt(mode: Mode) -> Arc<Attempt> {
        Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: LockName::new("a").unwrap(), mode }],
            rule: Rule::All,
            ttl: Duration::from_secs(1),
            label: "test".into(),
            meta: [].into(),
        })
    }

    fn acquire(on_busy: OnBusy) -> Op {
        Op::Acquire { attempt: attempt(Mode::Exclusive), on_busy }
    }

    fn release(mode: Mode) -> Op {
        let award = Award {
            token: FencingToken::new(1),
            ttl: Duration::from_secs(1),
            chosen: 0,
            elapsed: Duration::ZERO,
        };
        Op::Release(Grant { attempt: attempt(mode), award })
    }

    fn check() -> Op {
        Op::Check(attempt(Mode::Exclusive))
    }

    fn share(one: &Op, other: &Op) -> bool {
        let shares = may_share(one, other);
        assert_eq!(shares, may_share(other, one), "{one:?} and {other:?}");
        shares
    }

    /// Scenario 48: two acquires of one name in one transaction would both find the lock free.
    #[test]
    fn two_acquires_of_one_lock_share_no_flight() {
        for (one, other) in
            [(OnBusy::Wait, OnBusy::Wait), (OnBusy::Wait, OnBusy::Return), (OnBusy::Return, OnBusy::Return)]
        {
            assert!(!share(&acquire(one), &acquire(other)));
        }
    }

    #[test]
    fn a_release_shares_a_flight_with_the_next_acquire() {
        assert!(share(&release(Mode::Exclusive), &acquire(OnBusy::Wait)));
        assert!(!share(&release(Mode::Exclusive), &acquire(OnBusy::Return)));
        assert!(!share(&release(Mode::Shared), &acquire(OnBusy::Wait)));
        assert!(share(&release(Mode::Shared), &release(Mode::Exclusive)));
    }

    #[test]
    fn dependent_operations_share_no_flight() {
        let read = || Op::ReadCell(LockName::new("a").unwrap());
        for (one, other) in [
            (acquire(OnBusy::Wait), read()),
            (acquire(OnBusy::Wait), check()),
            (check(), read()),
            (check(), release(Mode::Exclusive)),
            (Op::Leave(attempt(Mode::Exclusive)), check()),
        ] {
            assert!(!share(&one, &other));
        }
        assert!(share(&check(), &check()));
    }
}
