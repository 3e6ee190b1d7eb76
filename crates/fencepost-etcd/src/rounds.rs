//! Which operations of a flight may travel together. All conditions of an etcd transaction are looked at before anything is
//! done, so what depends on an earlier operation of its flight goes after it.

use fencepost_core::backend::{Op, Queue};
use fencepost_core::{Attempt, LockName, Mode, Owner, Rule};

use crate::enter::{MOST_PARTS, Step, TOGETHER};

/// Splits a flight into rounds, which are executed one after the other. The numbers are those of the operations.
pub(crate) fn rounds(ops: &[Op]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        let waits_for = |round: &Vec<usize>| round.iter().any(|earlier| depends(op, &ops[*earlier]));
        match rounds.iter().rposition(waits_for) {
            Some(last) if last + 1 < rounds.len() => rounds[last + 1].push(at),
            None if !rounds.is_empty() => rounds[0].push(at),
            _ => rounds.push(vec![at]),
        }
    }
    rounds
}

/// Whether an operation must see what an earlier one did.
fn depends(op: &Op, earlier: &Op) -> bool {
    if owner(op).is_some() && owner(op) == owner(earlier) {
        return true;
    }
    let is_apart = || names(op).all(|name| names(earlier).all(|other| name != other));
    !may_meet(op, earlier) && !is_apart()
}

/// Whether two operations of different owners on one lock may be parts of the same transaction, in this order or the other.
fn may_meet(one: &Op, other: &Op) -> bool {
    match (one, other) {
        (Op::Check(_) | Op::Renew(_), Op::Check(_) | Op::Renew(_)) | (Op::Release(_), Op::Release(_)) => true,
        // Of two who come by one transaction nobody would be the first, so only one comes. That it sees a release before it
        // as done, and one behind it as not done, is how parts of a transaction see each other.
        (Op::Acquire { attempt, queue: Queue::Join }, Op::Release(grant))
        | (Op::Release(grant), Op::Acquire { attempt, queue: Queue::Join }) => {
            is_plain(attempt) && is_plain(&grant.attempt)
        }
        _ => false,
    }
}

/// Whether an attempt wants one lock for itself alone.
fn is_plain(attempt: &Attempt) -> bool {
    attempt.wants.iter().all(|want| want.mode == Mode::Exclusive)
        && (attempt.rule == Rule::All || attempt.wants.len() == 1)
}

fn owner(op: &Op) -> Option<Owner> {
    match op {
        Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt) => Some(attempt.owner),
        Op::Renew(grant) | Op::Release(grant) | Op::WriteCell { grant, .. } => Some(grant.attempt.owner),
        Op::ReadCell(_) | Op::Break { .. } => None,
    }
}

fn names(op: &Op) -> Box<dyn Iterator<Item = &LockName> + '_> {
    match op {
        Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt) => {
            Box::new(attempt.wants.iter().map(|want| &want.name))
        }
        Op::Renew(grant) | Op::Release(grant) => Box::new(grant.attempt.wants.iter().map(|want| &want.name)),
        Op::ReadCell(name) | Op::WriteCell { name, .. } | Op::Break { name, .. } => {
            Box::new(std::iter::once(name))
        }
    }
}

/// Those who travel in one transaction.
pub(crate) fn chunks(steps: Vec<(usize, Step)>) -> Vec<Vec<(usize, Step)>> {
    let mut chunks: Vec<Vec<(usize, Step)>> = Vec::new();
    for step in steps {
        // One with many names has a transaction of its own, which may have more parts than one inside another.
        let is_large = step.1.parts() > MOST_PARTS - TOGETHER;
        let fits = |chunk: &&mut Vec<(usize, Step)>| {
            chunk.len() < TOGETHER && chunk.iter().all(|(_, step)| step.parts() <= MOST_PARTS - TOGETHER)
        };
        match chunks.last_mut().filter(fits).filter(|_| !is_large) {
            Some(chunk) => chunk.push(step),
            None => chunks.push(vec![step]),
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fencepost_core::{Award, FencingToken, Grant, Want};

    use super::*;

    fn attempt(name: &str) -> Arc<Attempt> {
        Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: LockName::new(name).unwrap(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: Duration::from_secs(1),
            label: "test".into(),
            meta: [].into(),
        })
    }

    fn ask(name: &str, queue: Queue) -> Op {
        Op::Acquire { attempt: attempt(name), queue }
    }

    fn release(name: &str) -> Op {
        let award = Award {
            token: FencingToken::new(1),
            ttl: Duration::from_secs(1),
            chosen: 0,
            spent: Duration::ZERO,
        };
        Op::Release(Grant { attempt: attempt(name), award })
    }

    /// Scenario 48: of two acquires of one name by one transaction, both would be the first.
    #[test]
    fn one_acquire_of_a_name_at_a_time() {
        let ops =
            [ask("a", Queue::Join), ask("b", Queue::Join), ask("a", Queue::Join), ask("a", Queue::Never)];
        assert_eq!(rounds(&ops), [vec![0, 1], vec![2], vec![3]]);
    }

    #[test]
    fn a_release_travels_with_whoever_comes_next() {
        assert_eq!(rounds(&[release("a"), ask("a", Queue::Join), ask("b", Queue::Never)]), [[0, 1, 2]]);
        assert_eq!(rounds(&[release("a"), ask("a", Queue::Never)]), [[0], [1]]);
    }

    #[test]
    fn nobody_overtakes_what_it_depends_on() {
        let check = attempt("a");
        let ops = [
            ask("a", Queue::Join),
            Op::ReadCell(LockName::new("a").unwrap()),
            Op::Check(check),
            release("b"),
        ];
        assert_eq!(rounds(&ops), [vec![0, 3], vec![1], vec![2]]);
        assert!(rounds(&[]).is_empty());
    }
}
