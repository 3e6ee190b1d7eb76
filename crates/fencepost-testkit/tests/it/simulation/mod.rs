//! Clients, a backend and the network between them in virtual time. Everything is decided by a seed. The clients are the
//! machine that ships ([`fencepost_core::machine`]), and the backend is the lock table that SQLite and memory use.

mod backend;
mod checks;
mod conditions;
mod process;
mod runs;
mod skewed_clock;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply, Wakeup};
use fencepost_core::clock::Moment;
use fencepost_core::machine::{Input, Request, RequestKind};
use fencepost_core::{Attempt, Error, ErrorKind, LockName, Mode, Owner, Result, Rule, Want};
use fencepost_testkit::rng::Rng;

use backend::SimulatedBackend;
use conditions::Conditions;
use process::Process;
use skewed_clock::SkewedClock;

const TTL: Duration = Duration::from_secs(10);
/// The limit of a hold, for callers that have one.
const MAX_HOLD: Duration = Duration::from_secs(15);
const NAMES: [&str; 3] = ["a", "b", "s"];
/// The number of permits of the lock "s".
const SLOTS: u32 = 2;
const CLIENTS: usize = 4;
const CALLERS: usize = 32;
/// Faults are injected for this long; then the simulation runs on without faults until it is idle.
const FAULT_TIME: Duration = Duration::from_secs(120);
/// A simulation that is not idle by then never will be.
const GIVE_UP: Duration = Duration::from_secs(7_200);

enum Event {
    Begin(usize),
    Cancel(usize),
    Release(usize),
    Tick(usize),
    Close(usize),
    Break(LockName),
    Arrive { from: usize, op: Op, request: Request, sent: Moment, number: u64 },
    Answer { to: usize, request: Request, sent: Moment, reply: Result<Reply>, number: u64 },
    Push { to: usize, push: Wakeup },
    Cut(usize, Duration),
    Pause(usize, Duration),
    Die(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerState {
    Waiting,
    Done,
    Cancelled,
}

struct Simulation {
    conditions: Conditions,
    rng: Rng,
    now: Moment,
    agenda: BTreeMap<(Moment, u64), Event>,
    next_number: u64,
    processes: Vec<Process>,
    backend: SimulatedBackend,
    callers: Vec<CallerState>,
    owners: HashMap<Owner, usize>,
    /// Owners whose grant was broken. Their callers may not know it yet.
    broken: HashSet<Owner>,
    events: Vec<u64>,
}

impl Simulation {
    fn new(seed: u64, conditions: Conditions) -> Self {
        let mut simulation = Self {
            conditions,
            rng: Rng::new(seed),
            now: start(),
            agenda: BTreeMap::new(),
            next_number: 0,
            processes: Vec::new(),
            backend: SimulatedBackend::default(),
            callers: vec![CallerState::Waiting; CALLERS],
            owners: HashMap::new(),
            broken: HashSet::new(),
            events: Vec::new(),
        };
        for caller in 0..CALLERS {
            let begin = simulation.now + simulation.rng.time(FAULT_TIME);
            simulation.plan(begin, Event::Begin(caller));
            if simulation.rng.percent(30) {
                let cancel = begin + simulation.rng.time(TTL * 2);
                simulation.plan(cancel, Event::Cancel(caller));
            }
        }
        for process in 0..CLIENTS {
            let skew = i64::try_from(simulation.rng.below(19)).expect("it is small") - 9;
            simulation.processes.push(Process::new(SkewedClock { skew }));
            simulation.plan_faults(process);
        }
        simulation
    }

    /// Once per lease time a process may have a fault.
    fn plan_faults(&mut self, process: usize) {
        for round in 0..FAULT_TIME.as_secs() / TTL.as_secs() {
            let at = start() + TTL * u32::try_from(round).expect("it is small") + self.rng.time(TTL);
            let time = self.rng.time(TTL * 2);
            if self.rng.percent(self.conditions.cuts) {
                self.plan(at, Event::Cut(process, time));
            }
            if self.rng.percent(self.conditions.pauses) {
                self.plan(at, Event::Pause(process, time));
            }
            if self.rng.percent(self.conditions.breaks) {
                let name = NAMES[self.rng.index(NAMES.len())];
                self.plan(at, Event::Break(LockName::new(name).expect("it is a name")));
            }
            // One stays alive.
            if process > 0 && self.rng.percent(self.conditions.deaths) {
                self.plan(at, Event::Die(process));
            }
            if process > 0 && self.rng.percent(self.conditions.closes) {
                self.plan(at, Event::Close(process));
            }
        }
    }

    /// The times of the events.
    fn events(self) -> Vec<u64> {
        self.events
    }

    /// Runs until everything is idle; returns what is wrong otherwise.
    fn run(&mut self) -> Result<(), String> {
        while let Some(((at, _), event)) = self.agenda.pop_first() {
            self.now = self.now.max(at);
            if self.now > start() + GIVE_UP {
                return Err(format!("the simulation never becomes idle: {:?}", self.callers));
            }
            self.events.push(self.now.as_nanos());
            self.happen(event)?;
            self.check_beliefs()?;
            self.check_max_hold()?;
            if self.conditions.late == 0 {
                self.check_orphans()?;
            }
        }
        self.check_the_end()
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let process = match &event {
            Event::Begin(caller) | Event::Cancel(caller) | Event::Release(caller) => caller % CLIENTS,
            Event::Tick(process)
            | Event::Close(process)
            | Event::Answer { to: process, .. }
            | Event::Push { to: process, .. } => *process,
            Event::Pause(process, time) => {
                self.processes[*process].paused_until = Some(self.now + *time);
                return Ok(());
            }
            Event::Cut(process, time) => {
                let back = self.now + *time;
                self.processes[*process].cut_until = Some(back);
                self.plan(back, Event::Push { to: *process, push: Wakeup::CheckAll });
                return Ok(());
            }
            Event::Die(process) => {
                self.die(*process);
                return Ok(());
            }
            Event::Break(name) => {
                let name = name.clone();
                self.break_lock(&name);
                return Ok(());
            }
            Event::Arrive { .. } => return self.arrive(event),
        };
        if self.processes[process].is_dead {
            return Ok(());
        }
        if let Some(until) = self.processes[process].paused_until.filter(|until| *until > self.now) {
            self.plan(until, event);
            return Ok(());
        }
        self.act(process, event);
        let process_time = self.processes[process].clock.shows(self.now);
        if let Some(complaint) = self.processes[process].complaint(process_time) {
            return Err(format!("at {:?} {complaint}", self.now.since(start())));
        }
        self.depart(process);
        Ok(())
    }

    fn act(&mut self, at: usize, event: Event) {
        let process = &mut self.processes[at];
        let now = process.clock.shows(self.now);
        match event {
            Event::Begin(caller) => {
                let (attempt, on_busy) = (attempt(&mut self.rng), on_busy(&mut self.rng));
                let wait = self.rng.percent(30).then(|| self.rng.time(TTL * 2));
                let until = wait.map_or(Moment::NEVER, |wait| now + wait);
                let max_hold = self.rng.percent(20).then(|| self.rng.time(MAX_HOLD));
                process.attempts.insert(caller, attempt.owner);
                process.feed(Input::Acquire { attempt, on_busy, until, max_hold, caller }, now);
            }
            Event::Cancel(caller) if self.callers[caller] == CallerState::Waiting => {
                self.callers[caller] = CallerState::Cancelled;
                if let Some(owner) = process.attempts.get(&caller) {
                    process.feed(Input::Abandon(*owner), now);
                }
            }
            Event::Release(caller) => process.release(caller, now),
            Event::Tick(_) => process.feed(Input::Tick, now),
            Event::Close(_) => process.feed(Input::Close, now),
            Event::Answer { request, sent, reply, number, .. } => {
                if process.open.remove(&number).is_some() {
                    process.feed(Input::Replied { request, sent, reply }, now);
                }
            }
            Event::Push { push, .. } => process.feed(Input::Pushed(push), now),
            Event::Cancel(_)
            | Event::Arrive { .. }
            | Event::Break(_)
            | Event::Cut(..)
            | Event::Pause(..)
            | Event::Die(_) => {}
        }
    }

    /// Sends what the machine wants sent, continues callers that got an outcome, and plans the next tick.
    fn depart(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let outbox = std::mem::take(&mut process.outbox);
        let outcomes = std::mem::take(&mut process.outcomes);
        self.send_all(at, outbox);
        for (caller, is_granted) in outcomes {
            self.callers[caller] = CallerState::Done;
            if is_granted {
                let hold = if self.rng.percent(30) { TTL * 2 } else { TTL / 5 };
                let hold = self.rng.time(hold);
                self.plan(self.now + hold, Event::Release(caller));
            }
        }
        let now = self.now;
        let process = &mut self.processes[at];
        let next = process.next();
        if next != Moment::NEVER {
            let due = process.clock.when(next).max(now);
            // An earlier tick that is planned already plans the next one.
            if process.next_tick.is_none_or(|planned| planned <= now || planned > due) {
                process.next_tick = Some(due);
                self.plan(due, Event::Tick(at));
            }
        }
    }

    /// Owners are random, and so is the order of what is due at the same moment; the order of first sight is not.
    fn send_all(&mut self, from: usize, mut outbox: Vec<(Request, Op)>) {
        for (request, _) in &outbox {
            let unseen = self.owners.len();
            self.owners.entry(request.owner).or_insert(unseen);
        }
        outbox.sort_by_key(|(request, _)| self.owners[&request.owner]);
        for (request, op) in outbox {
            self.send(from, op, request);
        }
    }

    fn send(&mut self, from: usize, op: Op, request: Request) {
        let number = self.next_number;
        let process = &mut self.processes[from];
        let sent = process.clock.shows(self.now);
        process.open.insert(number, request);
        if request.kind == RequestKind::Acquire {
            process.feed(Input::Sent(request), sent);
        }
        let is_cut = process.cut_until.is_some_and(|until| until > self.now);
        let answer = |kind| {
            let reply = Err(Error::new(kind, "so it goes"));
            Event::Answer { to: from, request, sent, reply, number }
        };
        if self.happens(self.conditions.unreachable) {
            let at = self.now + self.rng.time(self.conditions.travel_time);
            return self.plan(at, answer(ErrorKind::Unreachable));
        }
        // The client gets an unknown outcome, sooner (the connection was closed) or later (its timeout).
        let given_up = if self.happens(self.conditions.late) { self.rng.time(TTL) } else { TTL };
        self.plan(self.now + given_up, answer(ErrorKind::OutcomeUnknown));
        if !is_cut && !self.happens(self.conditions.lost) {
            let way = self.way();
            self.plan(self.now + way, Event::Arrive { from, op, request, sent, number });
        }
    }

    fn arrive(&mut self, event: Event) -> Result<(), String> {
        let Event::Arrive { from, op, request, sent, number } = event else { return Ok(()) };
        let (reply, pushes) = self.backend.execute(from, &op, self.now);
        self.check_defeated(from, request, &reply)?;
        if !self.happens(self.conditions.lost) {
            let way = self.rng.time(self.conditions.travel_time);
            self.plan(self.now + way, Event::Answer { to: from, request, sent, reply, number });
        }
        self.push_all(pushes);
        Ok(())
    }

    fn push_all(&mut self, pushes: Vec<(usize, Wakeup)>) {
        for (to, push) in pushes {
            if self.happens(self.conditions.lost) {
                continue;
            }
            let is_repeated = self.happens(self.conditions.late);
            for _ in 0..=u64::from(is_repeated) {
                let way = self.way();
                self.plan(self.now + way, Event::Push { to, push: push.clone() });
            }
        }
    }

    /// Breaks one of the holders of the lock, of any client.
    fn break_lock(&mut self, name: &LockName) {
        if let Some((owner, token)) = self.backend.holder(name) {
            self.broken.insert(owner);
            let (_, pushes) = self.backend.execute(0, &Op::Break { name: name.clone(), token }, self.now);
            self.push_all(pushes);
        }
    }

    /// Returns whether a fault of this frequency happens now.
    fn happens(&mut self, percent: u64) -> bool {
        let injects_faults = self.now < start() + FAULT_TIME;
        injects_faults && self.rng.percent(percent)
    }

    /// Returns the travel time of a message.
    fn way(&mut self) -> Duration {
        let is_late = self.happens(self.conditions.late);
        self.rng.time(if is_late { self.conditions.late_by } else { self.conditions.travel_time })
    }

    fn die(&mut self, process: usize) {
        self.processes[process].is_dead = true;
        if self.rng.percent(50) {
            self.backend.mark_unreachable(process);
        }
        for caller in (0..CALLERS).filter(|caller| caller % CLIENTS == process) {
            self.callers[caller] = CallerState::Cancelled;
        }
    }

    fn plan(&mut self, at: Moment, event: Event) {
        self.agenda.insert((at, self.next_number), event);
        self.next_number += 1;
    }
}

fn start() -> Moment {
    Moment::START + Duration::from_secs(1_000)
}

fn on_busy(rng: &mut Rng) -> OnBusy {
    if rng.percent(25) { OnBusy::Return } else { OnBusy::Wait }
}

fn attempt(rng: &mut Rng) -> Arc<Attempt> {
    let semaphore = Mode::Semaphore { permits: SLOTS };
    let (names, mode, rule): (&[&str], Mode, Rule) = match rng.below(10) {
        0 => (&["a", "b"], Mode::Exclusive, Rule::All),
        1 => (&["a", "b"], Mode::Exclusive, Rule::Any),
        2 => (&["a", "b"], Mode::Shared, Rule::All),
        3 => (&["a", "b"], Mode::Shared, Rule::Any),
        4 => (&["a"], Mode::Shared, Rule::All),
        5 | 6 => (&["s"], semaphore, Rule::All),
        7 => (&["b"], Mode::Exclusive, Rule::All),
        _ => (&["a"], Mode::Exclusive, Rule::All),
    };
    let want = |name: &&str| Want { name: LockName::new(name).expect("it is a name"), mode };
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: names.iter().map(want).collect(),
        rule,
        ttl: TTL,
        label: "simulated".into(),
        meta: [].into(),
    })
}
