//! Random network faults on several connections: no two holders overlap, tokens grow, and nothing is left.

use std::time::Duration;

use crate::rng::Rng;
use crate::test_bench::WireBench;
use crate::wait;
use crate::wire::{Direction, Wire};
use crate::workload::Workload;

const WIRES: usize = 4;
const STEPS: usize = 60;

/// Lets clients with a wire each acquire and release while faults are injected into their wires: up to `pause` milliseconds pass
/// after each, and `healed` percent of the wires are healed then.
async fn inject<B: WireBench>(
    bench: &B,
    mut rng: Rng,
    (pause, healed): (u64, u64),
    break_one: impl Fn(&Wire, &mut Rng),
) {
    let wires: Vec<Wire> = (0..WIRES).map(|_| Wire::to(bench.wire().server())).collect();
    let mut clients = Vec::new();
    for wire in &wires {
        clients.push(bench.client_at(wire.port()).await);
    }
    let workload = Workload::start(&clients, bench.ttl());
    for _ in 0..STEPS {
        let wire = &wires[rng.index(WIRES)];
        break_one(wire, &mut rng);
        wait::elapse(Duration::from_millis(rng.below(pause))).await;
        if rng.percent(healed) {
            wire.heal();
        }
    }
    wires.iter().for_each(Wire::heal);
    workload.stop_and_check().await;
    for client in clients {
        client.close().await;
    }
}

/// Connections are closed, silent, slow, or lose replies.
pub async fn network_faults_never_make_two_holders<B: WireBench>(bench: &B) {
    let requests = [bench.acquire_bytes(), bench.release_bytes()];
    let break_one = |wire: &Wire, rng: &mut Rng| match rng.below(7) {
        0 => wire.cut(),
        1 => wire.blackhole(),
        2 => wire.one_way(Direction::ToServer),
        3 => wire.one_way(Direction::ToClient),
        4 => wire.lose_reply_to(requests[rng.index(2)]),
        5 => wire.delay(Duration::from_millis(rng.below(300))),
        _ => wire.reset(),
    };
    inject(bench, Rng::new(4), (200, 60), break_one).await;
}

/// Connections are silent or slow. One that is closed would end the session for the server before its client has noticed: two
/// clients may then believe for a moment to hold the lock.
pub async fn silence_never_makes_two_holders<B: WireBench>(bench: &B) {
    let break_one = |wire: &Wire, rng: &mut Rng| match rng.below(4) {
        0 => wire.blackhole(),
        1 => wire.one_way(Direction::ToServer),
        2 => wire.one_way(Direction::ToClient),
        _ => wire.delay(Duration::from_millis(rng.below(300))),
    };
    inject(bench, Rng::new(7), (300, 50), break_one).await;
}
