//! The client's state machine, driven by a virtual clock against a storage that loses, delays and repeats.

mod etcd_servers;
mod etcd_setups;
mod list;
mod redis_setups;
mod servers;
mod shelf;
mod simulation;
mod wire;
mod zookeeper_servers;
mod zookeeper_setups;

use simulation::{Simulation, Weather};

const SEEDS: u64 = 500;

#[track_caller]
fn runs_well(weather: Weather) {
    for seed in 0..SEEDS {
        let mut simulation = Simulation::new(seed, weather);
        if let Err(what) = simulation.run() {
            panic!("seed {seed} in {weather:?}: {what}");
        }
    }
}

#[test]
fn nothing_goes_wrong_when_only_time_is_lost() {
    runs_well(Weather::CALM);
}

#[test]
fn no_holders_overlap_when_requests_and_answers_get_lost() {
    runs_well(Weather::LOSSY);
}

/// Scenario 50: requests arrive long after their sender has given them up, and are defeated.
#[test]
fn no_holders_overlap_when_requests_arrive_late() {
    runs_well(Weather::LATE);
}

/// Scenario 50: requests arrive when the storage has forgotten that their owner has left.
#[test]
fn no_holders_overlap_when_requests_arrive_after_the_tombstone_has_gone() {
    runs_well(Weather::TOO_LATE);
}

/// Scenarios 11 and 45: processes stand still, and die.
#[test]
fn no_holders_overlap_when_processes_stop_and_die() {
    runs_well(Weather::DEADLY);
}

/// Scenario 18: the clocks of two processes do not run at the same speed.
#[test]
fn no_holders_overlap_when_clocks_drift() {
    runs_well(Weather::CUT_OFF);
}

#[test]
fn the_same_seed_is_the_same_history() {
    let history = || {
        let mut simulation = Simulation::new(42, Weather::DEADLY);
        simulation.run().expect("it runs well");
        simulation.events()
    };
    assert_eq!(history(), history());
}
