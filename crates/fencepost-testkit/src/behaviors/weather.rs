//! Bad weather on every wire at once: whatever breaks, no two hold a lock together, tokens only rise, and nothing is left.

use std::time::Duration;

use crate::bench::WireBench;
use crate::crew::Crew;
use crate::dice::Dice;
use crate::wait;
use crate::wire::{Direction, Wire};

const WIRES: usize = 4;
const STEPS: usize = 60;

/// Breaks a wire in one of all ways.
fn break_one<B: WireBench>(bench: &B, wire: &Wire, dice: &mut Dice) {
    match dice.below(7) {
        0 => wire.cut(),
        1 => wire.half_open(),
        2 => wire.one_way(Direction::ToServer),
        3 => wire.one_way(Direction::ToClient),
        4 => wire.lose_answer_to([bench.coming(), bench.going()][dice.index(2)]),
        5 => wire.delay(Duration::from_millis(dice.below(300))),
        _ => wire.reset(),
    }
}

/// Clients with a wire each take turns, while their wires break in all ways.
pub async fn no_network_makes_two_holders<B: WireBench>(bench: &B) {
    let wires: Vec<Wire> = (0..WIRES).map(|_| Wire::to(bench.wire().server())).collect();
    let mut clients = Vec::new();
    for wire in &wires {
        clients.push(bench.client_at(wire.port()).await);
    }
    let crew = Crew::of(&clients, bench.ttl());
    let mut dice = Dice::new(4);
    for _ in 0..STEPS {
        let wire = &wires[dice.index(WIRES)];
        break_one(bench, wire, &mut dice);
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
}
