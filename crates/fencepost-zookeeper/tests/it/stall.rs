//! Scenario 58: a follower hears nothing from its leader for longer than a session, while what it sends still arrives. Writes
//! of its clients are committed, but the leader is not told that their sessions live, and ends them. When the stream
//! resumes, answers from before that arrive: none of them may make a client believe in a lock that another one holds.

use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, Guard};
use fencepost_testkit::scripted_process::ScriptedProcess;
use fencepost_testkit::servers::zookeeper::{Ensemble, ZooKeeperServerConfig};
use fencepost_testkit::wait;
use fencepost_testkit::wire::{Direction, Wire};
use zookeeper_client as zk;

use crate::actions::{LONG_TTL, Waiter, connect, granted, hold, spawn_waiter, until_queued};

const TTL: Duration = Duration::from_millis(3600);
/// How many rounds each test runs; one unless the environment says otherwise.
const ROUNDS: &str = "FENCEPOST_TEST_ROUNDS";

fn rounds() -> usize {
    std::env::var(ROUNDS).map_or(1, |rounds| rounds.parse().expect("a number of rounds"))
}

/// What becomes of the stalled client when the stream resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Afterwards {
    /// It reads all answers, and that its session has ended.
    Connected,
    /// It reads all answers, and nothing after them.
    CutOff,
}

/// An ensemble in which X is connected to a follower that can be stalled, and Y to the leader.
struct Stage {
    ensemble: Ensemble,
    follower: usize,
    /// Between X and its server.
    wire: Wire,
    y: Client,
    /// At the leader.
    driver: zk::Client,
}

impl Stage {
    async fn set() -> Self {
        // A hundred seconds.
        let ensemble = Ensemble::start_with(&ZooKeeperServerConfig::plain().with_config("syncLimit=1000"));
        let (follower, leader) = (ensemble.follower(), ensemble.leader());
        let wire = Wire::to(ensemble.server(follower).port());
        let y = connect(&ensemble.server(leader).url()).await;
        let address = format!("127.0.0.1:{}", ensemble.server(leader).port());
        let driver = zk::Client::connect(&address).await.expect("the leader serves");
        Self { ensemble, follower, wire, y, driver }
    }

    fn url_of_x(&self) -> String {
        format!("zk://127.0.0.1:{}", self.wire.port())
    }

    fn stall(&self) {
        self.ensemble.stall(self.follower);
    }

    /// Delivers what was held back. Returns when the follower knows all that the leader does.
    async fn resume(&self, afterwards: Afterwards) {
        if afterwards == Afterwards::CutOff {
            self.wire.hide_close();
            self.wire.one_way(Direction::ToClient);
        }
        self.ensemble.resume(self.follower);
        let address = format!("127.0.0.1:{}", self.ensemble.server(self.follower).port());
        let driver = zk::Client::connect(&address).await.expect("the follower serves");
        driver.sync("/").await.expect("the follower serves");
    }

    async fn contenders(&self, name: &str) -> usize {
        self.driver.list_children(&format!("/fencepost/{name}")).await.map_or(0, |nodes| nodes.len())
    }

    /// Returns how often the living sessions were renewed, in total.
    async fn renewals(&self) -> i32 {
        let sessions = "/fencepost/_fencepost/sessions";
        let mut renewals = 0;
        for node in self.driver.list_children(sessions).await.expect("the leader serves") {
            let stat =
                self.driver.check_stat(&format!("{sessions}/{node}")).await.expect("the leader serves");
            renewals += stat.map_or(0, |stat| stat.version);
        }
        renewals
    }
}

/// Waits until the condition holds, for this time at most. Returns whether it does.
async fn holds_within(time: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let clock = Clock::system();
    let (mut held, end) = (false, clock.now() + time);
    wait::until("a condition holds or a time is over", async || {
        held = condition().await;
        held || clock.now() > end
    })
    .await;
    held
}

/// A waiter that asks again while its server is away.
fn stubborn(client: &Client, name: &str) -> Waiter {
    let lock = client.lock(name).ttl(TTL);
    tokio::spawn(async move {
        loop {
            if let Ok(guard) = lock.acquire().await {
                return Ok(guard);
            }
        }
    })
}

/// Asserts that X is not granted the lock while Y holds it, until X waits behind Y.
async fn is_not_shown(stage: &Stage, x: &Waiter, y: &Guard, afterwards: Afterwards) {
    if afterwards == Afterwards::CutOff {
        // Its lease would be over by then.
        let is_shown = holds_within(TTL, async || x.is_finished()).await;
        assert!(!is_shown || !y.is_valid(), "two believe in one lock");
        stage.wire.reset();
        stage.wire.heal();
    }
    wait::until("X stands in line again", async || {
        assert!(!x.is_finished(), "two believe in one lock");
        stage.y.inspect("a").await.is_ok_and(|state| state.waiter_count == 1)
    })
    .await;
    assert!(y.is_valid() && !x.is_finished(), "two believe in one lock");
}

async fn takes_it_while_stalled(stage: &Stage, also: Option<&str>, afterwards: Afterwards) {
    let x = connect(&stage.url_of_x()).await;
    hold(&x.lock("a").ttl(TTL)).await.release().await.unwrap();
    stage.stall();
    // The later its request, the longer a client would believe in it.
    wait::elapse(TTL * 3 / 4).await;
    let other = also.map(|name| stubborn(&x, name));
    if let Some(name) = also {
        holds_within(TTL / 12, async || stage.contenders(name).await == 1).await;
    }
    let late = stubborn(&x, "a");
    holds_within(TTL / 12, async || stage.contenders("a").await == 1).await;
    let y = granted(spawn_waiter(stage.y.lock("a").ttl(LONG_TTL))).await;
    stage.resume(afterwards).await;
    is_not_shown(stage, &late, &y, afterwards).await;
    y.release().await.unwrap();
    granted(late).await.release().await.unwrap();
    if let Some(other) = other {
        granted(other).await.release().await.unwrap();
    }
    x.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_from_before_a_stall_is_not_shown() {
    let stage = Stage::set().await;
    for _ in 0..rounds() {
        takes_it_while_stalled(&stage, None, Afterwards::Connected).await;
        takes_it_while_stalled(&stage, None, Afterwards::CutOff).await;
    }
}

/// Answers that arrive in one burst prove nothing about each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writes_in_a_stall_do_not_prove_each_other() {
    let stage = Stage::set().await;
    for _ in 0..rounds() {
        takes_it_while_stalled(&stage, Some("b"), Afterwards::Connected).await;
        takes_it_while_stalled(&stage, Some("b"), Afterwards::CutOff).await;
    }
}

/// What X does before the stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It has a session, and holds nothing.
    Newcomer,
    Holder,
    Waiter,
}

/// X as a process of its own.
struct Process {
    process: ScriptedProcess,
    acquire: String,
}

impl Process {
    fn new(stage: &Stage) -> Self {
        Self {
            process: ScriptedProcess::new(stage.url_of_x()),
            acquire: format!("acquire a {}", TTL.as_millis()),
        }
    }

    fn acquire(&mut self) {
        self.process.send(&self.acquire);
    }

    /// Whether it was granted the lock by now. It asks again if its server was away.
    fn is_granted(&mut self) -> bool {
        self.process.received().iter().any(|word| {
            if word.starts_with("failed") {
                self.process.send(&self.acquire);
            }
            word.starts_with("granted")
        })
    }

    fn is_valid(&mut self) -> bool {
        self.process.send("valid");
        self.process.receive("valid") == "true"
    }
}

/// Lets X send a write into the stall and stand still until Y holds. A process that stands still does not notice that its
/// connection is silent, and reads the late answers when it goes on.
async fn stands_still_while_stalled(stage: &Stage, role: Role, afterwards: Afterwards) {
    let mut x = Process::new(stage);
    let first = match role {
        Role::Newcomer | Role::Holder => None,
        Role::Waiter => Some(hold(&stage.y.lock("a").ttl(LONG_TTL)).await),
    };
    x.acquire();
    if role == Role::Waiter {
        until_queued(&stage.y, "a", 1).await;
    } else {
        x.process.receive("granted");
    }
    if role == Role::Newcomer {
        x.process.send("release");
        x.process.receive("released");
    }
    let before = stage.renewals().await;
    stage.stall();
    if let Some(first) = first {
        // It is X's turn now, without its knowing.
        first.release().await.unwrap();
    }
    // The driver gives up a connection that is silent for two fifths of a session: the write must leave before.
    if role == Role::Newcomer {
        wait::elapse(TTL / 5).await;
        x.acquire();
    }
    holds_within(TTL / 2, async || match role {
        Role::Newcomer => stage.contenders("a").await == 1,
        Role::Holder | Role::Waiter => stage.renewals().await != before,
    })
    .await;
    x.process.pause();
    let y = granted(spawn_waiter(stage.y.lock("a").ttl(LONG_TTL))).await;
    stage.resume(afterwards).await;
    x.process.resume();
    // Its lease would be over after that.
    let believes = holds_within(TTL, async || match role {
        Role::Holder => x.is_valid(),
        Role::Newcomer | Role::Waiter => x.is_granted(),
    })
    .await;
    assert!(!believes && y.is_valid(), "two believe in one lock");
    stage.wire.reset();
    stage.wire.heal();
    y.release().await.unwrap();
    if role != Role::Holder {
        wait::until("X is granted the lock", async || x.is_granted()).await;
    }
    drop(x);
    wait::until("its session has ended", async || stage.contenders("a").await == 0).await;
}

async fn stand_still(role: Role) {
    let stage = Stage::set().await;
    for _ in 0..rounds() {
        for afterwards in [Afterwards::Connected, Afterwards::CutOff] {
            stands_still_while_stalled(&stage, role, afterwards).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_that_stood_still_in_a_stall_does_not_believe() {
    stand_still(Role::Newcomer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_stood_still_in_a_stall_does_not_believe() {
    stand_still(Role::Holder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_stood_still_in_a_stall_does_not_believe() {
    stand_still(Role::Waiter).await;
}
