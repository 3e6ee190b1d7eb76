//! Which operations on one lock may leave in the same flight. All conditions of an etcd transaction are looked at before
//! anything is done, so what depends on another operation goes after it.

use fencepost_core::backend::{OnBusy, Op};
use fencepost_core::{Attempt, Mode, Rule};

/// Returns whether two operations of different owners on one lock may be parts of the same transaction, in this order or the
/// other.
pub(crate) fn may_share(one: &Op, other: &Op) -> bool {
    match (one, other) {
        (Op::Check(_) | Op::Renew(_), Op::Check(_) | Op::Renew(_)) | (Op::Release(_), Op::Release(_)) => true,
        // Two acquires in one transaction would both find the lock free, so only one comes. It sees a release before it as
        // done, and one behind it as not done: that is how parts of a transaction see each other.
        (Op::Acquire { attempt, on_busy: OnBusy::Wait }, Op::Release(grant))
        | (Op::Release(grant), Op::Acquire { attempt, on_busy: OnBusy::Wait }) => {
            is_plain(attempt) && is_plain(&grant.attempt)
        }
        _ => false,
    }
}

/// Returns whether an attempt wants one lock, or all of several, for itself alone.
fn is_plain(attempt: &Attempt) -> bool {
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

    fn ask(on_busy: OnBusy) -> Op {
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

    /// Scenario 48: of two acquires of one name by one transaction, both would be the first.
    #[test]
    fn one_acquire_of_a_name_at_a_time() {
        for (one, other) in
            [(OnBusy::Wait, OnBusy::Wait), (OnBusy::Wait, OnBusy::Return), (OnBusy::Return, OnBusy::Return)]
        {
            assert!(!share(&ask(one), &ask(other)));
        }
    }

    #[test]
    fn a_release_travels_with_the_acquire_that_comes_next() {
        assert!(share(&release(Mode::Exclusive), &ask(OnBusy::Wait)));
        assert!(!share(&release(Mode::Exclusive), &ask(OnBusy::Return)));
        assert!(!share(&release(Mode::Shared), &ask(OnBusy::Wait)));
        assert!(share(&release(Mode::Shared), &release(Mode::Exclusive)));
    }

    #[test]
    fn what_depends_on_another_operation_goes_after_it() {
        let read = || Op::ReadCell(LockName::new("a").unwrap());
        for (one, other) in [
            (ask(OnBusy::Wait), read()),
            (ask(OnBusy::Wait), check()),
            (check(), read()),
            (check(), release(Mode::Exclusive)),
            (Op::Leave(attempt(Mode::Exclusive)), check()),
        ] {
            assert!(!share(&one, &other));
        }
        assert!(share(&check(), &check()));
    }
}
