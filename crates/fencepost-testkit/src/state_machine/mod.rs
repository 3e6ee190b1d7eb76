//! The state machine test: random flights on a backend, one or two at a time, compared with a model after each round.
//!
//! A flight has several operations, and those of two flights are concurrent: their replies are correct if there is an order
//! of the operations in which the model gives the same ones. Operations inside one flight are in order if the backend
//! declares that it executes them so ([`BackendInfo::may_share`] is `None`), and concurrent otherwise.

mod commands;
mod explain;
mod linearize;
mod model;
mod plan;
mod step;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{BackendInfo, LockState, Op, Reply, Wakeup};
use fencepost_core::clock::ManualClock;
use fencepost_core::{Attempt, Award, Backend, Owner, Rule};
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::{BoxStream, select_all};
use futures_util::{FutureExt, StreamExt};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};

use crate::test_bench::TestBench;
use commands::{CLIENTS, Kind, Round};
use linearize::{Call, calls_of};
use model::World;
use plan::{Flight, lock_name};
use step::{Ask, NAMES};

/// How long an offer may take to arrive after its flight was answered.
const OFFER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a shorter history that fails is looked for: each one that fails takes [`OFFER_TIMEOUT`].
const MAX_SHRINK_MILLIS: u32 = 120_000;

/// Compares this many random histories on fresh benches with the model, or `PROPTEST_CASES` if that is set. Leases expire in
/// them if the bench has a clock that can be moved.
///
/// # Panics
/// With the shortest history that differs, and the seed it was found with: `PROPTEST_RNG_SEED` repeats it.
pub fn check<B: TestBench>(cases: u32, make: impl Fn() -> B) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime can be created");
    let seed = match Config::default().rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => {
            u64::from_be_bytes(*Owner::random().to_bytes().first_chunk().expect("it is long enough"))
        }
    };
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { cases };
    let config = Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_time: MAX_SHRINK_MILLIS,
        ..Config::default()
    };
    let bench = make();
    let kind = Kind { time_passes: bench.manual_clock().is_some(), is_strict: !bench.has_entry_per_waiter() };
    let outcome = TestRunner::new(config).run(&commands::rounds(kind), |rounds| {
        runtime.block_on(async {
            let bench = make();
            let mut machine = Machine::new(&bench).await;
            for (at, round) in rounds.into_iter().enumerate() {
                machine.run(at, round).await.map_err(TestCaseError::fail)?;
            }
            machine.close().await;
            Ok(())
        })
    });
    if let Err(error) = outcome {
        panic!("{error}\nseed: PROPTEST_RNG_SEED={seed}");
    }
}

struct Machine {
    clients: Vec<(Arc<dyn Backend>, BoxStream<'static, Wakeup>)>,
    info: BackendInfo,
    clock: Option<ManualClock>,
    has_entry_per_waiter: bool,
    creates_entries_before_reading: bool,
    asks: Vec<Ask>,
    attempts: Vec<Arc<Attempt>>,
    /// The client that made each attempt, and sends all its operations.
    makers: Vec<usize>,
    /// The awards that each attempt was observed to get.
    awards: BTreeMap<usize, Vec<Award>>,
    worlds: Vec<World>,
    /// What was pushed and has not been checked yet.
    pushed: Vec<Wakeup>,
}

impl Machine {
    async fn new(bench: &impl TestBench) -> Self {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let backend = bench.connect_patiently().await.expect("the bench connects");
            let pushes = backend.wakeups();
            clients.push((backend, pushes));
        }
        Self {
            info: clients[0].0.info(),
            clients,
            clock: bench.manual_clock(),
            has_entry_per_waiter: bench.has_entry_per_waiter(),
            creates_entries_before_reading: bench.creates_entries_before_reading(),
            asks: Vec::new(),
            attempts: Vec::new(),
            makers: Vec::new(),
            awards: BTreeMap::new(),
            worlds: vec![World::default()],
            pushed: Vec::new(),
        }
    }

    async fn close(self) {
        for (backend, _) in self.clients {
            backend.close().await;
        }
    }

    /// Executes a round and compares everything that can be observed afterwards.
    async fn run(&mut self, at: usize, round: Round) -> Result<(), String> {
        if let (Round::Pass(time), Some(clock)) = (&round, &self.clock) {
            clock.advance(*time);
        }
        let flights = self.plan(at, round);
        let calls = self.execute(flights).await;
        if self.has_entry_per_waiter {
            self.choose().await;
        }
        self.worlds = self.explained(&calls).await.map_err(|differences| {
            let calls: Vec<String> = calls.iter().map(|call| format!("{call:?}")).collect();
            format!("round {at} has no order that explains it:\n{}\n{differences}", calls.join("\n"))
        })?;
        self.remember_awards();
        self.check_pushes()
    }

    /// Returns the worlds that explain the calls and what is stored after them. A lock that was offered to a waiter is granted by
    /// its check: offers are accepted as long as they are missing in the explanation.
    async fn explained(&mut self, calls: &[Call]) -> Result<Vec<World>, String> {
        loop {
            let seen = self.look().await?;
            match self.linearize(calls, &seen) {
                Err(differences) if !self.accept_offer().await => return Err(differences),
                Err(_) => {}
                Ok(worlds) => return Ok(worlds),
            }
        }
    }

    /// Checks a waiter to which a lock was offered, as a client does. Returns false if no offer arrives.
    async fn accept_offer(&mut self) -> bool {
        let pushes = self
            .clients
            .iter_mut()
            .enumerate()
            .map(|(client, (_, pushes))| pushes.map(move |push| (client, push)));
        let mut pushes = select_all(pushes);
        let offer = async {
            while let Some((client, push)) = pushes.next().await {
                match push {
                    Wakeup::Offered { attempt } => return Some((client, attempt)),
                    push => self.pushed.push(push),
                }
            }
            None
        };
        let Ok(Some((client, attempt))) = tokio::time::timeout(OFFER_TIMEOUT, offer).await else {
            return false;
        };
        drop(pushes);
        self.clients[client].0.execute(vec![Op::Check(attempt)]).await;
        true
    }

    /// Executes the flights concurrently.
    async fn execute(&self, flights: Vec<Flight>) -> Vec<Call> {
        let mut calls: Vec<Call> = Vec::new();
        let in_the_air = flights.into_iter().map(async |Flight { client, steps, ops }| {
            let replies = self.clients[client].0.execute(ops).await;
            assert_eq!(replies.len(), steps.len(), "one reply to one operation");
            (steps, replies)
        });
        let is_ordered = self.info.may_share.is_none();
        for (steps, replies) in join_all(in_the_air).await {
            let operations = steps.into_iter().zip(replies);
            calls.extend(calls_of(operations, calls.len(), is_ordered, self.creates_entries_before_reading));
        }
        calls
    }

    /// Checks each waiter for any of several names that was notified, as a client does: it then takes one of its names. That
    /// frees names for others, so it is repeated until nothing is left to choose.
    async fn choose(&self) {
        let mut chosen = 0;
        loop {
            let mut granted = 0;
            for (id, attempt) in self.attempts.iter().enumerate() {
                if attempt.rule == Rule::Any && attempt.wants.len() > 1 {
                    let (backend, _) = &self.clients[self.makers[id]];
                    let reply = backend.execute(vec![Op::Check(attempt.clone())]).await.remove(0);
                    granted += usize::from(matches!(reply, Ok(Reply::Granted(_))));
                }
            }
            if granted == chosen {
                return;
            }
            chosen = granted;
        }
    }

    async fn look(&self) -> Result<Vec<LockState>, String> {
        let looks = (0..NAMES.len()).map(async |name| self.clients[0].0.inspect(&lock_name(name)).await);
        try_join_all(looks).await.map_err(|error| error.to_string())
    }

    fn remember_awards(&mut self) {
        for grant in &self.worlds[0].grants {
            let award = self.award(&self.worlds[0], grant);
            let awards = self.awards.entry(grant.id).or_default();
            if !awards.contains(&award) {
                awards.push(award);
            }
        }
    }

    /// Asserts that every grant that was pushed was granted.
    fn check_pushes(&mut self) -> Result<(), String> {
        for (_, pushes) in &mut self.clients {
            while let Some(Some(push)) = pushes.next().now_or_never() {
                self.pushed.push(push);
            }
        }
        for push in self.pushed.drain(..) {
            let Wakeup::Granted { attempt, award } = push else { continue };
            let id = self.attempts.iter().position(|known| known.owner == attempt.owner);
            let award = Award { elapsed: Duration::ZERO, ..award };
            let awards = id.and_then(|id| self.awards.get(&id));
            if !awards.is_some_and(|awards| awards.contains(&award)) {
                return Err(format!("{id:?} got a push for {award:?}, which was not granted"));
            }
        }
        Ok(())
    }
}
