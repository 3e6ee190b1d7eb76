//! Random network faults on several connections: no two holders overlap, tokens grow, and nothing is left.

use std::time::Duration;

use crate::rng::Rng;
use crate::test_bench::WireBench;
use crate::wait;
use crate::wire::{Direction, Wire};
use crate::workload::Workload;

const WIRES: usize = 4;
const STEPS: usize = 60;

/// Injects one fault of any kind.
fn break_one<B: WireBench>(bench: &B, wire: &Wire, rng: &mut Rng) {
    match rng.below(7) {
        0 => wire.cut(),
        1 => wire.blackhole(),
        2 => wire.one_way(Direction::ToServer),
        3 => wire.one_way(Direction::ToClient),
        4 => wire.lose_reply_to([bench.acquire_bytes(), bench.release_bytes()][rng.index(2)]),
        5 => wire.delay(Duration::from_millis(rng.below(300))),
        _ => wire.reset(),
    }
}

/// Clients with a wire each acquire and release while faults are injected into their wires.
pub async fn network_faults_never_make_two_holders<B: WireBench>(bench: &B) {
    let wires: Vec<Wire> = (0..WIRES).map(|_| Wire::to(bench.wire().server())).collect();
    let mut clients = Vec::new();
    for wire in &wires {
        clients.push(bench.client_at(wire.port()).await);
    }
    let workload = Workload::start(&clients, bench.ttl());
    let mut rng = Rng::new(4);
    for _ in 0..STEPS {
        let wire = &wires[rng.index(WIRES)];
        break_one(bench, wire, &mut rng);
        wait::elapse(Duration::from_millis(rng.below(200))).await;
        if rng.percent(60) {
            wire.heal();
        }
    }
    wires.iter().for_each(Wire::heal);
    workload.stop_and_check().await;
    for client in clients {
        client.close().await;
    }
}
