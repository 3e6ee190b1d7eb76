//! What every backend must do, one group per module. All are listed in [`behavior_suite!`](crate::behavior_suite); those
//! that need a [`Wire`](crate::wire::Wire) in [`wire_suite!`](crate::wire_suite), and those for locks that live in sessions of the
//! server in [`session_suite!`](crate::session_suite).

#![allow(clippy::missing_panics_doc, reason = "a behaviour panics if a backend does not have it")]

pub mod admin;
pub mod batching;
pub mod cancellation;
pub mod cell;
pub mod contract;
pub mod exclusion;
pub mod executors;
pub mod expiry;
pub mod failure;
pub mod fencing;
pub mod hand_over;
pub mod lost_replies;
pub mod modes;
pub mod names;
pub mod network_faults;
pub mod reconnect;
pub mod release;
pub mod renewal;
pub mod session_ends;
pub mod session_limits;
pub mod several_names;
pub mod silence;
pub mod stress;
pub mod waiting;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Backend, OnBusy, Op, Reply};
use fencepost_core::{
    Attempt, Award, Client, Error, ErrorKind, Grant, Lock, LockName, Mode, Owner, Result, Rule, Want,
};
use futures_util::StreamExt;
use tokio::task::JoinHandle;

use crate::actions::{LONG_TTL, Waiter, enqueue, granted, hold, spawn_waiter};
use crate::test_bench::TestBench;
use crate::wait;

async fn is_held(client: &Client, name: &str) -> bool {
    !client.inspect(name).await.expect("the lock can be inspected").holders.is_empty()
}

async fn until_free(client: &Client, name: &str) {
    wait::until("the lock is free", async || !is_held(client, name).await).await;
}

/// Waits until the lock has this many waiters. Panics if the backend cannot be reached meanwhile.
async fn until_queued(client: &Client, name: &str, waiters: usize) {
    let what = format!("{waiters} wait for {name}");
    wait::until(&what, async || {
        client.inspect(name).await.expect("the lock can be inspected").waiter_count == waiters
    })
    .await;
}

/// Enqueues waiters one after the other, so that their order is known.
async fn enqueue_all(observer: &Client, name: &str, locks: impl IntoIterator<Item = Lock>) -> Vec<Waiter> {
    let mut waiters = Vec::new();
    for lock in locks {
        waiters.push(enqueue(observer, lock, name, waiters.len() + 1).await);
    }
    waiters
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T>) -> Error {
    outcome.expect_err("this is refused")
}

/// Returns the outcome of a call; `None` if the backend does not support it.
#[track_caller]
fn supported<T>(outcome: Result<T>) -> Option<T> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::Unsupported => None,
        outcome => Some(outcome.expect("the call succeeds")),
    }
}

/// A backend without a client: executes single operations, and reads pushes as the engine does.
struct Bare {
    backend: Arc<dyn Backend>,
    listening: JoinHandle<()>,
}

impl Bare {
    async fn new(bench: &impl TestBench) -> Self {
        let backend = bench.connect_patiently().await.expect("the bench connects");
        let mut pushes = backend.wakeups();
        let listening = tokio::spawn(async move { while pushes.next().await.is_some() {} });
        Self { backend, listening }
    }

    async fn execute(&self, op: Op) -> Reply {
        self.try_execute(op).await.expect("the operation succeeds")
    }

    async fn try_execute(&self, op: Op) -> Result<Reply> {
        let mut replies = self.backend.execute(vec![op]).await;
        assert_eq!(replies.len(), 1, "one reply to one operation");
        replies.remove(0)
    }

    async fn acquire(&self, attempt: &Arc<Attempt>, on_busy: OnBusy) -> Reply {
        self.execute(Op::Acquire { attempt: attempt.clone(), on_busy }).await
    }

    async fn hold(&self, attempt: &Arc<Attempt>) -> Grant {
        match self.acquire(attempt, OnBusy::Return).await {
            Reply::Granted(award) => Grant { attempt: attempt.clone(), award },
            other => panic!("the lock is not granted: {other:?}"),
        }
    }

    /// Checks a ticket that is granted by now: once, unless the backend yields to foreign clients.
    async fn until_awarded(&self, bench: &impl TestBench, attempt: &Arc<Attempt>) -> Award {
        let mut reply = self.execute(Op::Check(attempt.clone())).await;
        if bench.yields_to_foreign_clients() {
            wait::until("the gap is over", async || {
                reply = self.execute(Op::Check(attempt.clone())).await;
                !matches!(reply, Reply::Waiting { .. })
            })
            .await;
        }
        award(&reply)
    }

    async fn close(self) {
        self.backend.close().await;
        self.listening.abort();
    }
}

fn name(text: &str) -> LockName {
    LockName::new(text).expect("it is a name")
}

pub(crate) fn attempt(names: &[&str], ttl: Duration) -> Arc<Attempt> {
    attempt_as(names, Mode::Exclusive, Rule::All, ttl)
}

fn attempt_as(names: &[&str], mode: Mode, rule: Rule, ttl: Duration) -> Arc<Attempt> {
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: names.iter().map(|text| Want { name: name(text), mode }).collect(),
        rule,
        ttl,
        label: "bare".into(),
        meta: [].into(),
    })
}

/// The award of a reply, with the elapsed part of its lease removed for comparisons.
#[track_caller]
fn award(reply: &Reply) -> Award {
    match reply {
        Reply::Granted(award) | Reply::AlreadyGranted(award) => Award { elapsed: Duration::ZERO, ..*award },
        other => panic!("the lock is not granted: {other:?}"),
    }
}
