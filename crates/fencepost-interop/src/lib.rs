//! Four workers of another library and four of ours around a plain file counter, all busy for the whole run: no increment
//! may be lost, and each side must get its share of the turns, all the time. Where all workers share one queue, none is
//! overtaken.

mod backend;
mod busy_cores;
pub mod counter;
pub mod kazoo;
mod order;
pub mod ours;
pub mod peers;
pub mod shares;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fencepost_testkit::wait;

use busy_cores::BusyCores;
use counter::{Counter, OURS, THEIRS};
pub use peers::Peer;
pub use shares::Shares;

/// How many workers each side has.
const EACH: usize = 4;
/// The lock.
const NAME: &str = "interop/counter";

/// The length of a run and of each turn.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    turn: Duration,
    end: End,
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// A tenth of it is long enough for many turns of each worker.
    After(Duration),
    /// When each side has had this many turns.
    BothHad(usize),
}

impl Run {
    /// Turns that take hardly longer than the lock itself.
    pub const SHORT_TURNS: Self =
        Self { turn: Duration::from_millis(2), end: End::After(Duration::from_secs(8)) };
    /// Turns that take longer than most libraries pause between two attempts.
    pub const LONG_TURNS: Self =
        Self { turn: Duration::from_millis(150), end: End::After(Duration::from_secs(30)) };

    /// Ends as soon as each side has had this many turns.
    #[must_use]
    pub const fn until_both_had(self, turns: usize) -> Self {
        Self { end: End::BothHad(turns), ..self }
    }
}

impl End {
    fn wait(self, counter: &Counter) {
        match self {
            Self::After(time) => wait::block_thread_for(time),
            Self::BothHad(enough) => {
                let had = || [OURS, THEIRS].map(|side| counter.had(side));
                let say = || format!("turns of ours and theirs: {:?}", had());
                wait::block_until_else(say, || had().into_iter().all(|turns| turns >= enough));
            }
        }
    }
}

/// Lets both sides take turns on a private server, and counts the turns of each.
///
/// # Panics
/// If a peer cannot be started or fails, if an increment was lost, if a side never has the turns that the run waits for, or
/// if a worker was overtaken in a queue.
pub fn run(peer: Peer, run: Run) -> Shares {
    // Two runs at once would compete for the processor.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _busy = BusyCores::start();
    let server = peer.server_kind().start();
    let folder = tempfile::tempdir().expect("a directory can be created");
    let counter = Counter::new(folder.path(), run.turn);
    let theirs = peers::start(peer, server.port(), &counter);
    let url = format!("{}?{}", server.url(), peer.option());
    let ours = ours::start(&url, peer.lock(), &counter);
    wait::block_until("all workers are ready", || counter.workers() == 2 * EACH);
    let began = counter.start();
    run.end.wait(&counter);
    let ended = counter.stop();
    ours.join();
    theirs.join();
    let (ours, theirs) = (counter.turns(OURS), counter.turns(THEIRS));
    let shares = Shares::count(began, ended, &ours, &theirs);
    assert_eq!(counter.count(), shares.turns(), "increments were lost: {shares}");
    if peer.shares_one_queue() {
        let overtakings = order::overtakings(ours.into_iter().chain(theirs));
        assert_eq!(overtakings, 0, "a worker was overtaken: {shares}");
    }
    shares
}
