//! Four of theirs and four of ours around a plain file counter, all busy for the whole run: nothing may be lost, and
//! each side must get its share of the turns, all the time. Where everybody waits in one line, nobody overtakes.

pub mod counter;
pub mod kazoo;
mod order;
pub mod ours;
pub mod peers;
pub mod shares;
mod storage;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fencepost_testkit::wait;

use counter::Counter;
pub use peers::Peer;
pub use shares::Shares;

/// How many workers each side has.
const EACH: usize = 4;
/// How long a run is. A tenth of it is long enough for many turns of everybody.
const RUN: Duration = Duration::from_secs(8);
/// The lock.
const NAME: &str = "interop/counter";

/// Lets both sides take turns on a server of their own, and counts who had how many.
///
/// # Panics
/// If a peer cannot be started or fails, if an increment was lost, or if somebody overtook others in a line.
pub fn run(peer: Peer) -> Shares {
    // Two runs at once would take each other's processor.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = peer.storage().start();
    let folder = tempfile::tempdir().expect("there is room");
    let counter = Counter::new(folder.path());
    let theirs = peers::start(peer, server.port(), &counter);
    let url = format!("{}?{}", server.url(), peer.option());
    let ours = ours::start(&url, &counter);
    wait::block_until("everybody is ready", || counter.workers() == 2 * EACH);
    let began = counter.start();
    wait::block_thread_for(RUN);
    let ended = counter.stop();
    ours.join();
    theirs.join();
    let (ours, theirs) = (counter.turns(counter::OURS), counter.turns(counter::THEIRS));
    let shares = Shares::count(began, ended, &ours, &theirs);
    assert_eq!(counter.count(), shares.turns(), "increments were lost: {shares}");
    if peer.storage().has_one_line() {
        let overtakings = order::overtakings(ours.into_iter().chain(theirs));
        assert_eq!(overtakings, 0, "who joined earlier was overtaken: {shares}");
    }
    shares
}
