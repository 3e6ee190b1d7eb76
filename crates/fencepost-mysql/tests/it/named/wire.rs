//! The behaviours on a faulty network that do not need a lease beside the connection: one that is closed ends the lock.

use std::time::Duration;

use fencepost_testkit::rng::Rng;
use fencepost_testkit::wire::{Direction, Wire};
use fencepost_testkit::workload::Workload;
use fencepost_testkit::{TestBench, WireBench, behaviors, suite, wait};

use super::NamedBench;

macro_rules! on_a_wire {
    ($($group:ident::$name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                let path = concat!(module_path!(), "::", stringify!($name));
                suite::run(path, NamedBench::plain, behaviors::$group::$name);
            }
        )*
    };
}

on_a_wire! {
    silence::silence_of_less_than_half_a_lease_goes_unnoticed,
    silence::silence_of_the_server_goes_unnoticed,
    silence::silence_towards_the_server_goes_unnoticed,
    silence::a_slow_wire_keeps_its_locks,
    silence::a_silent_wire_loses_the_lock_at_its_deadline,
    lost_replies::a_waiter_without_a_reply_has_one_ticket,
    lost_replies::a_release_without_a_reply_is_not_a_loss,
    reconnect::a_lock_released_while_disconnected_is_granted_after_the_reconnect,
    reconnect::connections_closed_at_any_moment_leave_nothing,
}

/// Clients with a wire each acquire and release while their wires are silent or slow. A wire that is closed would end the
/// connection for the server before its client has noticed: two clients may then believe for a moment to hold the lock.
#[test]
fn silence_never_makes_two_holders() {
    const WIRES: usize = 4;
    suite::run("silence_never_makes_two_holders", NamedBench::plain, async |bench: &NamedBench| {
        let wires: Vec<Wire> = (0..WIRES).map(|_| Wire::to(bench.wire().server())).collect();
        let mut clients = Vec::new();
        for wire in &wires {
            clients.push(bench.client_at(wire.port()).await);
        }
        let workload = Workload::start(&clients, bench.ttl());
        let mut rng = Rng::new(7);
        for _ in 0..60 {
            let wire = &wires[rng.index(WIRES)];
            match rng.below(4) {
                0 => wire.blackhole(),
                1 => wire.one_way(Direction::ToServer),
                2 => wire.one_way(Direction::ToClient),
                _ => wire.delay(Duration::from_millis(rng.below(300))),
            }
            wait::elapse(Duration::from_millis(rng.below(300))).await;
            if rng.percent(50) {
                wire.heal();
            }
        }
        wires.iter().for_each(Wire::heal);
        workload.stop_and_check().await;
    });
}
