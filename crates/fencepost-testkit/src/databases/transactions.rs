//! Leases, transactions, sweeps and broken connections at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::Client;
use futures_util::future::{LocalBoxFuture, join_all};

use crate::rng::Rng;
use crate::{WireBench, suite, wait};

const NAMES: usize = 3;
const TTL: Duration = Duration::from_secs(3);

/// The locks that leases and transactions acquire at the same time: the number of holders and the newest token of each.
#[derive(Debug, Default)]
pub struct Watched {
    inside: [AtomicUsize; NAMES],
    newest: [AtomicU64; NAMES],
    turns: [AtomicUsize; 2],
    is_over: AtomicBool,
}

impl Watched {
    /// Returns the index of one of the locks, and its name.
    pub fn choose(rng: &mut Rng) -> (usize, String) {
        let lock = rng.index(NAMES);
        (lock, format!("lock/{lock}"))
    }

    /// Returns whether the test goes on.
    pub fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Holds the lock in a transaction for a moment.
    pub async fn enter_in_transaction(&self, lock: usize, token: u64) {
        self.enter(lock, token, &self.turns[1]).await;
    }

    /// Holds the lock for a moment, and asserts that it has no other holder and that its token is the newest.
    async fn enter(&self, lock: usize, token: u64, turns: &AtomicUsize) {
        assert_eq!(self.inside[lock].fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
        let before = self.newest[lock].swap(token, Ordering::SeqCst);
        assert!(before < token, "token {token} after {before}");
        wait::elapse(Duration::from_millis(1)).await;
        turns.fetch_add(1, Ordering::Relaxed);
        self.inside[lock].fetch_sub(1, Ordering::SeqCst);
    }

    async fn hold_leases(&self, client: &Client, seed: u64) {
        let mut rng = Rng::new(seed);
        while self.goes_on() {
            let (lock, name) = Self::choose(&mut rng);
            let acquired = if rng.percent(30) {
                client.lock(name).ttl(TTL).try_acquire().await.ok().flatten()
            } else {
                client.lock(name).ttl(TTL).wait(Duration::from_millis(300)).acquire().await.ok()
            };
            if let Some(guard) = acquired {
                self.enter(lock, guard.token().get(), &self.turns[0]).await;
                // Its outcome may be unknown.
                let _ = guard.release().await;
            }
        }
    }

    /// Resets connections, and ends when leases and transactions had turns.
    async fn disturb<B: WireBench>(&self, bench: &B) {
        for _ in 0..10 {
            wait::elapse(Duration::from_millis(300)).await;
            bench.wire().reset();
        }
        wait::until("both sides had turns", async || {
            self.turns.iter().all(|turns| turns.load(Ordering::Relaxed) > 5)
        })
        .await;
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Holds leases while their connections are reset, and `others` hold the same locks in transactions and sweep, until
    /// [`Watched::goes_on`] returns `false`. A lock has one holder at a time, and its tokens rise, whichever way it is acquired.
    pub async fn run<B: WireBench>(&self, bench: &B, others: LocalBoxFuture<'_, ()>) {
        let clients = [bench.client().await, bench.direct_client().await, bench.direct_client().await];
        let leases = (0..6).zip(clients.iter().cycle());
        let leases = join_all(leases.map(|(seed, client)| self.hold_leases(client, seed)));
        let all = async { tokio::join!(leases, others, self.disturb(bench)) };
        wait::within_timeout("all end", all).await;
        suite::assert_clean(bench).await;
    }
}
