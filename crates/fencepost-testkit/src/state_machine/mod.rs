//! The state machine: random operations on a storage, compared with a model after every one of them.

mod commands;
mod model;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{LockState, Op, Reply, Wakeup};
use fencepost_core::clock::ManualClock;
use fencepost_core::{
    Attempt, Award, Backend, Error, ErrorKind, FencingToken, Grant, LockName, Owner, Rule, Want,
};
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};

use crate::bench::TestBench;
use commands::{Command, WhichGrant};
use model::{Answer, Ask, NAMES, Step, World};

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
    let time_passes = make().manual_clock().is_some();
    let outcome = TestRunner::new(config).run(&commands::commands(time_passes), |commands| {
        runtime.block_on(async {
            let mut machine = Machine::new(&make()).await;
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
        let reply = self.clients[at % CLIENTS].0.execute(vec![op]).await.remove(0);
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

    /// Whether this world explains what was seen. Tokens that are seen for the first time are noted in it.
    fn explains(
        &self,
        world: &mut World,
        answer: &Answer,
        reply: &Result<Reply, Error>,
        seen: &[LockState],
    ) -> Result<(), String> {
        let newest = world.newest;
        for (name, state) in seen.iter().enumerate() {
            self.explains_lock(world, name, state, &newest)
                .map_err(|what| format!("on {}: {what}", NAMES[name]))?;
        }
        if self.agrees(world, answer, reply) { Ok(()) } else { Err(format!("it should be {answer:?}")) }
    }

    fn explains_lock(
        &self,
        world: &mut World,
        name: usize,
        state: &LockState,
        newest: &[u64; NAMES.len()],
    ) -> Result<(), String> {
        let mut expected: Vec<_> = world.on(name).map(|grant| (grant.who, grant.nth, grant.until)).collect();
        for holder in &state.holders {
            let who = number(&holder.label);
            let Some(at) = expected.iter().position(|(expected, ..)| *expected == who) else {
                return Err(format!("{who} should not hold it"));
            };
            let (_, nth, until) = expected.swap_remove(at);
            let left = until.checked_sub(world.now).unwrap_or_default();
            if self.clock.is_some() && holder.expires_in != left {
                return Err(format!("{who} should have {left:?} left, not {:?}", holder.expires_in));
            }
            if holder.mode != self.asks[who].mode || holder.ttl != self.asks[who].ttl {
                return Err(format!("{who} holds it in another way than it wanted: {holder:?}"));
            }
            let token = holder.token.get();
            match world.tokens.get(&(who, nth)) {
                Some(known) if *known != token => {
                    return Err(format!("the token of {who} changed to {token}"));
                }
                None if token <= newest[name] => {
                    return Err(format!("the token of {who} does not rise: {token}"));
                }
                _ => {}
            }
            world.tokens.insert((who, nth), token);
            world.newest[name] = world.newest[name].max(token);
        }
        if !expected.is_empty() {
            return Err(format!("these should hold it too: {expected:?}"));
        }
        let line: Vec<usize> = state.line.iter().map(|waiter| number(&waiter.label)).collect();
        let expected = world.line_of(&self.asks, name);
        if line != expected || state.waiters != expected.len() {
            return Err(format!("{expected:?} should be in line, not {line:?}"));
        }
        explains_cell(world, world.cells[name].as_ref(), state.cell.as_ref())
    }

    fn agrees(&self, world: &World, answer: &Answer, reply: &Result<Reply, Error>) -> bool {
        let is = |award: &Award, grant: &model::Grant| *award == self.award(world, grant);
        match (answer, reply) {
            (Answer::Conflict, Err(error)) => error.kind() == ErrorKind::Conflict,
            (_, Err(_)) => false,
            (answer, Ok(reply)) => match (answer, reply) {
                (Answer::Granted(grant), Reply::Granted(award)) => is(award, grant),
                (Answer::HadBeenGranted(grant), Reply::HadBeenGranted(award)) => is(award, grant),
                (Answer::Waiting, Reply::Waiting { turn_in }) => !turn_in.is_zero(),
                (Answer::Renewed, Reply::Renewed { ttl }) => self.asks.iter().any(|ask| ask.ttl == *ttl),
                (Answer::Cell(cell), Reply::Cell(seen)) => {
                    explains_cell(world, cell.as_ref(), seen.as_ref()).is_ok()
                }
                (Answer::Busy, Reply::Busy)
                | (Answer::NoTicket, Reply::NoTicket)
                | (Answer::Left, Reply::Left)
                | (Answer::Released, Reply::Released)
                | (Answer::NotHeld, Reply::NotHeld)
                | (Answer::Written, Reply::Written) => true,
                _ => false,
            },
        }
    }

    fn award(&self, world: &World, grant: &model::Grant) -> Award {
        let ask = &self.asks[grant.who];
        let chosen = match ask.rule {
            Rule::All => 0,
            Rule::Any => ask.wants.iter().position(|name| *name == grant.names[0]).unwrap_or(usize::MAX),
        };
        let token = world.tokens.get(&(grant.who, grant.nth)).copied().unwrap_or_default();
        Award { token: FencingToken::new(token), ttl: ask.ttl, chosen }
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
                let Wakeup::Granted { owner, award } = push else { continue };
                let who = self.attempts.iter().position(|attempt| attempt.owner == owner);
                let awards = who.and_then(|who| self.awards.get(&who));
                if !awards.is_some_and(|awards| awards.contains(&award)) {
                    return Err(format!("{who:?} was told that it has {award:?}, which it has not"));
                }
            }
        }
        Ok(())
    }
}

fn explains_cell(
    world: &World,
    expected: Option<&model::Cell>,
    seen: Option<&fencepost_core::Cell>,
) -> Result<(), String> {
    let seen = seen.map(|cell| (cell.token.get(), cell.bytes.to_vec()));
    let expected =
        expected.map(|cell| (world.tokens.get(&cell.by).copied().unwrap_or_default(), vec![cell.value]));
    if seen == expected { Ok(()) } else { Err(format!("the cell should be {expected:?}, not {seen:?}")) }
}

fn lock_name(name: usize) -> LockName {
    LockName::new(NAMES[name]).expect("it is a name")
}

fn number(label: &str) -> usize {
    label.parse().unwrap_or(usize::MAX)
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
