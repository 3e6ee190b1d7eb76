//! How many requests operations take.

use std::collections::BTreeMap;
use std::sync::Arc;

use fencepost_core::backend::{OnBusy, Op, Reply, Wakeup};
use fencepost_core::{Attempt, Award, Grant};
use futures_util::StreamExt;

use crate::WireBench;
use crate::actions::{LONG_TTL, hold};
use crate::behaviors::attempt;
use crate::wait;

/// An acquire of a free lock is one request, and so is its release.
pub async fn a_free_lock_is_acquired_and_released_by_one_request_each<B: WireBench>(bench: &B) {
    const PAIRS: usize = 40;
    let client = bench.client().await;
    let lock = client.lock("a").ttl(LONG_TTL);
    // Connects, and finds out what there is to know about the server.
    hold(&lock).await.release().await.expect("it is held");
    let before = bench.wire().sent();
    for _ in 0..PAIRS {
        hold(&lock).await.release().await.expect("it is held");
    }
    let sent = bench.wire().sent() - before;
    assert!(sent >= 2 * PAIRS, "the wire counts them");
    // On a busy machine, a pause may make the next operation a longer one; and what has expired is swept on the way.
    assert!(sent < 3 * PAIRS, "{sent} requests for {PAIRS} pairs");
}

/// Acquire, join, renewal, leave and a release that hands the lock over are one request each.
pub async fn every_operation_is_one_request<B: WireBench>(bench: &B) {
    const ROUNDS: usize = 20;
    let backend = bench.connect().await.expect("it is reachable");
    let mut pushes = backend.wakeups();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    // The first ones prepare statements.
    for round in 0..ROUNDS + 3 {
        let [holder, successor, leaving] = [(); 3].map(|()| attempt(&["a"], LONG_TTL));
        let acquire =
            |attempt: &Arc<Attempt>| Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait };
        let mut send = async |what, op| {
            let before = bench.wire().sent();
            let reply = backend.execute(vec![op]).await.remove(0).expect("it is reachable");
            if round >= 3 {
                *counts.entry(what).or_default() += bench.wire().sent() - before;
            }
            reply
        };
        let Reply::Granted(award) = send("acquire", acquire(&holder)).await else { panic!("it is free") };
        let grant = |attempt: &Arc<Attempt>, award: Award| Grant { attempt: attempt.clone(), award };
        assert!(matches!(send("join", acquire(&successor)).await, Reply::Waiting { .. }));
        assert!(matches!(send("join", acquire(&leaving)).await, Reply::Waiting { .. }));
        assert!(matches!(send("renewal", Op::Renew(grant(&holder, award))).await, Reply::Renewed { .. }));
        assert!(matches!(send("leave", Op::Leave(leaving.clone())).await, Reply::Left));
        assert!(matches!(send("hand-over", Op::Release(grant(&holder, award))).await, Reply::Released));
        let push = wait::within_timeout("the successor is granted the lock", pushes.next()).await;
        let Some(Wakeup::Granted { attempt, award }) = push else { panic!("not a grant: {push:?}") };
        assert_eq!(attempt.owner, successor.owner);
        assert!(matches!(send("release", Op::Release(grant(&successor, award))).await, Reply::Released));
    }
    for (what, count) in counts {
        let operations = if what == "join" { 2 * ROUNDS } else { ROUNDS };
        assert!(count >= operations, "the wire counts them: {what}");
        // What has expired is swept on the way.
        assert!(2 * count < 3 * operations, "{what}: {count} requests for {operations} operations");
    }
    backend.close().await;
}
