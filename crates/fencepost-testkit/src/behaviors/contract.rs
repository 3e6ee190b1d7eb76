//! The contract of a backend, operation by operation: repeated requests, late arrivals, unknown owners.

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::{Grant, Mode, Rule};

use super::{Bare, LONG_TTL, attempt, attempt_as, award, is_held, name};
use crate::test_bench::TestBench;

async fn release(bare: &Bare, grant: Grant) {
    assert_eq!(bare.execute(Op::Release(grant)).await, Reply::Released);
}

/// A repeated acquire returns the same grant, or keeps the same ticket.
pub async fn acquire_is_idempotent<B: TestBench>(bench: &B) {
    assert_idempotent(bench, &["a"]).await;
}

/// The same for several names at once.
pub async fn acquire_of_several_names_is_idempotent<B: TestBench>(bench: &B) {
    assert_idempotent(bench, &["a", "b"]).await;
}

async fn assert_idempotent<B: TestBench>(bench: &B, names: &[&str]) {
    let bare = Bare::new(bench).await;
    let holder = attempt(names, LONG_TTL);
    let grant = bare.hold(&holder).await;
    for on_busy in [OnBusy::Return, OnBusy::Wait] {
        assert_eq!(award(&bare.acquire(&holder, on_busy).await), grant.award);
    }
    let waiter = attempt(&["a"], LONG_TTL);
    for _ in 0..3 {
        assert!(matches!(bare.acquire(&waiter, OnBusy::Wait).await, Reply::Waiting { .. }));
    }
    let state = bare.backend.inspect(&name("a")).await.unwrap();
    assert_eq!((state.holders.len(), state.waiter_count), (1, 1));
    release(&bare, grant).await;
    let grant = Grant { attempt: waiter.clone(), award: award(&bare.acquire(&waiter, OnBusy::Wait).await) };
    release(&bare, grant).await;
    bare.close().await;
}

/// A holder that leaves is told its grant, and keeps it.
pub async fn a_holder_that_leaves_keeps_its_grant<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let held = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    for _ in 0..2 {
        let late = bare.execute(Op::Leave(held.attempt.clone())).await;
        assert!(matches!(late, Reply::AlreadyGranted(_)), "it holds the lock: {late:?}");
        assert_eq!(award(&late), held.award);
    }
    assert_eq!(bare.execute(Op::Renew(held.clone())).await, Reply::Renewed { ttl: held.award.ttl });
    release(&bare, held).await;
    bare.close().await;
}

/// Scenario 50: an acquire that arrives after its owner has left does nothing.
pub async fn late_acquire_is_defeated<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let late = attempt(&["a"], bench.ttl());
    assert_eq!(bare.execute(Op::Leave(late.clone())).await, Reply::Left);
    assert_eq!(bare.acquire(&late, OnBusy::Return).await, Reply::Busy);
    assert_eq!(bare.acquire(&late, OnBusy::Wait).await, Reply::Busy);
    assert_eq!(bare.execute(Op::Check(late.clone())).await, Reply::NoTicket);
    assert_eq!(bare.execute(Op::Leave(late)).await, Reply::Left);
    assert!(bare.backend.inspect(&name("a")).await.unwrap().is_idle());
    let other = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    release(&bare, other).await;
    bare.close().await;
}

/// A leave after the grant returns the grant, and the lock stays held.
pub async fn leaving_after_the_grant_changes_nothing<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let holder = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    let waiter = attempt(&["a"], LONG_TTL);
    assert!(matches!(bare.acquire(&waiter, OnBusy::Wait).await, Reply::Waiting { .. }));
    release(&bare, holder).await;
    let late = bare.execute(Op::Leave(waiter.clone())).await;
    assert!(matches!(late, Reply::AlreadyGranted(_)), "it holds the lock: {late:?}");
    let given = Grant { attempt: waiter.clone(), award: award(&late) };
    assert_eq!(award(&bare.execute(Op::Leave(waiter)).await), given.award);
    assert_eq!(bare.execute(Op::Renew(given.clone())).await, Reply::Renewed { ttl: given.award.ttl });
    release(&bare, given).await;
    bare.close().await;
}

/// Leaving the queue removes the ticket: the next waiter is granted, and a check finds no ticket.
pub async fn leaving_removes_the_ticket<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let holder = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    let (leaving, staying) = (attempt(&["a"], bench.ttl()), attempt(&["a"], LONG_TTL));
    for attempt in [&leaving, &staying] {
        assert!(matches!(bare.acquire(attempt, OnBusy::Wait).await, Reply::Waiting { .. }));
    }
    assert_eq!(bare.execute(Op::Leave(leaving.clone())).await, Reply::Left);
    assert_eq!(bare.execute(Op::Check(leaving)).await, Reply::NoTicket);
    release(&bare, holder).await;
    let grant = Grant { attempt: staying.clone(), award: bare.until_awarded(bench, &staying).await };
    release(&bare, grant).await;
    bare.close().await;
}

/// A check is a heartbeat and a claim: it returns "waiting", then the grant, the same one every time.
pub async fn a_check_returns_the_grant<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let holder = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    let waiter = attempt(&["a"], LONG_TTL);
    assert_eq!(bare.execute(Op::Check(waiter.clone())).await, Reply::NoTicket);
    assert!(matches!(bare.acquire(&waiter, OnBusy::Wait).await, Reply::Waiting { .. }));
    assert!(matches!(bare.execute(Op::Check(waiter.clone())).await, Reply::Waiting { .. }));
    release(&bare, holder).await;
    let first = bare.until_awarded(bench, &waiter).await;
    assert_eq!(award(&bare.execute(Op::Check(waiter.clone())).await), first);
    release(&bare, Grant { attempt: waiter, award: first }).await;
    bare.close().await;
}

/// A waiter is told when to check again: not before the leases ahead of it can have expired.
pub async fn a_waiter_is_told_when_to_check_again<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let holder = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    let waiter = attempt(&["a"], LONG_TTL);
    let Reply::Waiting { check_after } = bare.acquire(&waiter, OnBusy::Wait).await else {
        panic!("it waits")
    };
    assert!(check_after > LONG_TTL / 2 && check_after <= holder.award.ttl, "{check_after:?}");
    assert_eq!(bare.execute(Op::Leave(waiter)).await, Reply::Left);
    release(&bare, holder).await;
    bare.close().await;
}

/// An owner whose grant was broken can acquire again, and does not get the old grant.
pub async fn an_owner_acquires_again_after_its_grant_was_broken<B: TestBench>(bench: &B) {
    assert_acquired_again(bench, &["b"]).await;
}

/// The same for a grant of several names, of which one was broken.
pub async fn an_owner_acquires_several_names_again_after_one_was_broken<B: TestBench>(bench: &B) {
    assert_acquired_again(bench, &["a", "b"]).await;
}

async fn assert_acquired_again<B: TestBench>(bench: &B, names: &[&str]) {
    let (bare, other) = (Bare::new(bench).await, Bare::new(bench).await);
    let again = attempt(names, LONG_TTL);
    let broken = bare.hold(&again).await;
    let token = broken.award.token;
    assert_eq!(other.execute(Op::Break { name: name("b"), token }).await, Reply::Released);
    let again = bare.hold(&again).await;
    assert!(again.award.token > token, "{again:?} is not newer than {broken:?}");
    assert_eq!(bare.execute(Op::Renew(broken)).await, Reply::NotHeld);
    release(&bare, again).await;
    bare.close().await;
    other.close().await;
}

/// A try never joins the queue, and never takes what others wait for.
pub async fn a_try_leaves_no_trace<B: TestBench>(bench: &B) {
    assert_no_trace(bench, &["a"]).await;
}

/// The same for several names at once.
pub async fn a_try_of_several_names_leaves_no_trace<B: TestBench>(bench: &B) {
    assert_no_trace(bench, &["a", "b"]).await;
}

async fn assert_no_trace<B: TestBench>(bench: &B, names: &[&str]) {
    let bare = Bare::new(bench).await;
    let holder = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    let tried = attempt_as(names, Mode::Exclusive, Rule::All, LONG_TTL);
    assert_eq!(bare.acquire(&tried, OnBusy::Return).await, Reply::Busy);
    assert_eq!(bare.backend.inspect(&name("a")).await.unwrap().waiter_count, 0);
    assert!(bare.backend.inspect(&name("b")).await.unwrap().is_idle());
    assert_eq!(bare.execute(Op::Check(tried)).await, Reply::NoTicket);
    release(&bare, holder).await;
    bare.close().await;
}

/// A backend describes itself, the same way every time.
pub async fn a_backend_describes_itself<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let (info, again) = (bare.backend.info(), bare.backend.info());
    assert_eq!((info.scheme, info.storage_id), (again.scheme, again.storage_id));
    assert!(info.min_ttl <= bench.ttl() && info.max_ttl >= LONG_TTL);
    assert!(info.max_flights >= 1 && info.max_batch >= 1);
    assert!(info.location.starts_with(info.scheme));
    assert!(!is_held(&bench.client().await, "a").await);
    bare.close().await;
}
