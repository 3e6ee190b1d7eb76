//! Clients, a storage and the way between them in virtual time. Everything that happens is decided by a seed.

mod checks;
mod client;
mod skewed_clock;
mod storage;
mod weather;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Op, Queue, Reply, Wakeup};
use fencepost_core::clock::Moment;
use fencepost_core::waiting::{Asked, Verdict};
use fencepost_core::{Attempt, Error, ErrorKind, LockName, Mode, Owner, Result, Rule, Want};
use fencepost_testkit::dice::Dice;

use client::{Client, Tag};
use skewed_clock::SkewedClock;
use storage::Storage;
pub(crate) use weather::Weather;

const TTL: Duration = Duration::from_secs(10);
const CLIENTS: usize = 4;
const CALLERS: usize = 32;
/// So long things go wrong; then they go well until everything is over.
const TROUBLED: Duration = Duration::from_secs(120);
/// After this it will never be over.
const GIVE_UP: Duration = Duration::from_secs(7_200);

enum Event {
    Begin(usize),
    Cancel(usize),
    Release(usize),
    Tick(usize),
    Arrive { from: usize, op: Op, tag: Tag, sent: Moment, number: u64 },
    Answer { to: usize, tag: Tag, sent: Moment, reply: Result<Reply>, number: u64 },
    Push { to: usize, push: Wakeup },
    Cut(usize, Duration),
    Stop(usize, Duration),
    Die(usize),
}

#[derive(Default)]
struct Process {
    client: Client,
    clock: SkewedClock,
    next_tick: Option<Moment>,
    /// What it sends until then gets lost.
    cut_until: Option<Moment>,
    stopped_until: Option<Moment>,
    dead: bool,
    /// Requests that were neither answered nor given up.
    open: HashSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waits,
    Told,
    Gone,
}

pub(crate) struct Simulation {
    weather: Weather,
    dice: Dice,
    now: Moment,
    agenda: BTreeMap<(Moment, u64), Event>,
    next_number: u64,
    processes: Vec<Process>,
    storage: Storage,
    fates: Vec<Fate>,
    owners: HashMap<Owner, usize>,
    events: Vec<u64>,
}

impl Simulation {
    pub(crate) fn new(seed: u64, weather: Weather) -> Self {
        let mut simulation = Self {
            weather,
            dice: Dice::new(seed),
            now: start(),
            agenda: BTreeMap::new(),
            next_number: 0,
            processes: Vec::new(),
            storage: Storage::default(),
            fates: vec![Fate::Waits; CALLERS],
            owners: HashMap::new(),
            events: Vec::new(),
        };
        for caller in 0..CALLERS {
            let begin = simulation.now + simulation.dice.time(TROUBLED);
            simulation.plan(begin, Event::Begin(caller));
            if simulation.dice.percent(30) {
                let cancel = begin + simulation.dice.time(TTL * 2);
                simulation.plan(cancel, Event::Cancel(caller));
            }
        }
        for process in 0..CLIENTS {
            let skew = i64::try_from(simulation.dice.below(19)).expect("it is small") - 9;
            simulation.processes.push(Process { clock: SkewedClock { skew }, ..Process::default() });
            simulation.plan_troubles(process);
        }
        simulation
    }

    /// In every lease's time something may befall a process.
    fn plan_troubles(&mut self, process: usize) {
        for round in 0..TROUBLED.as_secs() / TTL.as_secs() {
            let at = start() + TTL * u32::try_from(round).expect("it is small") + self.dice.time(TTL);
            let time = self.dice.time(TTL * 2);
            if self.dice.percent(self.weather.cuts) {
                self.plan(at, Event::Cut(process, time));
            }
            if self.dice.percent(self.weather.stops) {
                self.plan(at, Event::Stop(process, time));
            }
            // One stays alive.
            if process > 0 && self.dice.percent(self.weather.deaths) {
                self.plan(at, Event::Die(process));
            }
        }
    }

    /// When everything happened.
    pub(crate) fn events(self) -> Vec<u64> {
        self.events
    }

    /// Runs until everything is over; what went wrong otherwise.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        while let Some(((at, _), event)) = self.agenda.pop_first() {
            self.now = self.now.max(at);
            if self.now > start() + GIVE_UP {
                return Err(format!("it is never over: {:?}", self.fates));
            }
            self.events.push(self.now.as_nanos());
            self.happen(event);
            self.check_beliefs()?;
            if self.weather.late == 0 {
                self.check_ghosts()?;
            }
        }
        self.check_the_end()
    }

    fn happen(&mut self, event: Event) {
        let process = match &event {
            Event::Begin(caller) | Event::Cancel(caller) | Event::Release(caller) => caller % CLIENTS,
            Event::Tick(process) | Event::Answer { to: process, .. } | Event::Push { to: process, .. } => {
                *process
            }
            Event::Stop(process, time) => {
                self.processes[*process].stopped_until = Some(self.now + *time);
                return;
            }
            Event::Cut(process, time) => {
                self.processes[*process].cut_until = Some(self.now + *time);
                return;
            }
            Event::Die(process) => return self.die(*process),
            Event::Arrive { .. } => return self.arrive(event),
        };
        if self.processes[process].dead {
            return;
        }
        if let Some(until) = self.processes[process].stopped_until.filter(|until| *until > self.now) {
            return self.plan(until, event);
        }
        self.act(process, event);
        self.depart(process);
    }

    fn act(&mut self, process: usize, event: Event) {
        let now = self.processes[process].clock.shows(self.now);
        let client = &mut self.processes[process].client;
        match event {
            Event::Begin(caller) => {
                let (attempt, queue) = (attempt(&mut self.dice), queue(&mut self.dice));
                let patience = if self.dice.percent(30) { Some(self.dice.time(TTL * 2)) } else { None };
                let until = patience.map_or(Moment::NEVER, |patience| now + patience);
                client.acquire(caller, attempt, queue, until, now);
            }
            Event::Cancel(caller) if self.fates[caller] == Fate::Waits => {
                self.fates[caller] = Fate::Gone;
                client.abandon(caller, now);
            }
            Event::Release(caller) => client.release(caller, now),
            Event::Tick(_) => client.tick(now),
            Event::Answer { tag, sent, reply, number, .. } => {
                if self.processes[process].open.remove(&number) {
                    self.processes[process].client.answered(tag, sent, reply, now);
                }
            }
            Event::Push { push, .. } => client.woken(&push, now),
            Event::Cancel(_) | Event::Arrive { .. } | Event::Cut(..) | Event::Stop(..) | Event::Die(_) => {}
        }
    }

    /// What the machines want sent leaves, who was told something goes on, and the next tick is planned.
    fn depart(&mut self, process: usize) {
        let client = &mut self.processes[process].client;
        let (outbox, verdicts) = (std::mem::take(&mut client.outbox), std::mem::take(&mut client.verdicts));
        self.send_all(process, outbox);
        for (caller, verdict) in verdicts {
            self.fates[caller] = Fate::Told;
            if matches!(verdict, Verdict::Granted { .. }) {
                let hold = if self.dice.percent(30) { TTL * 2 } else { TTL / 5 };
                let hold = self.dice.time(hold);
                self.plan(self.now + hold, Event::Release(caller));
            }
        }
        let now = self.now;
        let Process { client, clock, next_tick, .. } = &mut self.processes[process];
        let next = client.next();
        if next != Moment::NEVER {
            let at = clock.when(next).max(now);
            // A tick that is planned already and comes earlier plans the next one.
            if next_tick.is_none_or(|planned| planned <= now || planned > at) {
                *next_tick = Some(at);
                self.plan(at, Event::Tick(process));
            }
        }
    }

    /// Owners are random, and so is the order of what is due at the same moment; the order of first sight is not.
    fn send_all(&mut self, from: usize, mut outbox: Vec<(Op, Tag)>) {
        for (_, tag) in &outbox {
            let unseen = self.owners.len();
            self.owners.entry(tag.owner()).or_insert(unseen);
        }
        outbox.sort_by_key(|(_, tag)| self.owners[&tag.owner()]);
        for (op, tag) in outbox {
            self.send(from, op, tag);
        }
    }

    fn send(&mut self, from: usize, op: Op, tag: Tag) {
        let number = self.next_number;
        let sent = self.processes[from].clock.shows(self.now);
        self.processes[from].open.insert(number);
        if let Tag::Attempt(id, _, Asked::Ask) = tag {
            self.processes[from].client.sent(id, sent);
        }
        let troubled = self.now < start() + TROUBLED;
        let answer =
            |kind| Event::Answer { to: from, tag, sent, reply: Err(Error::new(kind, "so it goes")), number };
        if troubled && self.dice.percent(self.weather.unreachable) {
            let at = self.now + self.dice.time(self.weather.way);
            return self.plan(at, answer(ErrorKind::Unreachable));
        }
        // The client learns nothing, sooner (the connection broke) or later (it does not wait for ever).
        let given_up =
            if troubled && self.dice.percent(self.weather.late) { self.dice.time(TTL) } else { TTL };
        self.plan(self.now + given_up, answer(ErrorKind::OutcomeUnknown));
        let cut = self.processes[from].cut_until.is_some_and(|until| until > self.now);
        if cut || troubled && self.dice.percent(self.weather.lost) {
            return;
        }
        let late = troubled && self.dice.percent(self.weather.late);
        let way = self.dice.time(if late { TTL * 3 } else { self.weather.way });
        self.plan(self.now + way, Event::Arrive { from, op, tag, sent, number });
    }

    fn arrive(&mut self, event: Event) {
        let Event::Arrive { from, op, tag, sent, number } = event else { return };
        let (reply, pushes) = self.storage.execute(from, &op, self.now);
        let troubled = self.now < start() + TROUBLED;
        if !(troubled && self.dice.percent(self.weather.lost)) {
            let way = self.dice.time(self.weather.way);
            self.plan(self.now + way, Event::Answer { to: from, tag, sent, reply, number });
        }
        for (to, push) in pushes {
            if troubled && self.dice.percent(self.weather.lost) {
                continue;
            }
            let late = troubled && self.dice.percent(self.weather.late);
            for _ in 0..=u64::from(late) {
                let way = self.dice.time(if late { TTL * 3 } else { self.weather.way });
                self.plan(self.now + way, Event::Push { to, push: push.clone() });
            }
        }
    }

    fn die(&mut self, process: usize) {
        self.processes[process].dead = true;
        if self.dice.percent(50) {
            self.storage.lose_sight_of(process);
        }
        for caller in (0..CALLERS).filter(|caller| caller % CLIENTS == process) {
            self.fates[caller] = Fate::Gone;
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

fn queue(dice: &mut Dice) -> Queue {
    if dice.percent(25) { Queue::Never } else { Queue::Join }
}

fn attempt(dice: &mut Dice) -> Arc<Attempt> {
    let names: &[&str] = match dice.below(4) {
        0 => &["a", "b"],
        1 => &["b"],
        _ => &["a"],
    };
    let want = |name: &&str| Want { name: LockName::new(name).expect("it is a name"), mode: Mode::Exclusive };
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: names.iter().map(want).collect(),
        rule: Rule::All,
        ttl: TTL,
        label: "simulated".into(),
        meta: [].into(),
    })
}
