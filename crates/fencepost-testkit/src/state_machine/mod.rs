//! The state machine: random operations on a storage, compared with a model after every one of them.

mod commands;
mod explain;
mod model;
mod step;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{LockState, Op, Reply, Wakeup};
use fencepost_core::clock::ManualClock;
use fencepost_core::{Attempt, Award, Backend, FencingToken, Grant, LockName, Owner, Rule, Want};
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};

use crate::bench::TestBench;
use commands::{Command, Kind, WhichGrant};
use model::World;
use step::{Ask, NAMES, Step};

const CLIENTS: usize = 3;

/// Compares so many random histories on fresh benches with the model, or `PROPTEST_CASES` if that is set. Leases end
/// in them if the bench has a clock that can be moved.
///
/// # Panics
/// With the shortest history that differs, and the seed it was found with: `PROPTEST_RNG_SEED` repeats it.
pub fn check<B: TestBench>(cases: u32, make: impl Fn() -> B) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let seed = match Config::default().rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => {
            u64::from_be_bytes(*Owner::random().to_bytes().first_chunk().expect("it is long enough"))
        }
    };
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { cases };
    let config =
        Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() };
    let bench = make();
    let kind = Kind { time_passes: bench.manual_clock().is_some(), is_strict: !bench.goes_by_entries() };
    let outcome = TestRunner::new(config).run(&commands::commands(kind), |commands| {
        runtime.block_on(async {
            let bench = make();
            let mut machine = Machine::new(&bench).await;
            for (at, command) in commands.into_iter().enumerate() {
                machine.run(at, command).await.map_err(TestCaseError::fail)?;
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
    clock: Option<ManualClock>,
    goes_by_entries: bool,
    asks: Vec<Ask>,
    attempts: Vec<Arc<Attempt>>,
    /// What each attempt was seen to be awarded.
    awards: BTreeMap<usize, Vec<Award>>,
    worlds: Vec<World>,
}

impl Machine {
    async fn new(bench: &impl TestBench) -> Self {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let backend = bench.connect().await.expect("the bench connects");
            let pushes = backend.wakeups();
            clients.push((backend, pushes));
        }
        Self {
            clients,
            clock: bench.manual_clock(),
            goes_by_entries: bench.goes_by_entries(),
            asks: Vec::new(),
            attempts: Vec::new(),
            awards: BTreeMap::new(),
            worlds: vec![World::default()],
        }
    }

    async fn close(self) {
        for (backend, _) in self.clients {
            backend.close().await;
        }
    }

    /// Executes a command and compares everything that can be seen afterwards.
    async fn run(&mut self, at: usize, command: Command) -> Result<(), String> {
        let Some(step) = self.step(command) else { return Ok(()) };
        if let (Step::Pass(time), Some(clock)) = (&step, &self.clock) {
            clock.advance(*time);
        }
        let op = self.op(&step);
        // What concerns an attempt comes from the client that made it.
        let client = step.who().unwrap_or(at) % CLIENTS;
        let reply = self.clients[client].0.execute(vec![op]).await.remove(0);
        if self.goes_by_entries {
            self.choose().await;
        }
        let seen = self.look().await?;
        let before = std::mem::take(&mut self.worlds);
        let possible = before.iter().flat_map(|world| world.after(&self.asks, &step));
        let mut differences = Vec::new();
        for (mut world, answer) in possible {
            match self.explains(&mut world, &answer, &reply, &seen) {
                Ok(()) => self.worlds.push(world),
                Err(difference) => differences.push(difference),
            }
        }
        if self.worlds.is_empty() {
            return Err(format!(
                "command {at}, {step:?}, was answered {reply:?}\n{}",
                differences.join("\nor ")
            ));
        }
        self.remember_awards();
        self.check_pushes()
    }

    /// Whoever waits for any of several names and has come to its turn takes its choice, as a client does when it is told.
    /// That makes room for others, until nobody has anything to choose.
    async fn choose(&self) {
        let mut chosen = 0;
        loop {
            let mut granted = 0;
            for (who, attempt) in self.attempts.iter().enumerate() {
                if attempt.rule == Rule::Any && attempt.wants.len() > 1 {
                    let (backend, _) = &self.clients[who % CLIENTS];
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

    /// The command with what is known by now put in; none if it makes no sense yet.
    fn step(&mut self, command: Command) -> Option<Step> {
        let who = |of: proptest::sample::Index| (!self.asks.is_empty()).then(|| of.index(self.asks.len()));
        let token = |who: usize, grant: WhichGrant| {
            let awards = self.awards.get(&who)?;
            let award = match grant {
                WhichGrant::First => awards.first(),
                WhichGrant::Newest => awards.last(),
            };
            award.map(|award| award.token.get())
        };
        Some(match command {
            Command::Acquire { ask, queue } => {
                self.attempts.push(attempt(self.attempts.len(), &ask));
                self.asks.push(ask);
                Step::Acquire { who: self.asks.len() - 1, queue }
            }
            Command::Resend { of, queue } => Step::Acquire { who: who(of)?, queue },
            Command::Check { of } => Step::Check(who(of)?),
            Command::Leave { of } => Step::Leave(who(of)?),
            Command::Renew { of, grant } => Step::Renew { who: who(of)?, token: token(who(of)?, grant)? },
            Command::Release { of, grant } => Step::Release { who: who(of)?, token: token(who(of)?, grant)? },
            Command::Break { of, grant, name } => Step::Break { name, token: token(who(of)?, grant)? },
            Command::Write { of, grant, name, value, keep } => {
                Step::Write { who: who(of)?, token: token(who(of)?, grant)?, name, value, keep }
            }
            Command::Read { name } => Step::Read { name },
            Command::Pass(time) => Step::Pass(time),
        })
    }

    fn op(&self, step: &Step) -> Op {
        match step {
            Step::Acquire { who, queue } => {
                Op::Acquire { attempt: self.attempts[*who].clone(), queue: *queue }
            }
            Step::Check(who) => Op::Check(self.attempts[*who].clone()),
            Step::Leave(who) => Op::Leave(self.attempts[*who].clone()),
            Step::Renew { who, token } => Op::Renew(self.grant(*who, *token)),
            Step::Release { who, token } => Op::Release(self.grant(*who, *token)),
            Step::Break { name, token } => {
                Op::Break { name: lock_name(*name), token: FencingToken::new(*token) }
            }
            Step::Write { who, token, name, value, keep } => Op::WriteCell {
                grant: self.grant(*who, *token),
                name: lock_name(*name),
                bytes: [*value].into(),
                keep: *keep,
            },
            Step::Read { name } => Op::ReadCell(lock_name(*name)),
            // Any call that finds a lock free gives it to the first in line: so a stranger asks for all of them.
            Step::Pass(_) => Op::Check(attempt(usize::MAX, &stranger())),
        }
    }

    fn grant(&self, who: usize, token: u64) -> Grant {
        let known = self.awards.get(&who).into_iter().flatten().find(|award| award.token.get() == token);
        Grant { attempt: self.attempts[who].clone(), award: *known.expect("it was seen") }
    }

    async fn look(&self) -> Result<Vec<LockState>, String> {
        let mut seen = Vec::new();
        for name in 0..NAMES.len() {
            let state = self.clients[0].0.inspect(&lock_name(name)).await;
            seen.push(state.map_err(|error| error.to_string())?);
        }
        Ok(seen)
    }

    fn remember_awards(&mut self) {
        for grant in &self.worlds[0].grants {
            let award = self.award(&self.worlds[0], grant);
            let awards = self.awards.entry(grant.who).or_default();
            if !awards.contains(&award) {
                awards.push(award);
            }
        }
    }

    /// Every grant that was pushed is one that was given.
    fn check_pushes(&mut self) -> Result<(), String> {
        for (_, pushes) in &mut self.clients {
            while let Some(Some(push)) = pushes.next().now_or_never() {
                let Wakeup::Granted { attempt, award } = push else { continue };
                let who = self.attempts.iter().position(|known| known.owner == attempt.owner);
                let award = Award { spent: Duration::ZERO, ..award };
                let awards = who.and_then(|who| self.awards.get(&who));
                if !awards.is_some_and(|awards| awards.contains(&award)) {
                    return Err(format!("{who:?} was told that it has {award:?}, which it has not"));
                }
            }
        }
        Ok(())
    }
}

fn lock_name(name: usize) -> LockName {
    LockName::new(NAMES[name]).expect("it is a name")
}

fn attempt(number: usize, ask: &Ask) -> Arc<Attempt> {
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: ask.wants.iter().map(|name| Want { name: lock_name(*name), mode: ask.mode }).collect(),
        rule: ask.rule,
        ttl: ask.ttl,
        label: number.to_string().into(),
        meta: [].into(),
    })
}

fn stranger() -> Ask {
    Ask {
        wants: (0..NAMES.len()).collect(),
        mode: fencepost_core::Mode::Exclusive,
        rule: Rule::All,
        ttl: Duration::from_secs(60),
    }
}
