//! The simulation, under all conditions, with many seeds. `FENCEPOST_SEEDS=20000 cargo test -p fencepost-testkit --test it
//! simulation` runs more of them.

use super::{Conditions, Simulation};

/// The number of seeds for each of the conditions, unless the variable is set.
const SEEDS: u64 = 500;

fn seeds() -> u64 {
    std::env::var("FENCEPOST_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

#[track_caller]
fn runs_well(conditions: Conditions) {
    for seed in 0..seeds() {
        let mut simulation = Simulation::new(seed, conditions);
        if let Err(what) = simulation.run() {
            panic!("seed {seed} in {conditions:?}: {what}");
        }
    }
}

#[test]
fn nothing_goes_wrong_when_only_time_is_lost() {
    runs_well(Conditions::CALM);
}

#[test]
fn no_holders_overlap_when_requests_and_answers_get_lost() {
    runs_well(Conditions::LOSSY);
}

/// Scenario 50: requests arrive long after their sender has given them up, and do nothing.
#[test]
fn no_holders_overlap_when_requests_arrive_late() {
    runs_well(Conditions::LATE);
}

/// Scenario 50: requests arrive when the tombstone of their owner has expired.
#[test]
fn no_holders_overlap_when_requests_arrive_after_the_tombstone_has_gone() {
    runs_well(Conditions::TOO_LATE);
}

/// Scenarios 11 and 45: processes are paused, and die.
#[test]
fn no_holders_overlap_when_processes_stop_and_die() {
    runs_well(Conditions::DEADLY);
}

/// Scenario 18: the clocks of two processes do not run at the same speed.
#[test]
fn no_holders_overlap_when_clocks_drift() {
    runs_well(Conditions::CUT_OFF);
}

#[test]
fn the_same_seed_is_the_same_history() {
    let history = || {
        let mut simulation = Simulation::new(42, Conditions::DEADLY);
        simulation.run().expect("it runs well");
        simulation.events()
    };
    assert_eq!(history(), history());
}
