//! Bad weather for everybody at once: whatever breaks, no two hold a lock together, and tokens only rise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Client, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::dice::Dice;
use fencepost_testkit::history::History;
use fencepost_testkit::servers::redis::{RedisServer, Setup, shared};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::wire::{Direction, Wire};
use tokio::task::JoinHandle;

use crate::actors::{SHORT, connect};
use crate::bench::RedisBench;

/// Those who take turns, and what they saw.
struct Crew {
    history: Arc<History>,
    is_over: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Two workers for each client, on two locks.
    fn of(clients: &[Client]) -> Self {
        let (history, is_over) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
        let workers = clients.iter().chain(clients).enumerate().map(|(number, client)| {
            tokio::spawn(take_turns(client.clone(), number, history.clone(), is_over.clone()))
        });
        Self { workers: workers.collect(), history, is_over }
    }

    /// Everybody takes some more turns, now that the weather is fine; then nothing is found wrong.
    async fn rests(self) {
        let goal = self.history.len() + 100;
        wait::until("all go on", async || self.history.len() > goal).await;
        self.is_over.store(true, Ordering::Relaxed);
        for worker in self.workers {
            wait::within_patience("it ends", worker).await.unwrap();
        }
        self.history.check().unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// Whatever fails is tried again. Most give up their wait at some time.
async fn take_turns(client: Client, number: usize, history: Arc<History>, is_over: Arc<AtomicBool>) {
    let mut dice = Dice::new(number.try_into().unwrap());
    while !is_over.load(Ordering::Relaxed) {
        let mode = if dice.percent(20) { Mode::Shared } else { Mode::Exclusive };
        let lock = client.lock(format!("storm/{}", dice.below(2))).mode(mode).ttl(SHORT / 2);
        let lock = if dice.percent(70) { lock.wait(Duration::from_millis(dice.below(1500))) } else { lock };
        let Ok(guard) = lock.acquire().await else {
            continue;
        };
        let record = history.granted(&number.to_string(), &guard, mode);
        for _ in 0..dice.below(20) {
            tokio::task::yield_now().await;
            history.still_held(record, &guard);
        }
        if dice.percent(60) {
            // A lock that is lost cannot be given back.
            let _ = guard.release().await;
        }
    }
}

/// Breaks a wire in one of all ways.
fn break_one(wire: &Wire, dice: &mut Dice) {
    match dice.below(7) {
        0 => wire.cut(),
        1 => wire.half_open(),
        2 => wire.one_way(Direction::ToServer),
        3 => wire.one_way(Direction::ToClient),
        4 => wire.lose_answer_to(b"EVALSHA"),
        5 => wire.delay(Duration::from_millis(dice.below(300))),
        _ => wire.reset(),
    }
}

#[tokio::test]
async fn no_network_makes_two_holders() {
    const STEPS: usize = 60;
    let bench = RedisBench::plain();
    let wires: Vec<Wire> = (0..4).map(|_| Wire::to(shared().port())).collect();
    let mut clients = Vec::new();
    for wire in &wires {
        clients.push(
            connect(&format!("redis://127.0.0.1:{}?namespace={}", wire.port(), bench.namespace())).await,
        );
    }
    let crew = Crew::of(&clients);
    let mut dice = Dice::new(4);
    for _ in 0..STEPS {
        let wire = &wires[usize::try_from(dice.below(4)).unwrap()];
        break_one(wire, &mut dice);
        wait::passes(Duration::from_millis(dice.below(200))).await;
        if dice.percent(60) {
            wire.heal();
        }
    }
    wires.iter().for_each(Wire::heal);
    crew.rests().await;
    for client in clients {
        client.close().await;
    }
    assert_clean(&bench).await;
}

/// A server that writes everything down may be killed as often as one likes.
#[tokio::test]
async fn no_restart_makes_two_holders() {
    let setup = Setup::plain().with_config("appendonly yes").with_config("appendfsync always");
    let server = Arc::new(RedisServer::start(&setup));
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let clients = [bench.client().await, bench.client().await];
    let crew = Crew::of(&clients);
    for _ in 0..4 {
        let goal = crew.history.len() + 30;
        wait::until("turns are taken", async || crew.history.len() > goal).await;
        let server = server.clone();
        tokio::task::spawn_blocking(move || server.restart()).await.unwrap();
    }
    crew.rests().await;
    for client in clients {
        client.close().await;
    }
    assert_clean(&bench).await;
}
