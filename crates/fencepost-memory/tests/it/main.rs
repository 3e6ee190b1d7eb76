//! The behaviour suite on the backend in memory, and tests that need its faults and its clock.

mod batch_waker;
mod bench;
mod client_thread;
mod faults;
mod flawed;
mod manual_clock;
mod overtaking;
mod watch;

use bench::MemoryBench;
use fencepost_testkit::{behavior_suite, state_machine};

behavior_suite!(memory, MemoryBench::new);

#[test]
fn agrees_with_the_model() {
    state_machine::check(1_000, MemoryBench::with_manual_clock);
}
