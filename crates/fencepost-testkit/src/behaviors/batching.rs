//! Many operations in one flight: each independent of the others, with replies in order.

use std::sync::Arc;

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::{Attempt, ErrorKind, Grant, Keep, Mode, Rule};

use super::{Bare, LONG_TTL, attempt, attempt_as, award, hold, name};
use crate::test_bench::TestBench;

/// There is one reply for each operation, in the order of the operations.
pub async fn replies_are_in_the_order_of_operations<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let attempts: Vec<_> = (0..100).map(|number| attempt(&[&format!("lock/{number}")], LONG_TTL)).collect();
    let ask = |attempt: &Arc<Attempt>| Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Return };
    let flights = attempts.chunks(bare.backend.info().max_batch);
    let mut grants = Vec::new();
    for flight in flights {
        let replies = bare.backend.execute(flight.iter().map(ask).collect()).await;
        assert_eq!(replies.len(), flight.len());
        let awards = replies.into_iter().map(|reply| award(&reply.unwrap()));
        grants.extend(flight.iter().cloned().zip(awards).map(|(attempt, award)| Grant { attempt, award }));
    }
    for (number, grant) in grants.iter().enumerate() {
        let state = bare.backend.inspect(&name(&format!("lock/{number}"))).await.unwrap();
        assert_eq!(state.holders[0].token, Some(grant.award.token));
    }
    for flight in grants.chunks(bare.backend.info().max_batch) {
        let replies = bare.backend.execute(flight.iter().cloned().map(Op::Release).collect()).await;
        assert!(replies.into_iter().all(|reply| reply.unwrap() == Reply::Released));
    }
    bare.close().await;
}

/// Every kind of operation sees the effects of those before it: in one flight, unless the backend declares that they may not
/// share one.
pub async fn operations_of_one_flight_see_each_other<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let grant = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    let next = attempt(&["a"], LONG_TTL);
    let ops = [
        Op::Acquire { attempt: next.clone(), on_busy: OnBusy::Return },
        Op::Acquire { attempt: next.clone(), on_busy: OnBusy::Wait },
        Op::WriteCell { grant: grant.clone(), name: name("a"), bytes: [7].into(), keep: Keep::WhileHeld },
        Op::Renew(grant.clone()),
        Op::Release(grant),
        Op::ReadCell(name("a")),
        Op::Check(next.clone()),
    ];
    // Each depends on the one before it.
    let size = if bare.backend.info().may_share.is_some() { 1 } else { ops.len() };
    let mut replies = Vec::new();
    for flight in ops.chunks(size) {
        replies.extend(bare.backend.execute(flight.to_vec()).await.into_iter().map(Result::unwrap));
    }
    assert_eq!(replies[0], Reply::Busy);
    assert!(matches!(replies[1], Reply::Waiting { .. }));
    assert_eq!(replies[2], Reply::Written);
    assert!(matches!(replies[3], Reply::Renewed { .. }));
    assert_eq!(replies[4..6], [Reply::Released, Reply::Cell(None)]);
    let grant = Grant { attempt: next, award: award(&replies[6]) };
    let ops = [Op::Break { name: name("a"), token: grant.award.token }, Op::Renew(grant)];
    let mut replies = Vec::new();
    for flight in ops.chunks(size.min(ops.len())) {
        replies.extend(bare.backend.execute(flight.to_vec()).await.into_iter().map(Result::unwrap));
    }
    assert_eq!(replies, [Reply::Released, Reply::NotHeld]);
    bare.close().await;
}

/// A failing operation does not fail the others of its flight.
pub async fn one_failing_operation_does_not_fail_the_others<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let client = bench.client().await;
    let semaphore = hold(&client.lock("b").ttl(LONG_TTL).mode(Mode::Semaphore { permits: 2 })).await;
    let (a, c) = (attempt(&["a"], LONG_TTL), attempt(&["c"], LONG_TTL));
    let conflict = attempt_as(&["b"], Mode::Semaphore { permits: 3 }, Rule::All, LONG_TTL);
    let ask = |attempt: &Arc<Attempt>| Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait };
    let mut replies = bare.backend.execute(vec![ask(&a), ask(&conflict), ask(&c)]).await;
    let failed = replies.remove(1).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Conflict);
    for (attempt, reply) in [a, c].into_iter().zip(replies) {
        let grant = Grant { attempt, award: award(&reply.unwrap()) };
        assert_eq!(bare.execute(Op::Release(grant)).await, Reply::Released);
    }
    semaphore.release().await.unwrap();
    bare.close().await;
}

/// An empty flight has no replies.
pub async fn an_empty_flight_has_no_replies<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    assert!(bare.backend.execute(Vec::new()).await.is_empty());
    bare.close().await;
}

/// Many concurrent tasks of one client get their own replies.
pub async fn many_tasks_get_their_own_replies<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let tasks: Vec<_> = (0..200)
        .map(|number| {
            let lock = client.lock(format!("lock/{number}")).ttl(LONG_TTL);
            tokio::spawn(async move {
                let guard = lock.try_acquire().await.unwrap().expect("no other client waits");
                assert_eq!(guard.name().as_str(), format!("lock/{number}"));
                guard.release().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
