//! Bad weather on every wire at once: whatever breaks, no two hold a lock together, tokens only rise, and no key is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Client, Mode};
use fencepost_testkit::dice::Dice;
use fencepost_testkit::history::History;
use fencepost_testkit::servers::etcd::shared;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::wire::{Direction, Wire};

use crate::actors::{SHORT, connect};
use crate::bench::EtcdBench;

/// Whatever fails is tried again. Most give up their wait at some time.
async fn take_turns(client: Client, number: usize, history: Arc<History>, is_over: Arc<AtomicBool>) {
    let mut dice = Dice::new(number.try_into().unwrap());
    while !is_over.load(Ordering::Relaxed) {
        let mode = if dice.percent(20) { Mode::Shared } else { Mode::Exclusive };
        let both = ["weather/0", "weather/1"];
        let lock = match dice.below(10) {
            0 => client.lock_any(both),
            1 => client.lock_all(both),
            _ => client.lock(both[usize::from(dice.percent(50))]),
        };
        let lock = lock.mode(mode).ttl(SHORT);
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
        4 => wire.lose_answer_to(b"/lock/weather"),
        5 => wire.delay(Duration::from_millis(dice.below(300))),
        _ => wire.reset(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_network_makes_two_holders() {
    const STEPS: usize = 60;
    let bench = EtcdBench::plain();
    let wires: Vec<Wire> = (0..4).map(|_| Wire::to(shared().port())).collect();
    let mut clients = Vec::new();
    for wire in &wires {
        let url = format!("etcd://127.0.0.1:{}?namespace={}", wire.port(), bench.namespace());
        clients.push(connect(&url).await);
    }
    let (history, is_over) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let workers = clients.iter().chain(&clients).enumerate().map(|(number, client)| {
        tokio::spawn(take_turns(client.clone(), number, history.clone(), is_over.clone()))
    });
    let workers: Vec<_> = workers.collect();
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
    let goal = history.len() + 100;
    wait::until("all go on", async || history.len() > goal).await;
    is_over.store(true, Ordering::Relaxed);
    for worker in workers {
        wait::within_patience("it ends", worker).await.unwrap();
    }
    history.check().unwrap_or_else(|violation| panic!("{violation}"));
    for client in clients {
        client.close().await;
    }
    assert_clean(&bench).await;
}
