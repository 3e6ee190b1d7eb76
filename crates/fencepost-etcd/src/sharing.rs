//! Which operations on one lock may leave in the same flight. All conditions of an etcd transaction are looked at before
//! anything is done, so what depends on another operation goes after it.

use fencepost_core::backend::{Op, Queue};
use fencepost_core::{Attempt, Mode, Rule};

/// Returns whether two operations of different owners on one lock may be parts of the same transaction, in this order or the
/// other.
pub(crate) fn may_share(one: &Op, other: &Op) -> bool {
    match (one, other) {
        (Op::Check(_) | Op::Renew(_), Op::Check(_) | Op::Renew(_)) | (Op::Release(_), Op::Release(_)) => true,
        // Two acquires in one transaction would both find the lock free, so only one comes. It sees a release before it as
        // done, and one behind it as not done: that is how parts of a transaction see each other.
        (Op::Acquire { attempt, queue: Queue::Join }, Op::Release(grant))
        | (Op::Release(grant), Op::Acquire { attempt, queue: Queue::Join }) => {
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

    fn ask(queue: Queue) -> Op {
        Op::Acquire { attempt: attempt(Mode::Exclusive), queue }
    }

    fn release(mode: Mode) -> Op {
        let award = Award {
            token: FencingToken::new(1),
            ttl: Duration::from_secs(1),
            chosen: 0,
            spent: Duration::ZERO,
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
            [(Queue::Join, Queue::Join), (Queue::Join, Queue::Never), (Queue::Never, Queue::Never)]
        {
            assert!(!share(&ask(one), &ask(other)));
        }
    }

    #[test]
    fn a_release_travels_with_the_acquire_that_comes_next() {
        assert!(share(&release(Mode::Exclusive), &ask(Queue::Join)));
        assert!(!share(&release(Mode::Exclusive), &ask(Queue::Never)));
        assert!(!share(&release(Mode::Shared), &ask(Queue::Join)));
        assert!(share(&release(Mode::Shared), &release(Mode::Exclusive)));
    }

    #[test]
    fn what_depends_on_another_operation_goes_after_it() {
        let read = || Op::ReadCell(LockName::new("a").unwrap());
        for (one, other) in [
            (ask(Queue::Join), read()),
            (ask(Queue::Join), check()),
            (check(), read()),
            (check(), release(Mode::Exclusive)),
            (Op::Leave(attempt(Mode::Exclusive)), check()),
        ] {
            assert!(!share(&one, &other));
        }
        assert!(share(&check(), &check()));
    }
}
