//! One flight: what depends on each other goes one after the other, everything else at once.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_core::backend::{Op, Reply};
use fencepost_core::{Grant, LockName, Owner, Result};
use futures_util::future::{BoxFuture, join_all};

use crate::acquire::{acquire, leave};
use crate::cell;
use crate::heartbeat::{Beat, beat};
use crate::listing;
use crate::release::release;
use crate::shared::Shared;

/// What operations have in common that do not disturb each other although they are about the same lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    /// Each has nodes of its own, and the server puts them in order.
    Coming,
    Keeping,
    Going,
    Looking,
    Nobody,
}

impl Company {
    fn of(op: &Op) -> Self {
        match op {
            Op::Acquire { .. } => Self::Coming,
            Op::Check(_) | Op::Renew(_) => Self::Keeping,
            Op::Release(_) | Op::Leave(_) => Self::Going,
            Op::ReadCell(_) => Self::Looking,
            Op::WriteCell { .. } | Op::Break { .. } => Self::Nobody,
        }
    }
}

/// Executes the operations; answers come in their order.
pub(crate) async fn execute(shared: &Arc<Shared>, ops: &[Op]) -> Vec<Result<Reply>> {
    let mut replies: Vec<Option<Result<Reply>>> = ops.iter().map(|_| None).collect();
    for round in rounds(ops) {
        for (at, reply) in run(shared, ops, &round).await {
            replies[at] = Some(reply);
        }
    }
    replies.into_iter().map(|reply| reply.unwrap_or_else(|| Err(shared.vanished()))).collect()
}

/// Which operations go together: each in the first round in which it sees what those before it did.
fn rounds(ops: &[Op]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    let mut names: HashMap<&LockName, (usize, Company)> = HashMap::new();
    let mut owners: HashMap<Owner, usize> = HashMap::new();
    for (at, op) in ops.iter().enumerate() {
        let company = Company::of(op);
        let mut round = owner_of(op).and_then(|owner| owners.get(&owner)).map_or(0, |last| last + 1);
        for name in names_of(op) {
            if let Some((last, there)) = names.get(name) {
                let goes_along = *there == company && company != Company::Nobody;
                round = round.max(if goes_along { *last } else { last + 1 });
            }
        }
        for name in names_of(op) {
            names.insert(name, (round, company));
        }
        if let Some(owner) = owner_of(op) {
            owners.insert(owner, round);
        }
        if rounds.len() <= round {
            rounds.resize_with(round + 1, Vec::new);
        }
        rounds[round].push(at);
    }
    rounds
}

fn owner_of(op: &Op) -> Option<Owner> {
    match op {
        Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt) => Some(attempt.owner),
        Op::Renew(grant) | Op::Release(grant) | Op::WriteCell { grant, .. } => Some(grant.attempt.owner),
        Op::ReadCell(_) | Op::Break { .. } => None,
    }
}

fn names_of(op: &Op) -> Vec<&LockName> {
    match op {
        Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt) => {
            attempt.wants.iter().map(|want| &want.name).collect()
        }
        Op::Renew(grant) | Op::Release(grant) | Op::WriteCell { grant, .. } => {
            grant.attempt.wants.iter().map(|want| &want.name).collect()
        }
        Op::ReadCell(name) | Op::Break { name, .. } => vec![name],
    }
}

type Answers = Vec<(usize, Result<Reply>)>;

/// Executes what goes together.
async fn run(shared: &Arc<Shared>, ops: &[Op], round: &[usize]) -> Answers {
    let mut beats: Vec<(usize, Beat<'_>)> = Vec::new();
    let mut grants: Vec<(usize, &Grant)> = Vec::new();
    let mut work: Vec<BoxFuture<'_, Answers>> = Vec::new();
    for at in round.iter().copied() {
        match &ops[at] {
            Op::Renew(grant) => beats.push((at, Beat::Renew(grant))),
            Op::Check(attempt) => beats.push((at, Beat::Check(attempt))),
            Op::Release(grant) => grants.push((at, grant)),
            op => work.push(Box::pin(async move { vec![(at, alone(shared, op).await)] })),
        }
    }
    if !grants.is_empty() {
        work.push(Box::pin(async move {
            let (at, grants): (Vec<usize>, Vec<&Grant>) = grants.into_iter().unzip();
            at.into_iter().zip(release(shared, &grants).await).collect()
        }));
    }
    if !beats.is_empty() {
        work.push(Box::pin(async move {
            let (at, beats): (Vec<usize>, Vec<Beat<'_>>) = beats.into_iter().unzip();
            at.into_iter().zip(beat(shared, &beats).await).collect()
        }));
    }
    join_all(work).await.into_iter().flatten().collect()
}

async fn alone(shared: &Arc<Shared>, op: &Op) -> Result<Reply> {
    match op {
        Op::Acquire { attempt, queue } => acquire(shared, attempt, *queue).await,
        Op::Leave(attempt) => leave(shared, attempt).await,
        Op::ReadCell(name) => listing::read_cell(shared, name).await,
        Op::WriteCell { grant, name, bytes, keep } => cell::write(shared, grant, name, bytes, *keep).await,
        Op::Break { name, token } => listing::break_lock(shared, name, *token).await,
        Op::Renew(_) | Op::Check(_) | Op::Release(_) => Err(shared.vanished()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost_core::backend::Queue;
    use fencepost_core::{Attempt, Award, FencingToken, Mode, Rule, Want};

    use super::*;

    fn attempt(names: &[&str]) -> Arc<Attempt> {
        let want = |name: &&str| Want { name: LockName::new(*name).unwrap(), mode: Mode::Exclusive };
        Arc::new(Attempt {
            owner: Owner::random(),
            wants: names.iter().map(want).collect(),
            rule: Rule::All,
            ttl: Duration::from_secs(10),
            label: "test".into(),
            meta: [].into(),
        })
    }

    fn acquire(attempt: &Arc<Attempt>) -> Op {
        Op::Acquire { attempt: attempt.clone(), queue: Queue::Join }
    }

    fn release(attempt: &Arc<Attempt>) -> Op {
        let award = Award { token: FencingToken::new(1), ttl: attempt.ttl, chosen: 0, spent: Duration::ZERO };
        Op::Release(Grant { attempt: attempt.clone(), award })
    }

    #[test]
    fn what_does_not_depend_on_each_other_goes_at_once() {
        let (a, b, again) = (attempt(&["a"]), attempt(&["b"]), attempt(&["a"]));
        assert_eq!(rounds(&[acquire(&a), acquire(&again), release(&b)]), [vec![0, 1, 2]]);
        assert_eq!(rounds(&[]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn what_depends_on_something_goes_behind_it() {
        let (a, b, both) = (attempt(&["a"]), attempt(&["b"]), attempt(&["a", "b"]));
        assert_eq!(rounds(&[release(&a), acquire(&both), release(&b)]), [vec![0], vec![1], vec![2]]);
        assert_eq!(rounds(&[acquire(&a), acquire(&a)]), [vec![0], vec![1]], "the same owner");
        assert_eq!(rounds(&[release(&a), acquire(&b), Op::Check(both)]), [vec![0, 1], vec![2]]);
    }
}
