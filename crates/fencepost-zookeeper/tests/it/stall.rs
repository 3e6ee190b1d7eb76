//! Scenario 58: a follower receives nothing from its leader for longer than a session timeout, while everything that it
//! sends still arrives. Writes of its clients are committed, but the leader gets no report that their sessions are
//! alive, and expires them. When the stream resumes, replies from before arrive: none of them may make a client believe
//! that it holds a lock which another client holds.

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
/// The variable for the number of rounds of each test; the default is one.
const ROUNDS: &str = "FENCEPOST_TEST_ROUNDS";

fn rounds() -> usize {
    std::env::var(ROUNDS).map_or(1, |rounds| rounds.parse().expect("a number of rounds"))
}

/// The connection of the stalled client when the stream resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterStall {
    /// It reads all replies, and that its session has expired.
    Connected,
    /// It reads all replies, and nothing after them.
    CutOff,
}

/// An ensemble in which X is connected to a follower that can be stalled, and Y to the leader.
struct StallBench {
    ensemble: Ensemble,
    follower: usize,
    /// Between X and its server.
    wire: Wire,
    y: Client,
    /// Connected to the leader.
    driver: zk::Client,
}

impl StallBench {
    async fn start() -> Self {
        // 100 seconds, so that the stalled follower is not dropped.
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

    /// Delivers what was held back. Returns when the follower is up to date with the leader.
    async fn resume(&self, after_stall: AfterStall) {
        if after_stall == AfterStall::CutOff {
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

    /// Returns the total number of renewals of the sessions that are alive.
    async fn renewals(&self) -> i32 {
        let sessions = "/fencepost/_fencepost/sessions2";
        let mut renewals = 0;
        for node in self.driver.list_children(sessions).await.expect("the leader serves") {
            let stat =
                self.driver.check_stat(&format!("{sessions}/{node}")).await.expect("the leader serves");
            renewals += stat.map_or(0, |stat| stat.version);
        }
        renewals
    }
}

/// Waits until the condition holds, for at most this time. Returns whether it does.
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

/// Starts a waiter that retries while its server is unavailable.
fn spawn_retrying_waiter(client: &Client, name: &str) -> Waiter {
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
async fn assert_not_granted(bench: &StallBench, x: &Waiter, y: &Guard, after_stall: AfterStall) {
    if after_stall == AfterStall::CutOff {
        // Its lease would have expired by then.
        let is_granted = holds_within(TTL, async || x.is_finished()).await;
        assert!(!is_granted || !y.is_valid(), "two clients believe that they hold the lock");
        bench.wire.reset();
        bench.wire.heal();
    }
    wait::until("X waits again", async || {
        assert!(!x.is_finished(), "two clients believe that they hold the lock");
        bench.y.inspect("a").await.is_ok_and(|state| state.waiter_count == 1)
    })
    .await;
    assert!(y.is_valid() && !x.is_finished(), "two clients believe that they hold the lock");
}

async fn acquires_during_stall(bench: &StallBench, also: Option<&str>, after_stall: AfterStall) {
    let x = connect(&bench.url_of_x()).await;
    hold(&x.lock("a").ttl(TTL)).await.release().await.unwrap();
    bench.stall();
    // The later the request, the longer the client would believe that it holds the lock.
    wait::elapse(TTL * 3 / 4).await;
    let other = also.map(|name| spawn_retrying_waiter(&x, name));
    if let Some(name) = also {
        holds_within(TTL / 12, async || bench.contenders(name).await == 1).await;
    }
    let late = spawn_retrying_waiter(&x, "a");
    holds_within(TTL / 12, async || bench.contenders("a").await == 1).await;
    let y = granted(spawn_waiter(bench.y.lock("a").ttl(LONG_TTL))).await;
    bench.resume(after_stall).await;
    assert_not_granted(bench, &late, &y, after_stall).await;
    y.release().await.unwrap();
    granted(late).await.release().await.unwrap();
    if let Some(other) = other {
        granted(other).await.release().await.unwrap();
    }
    x.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_from_before_a_stall_is_discarded() {
    let bench = StallBench::start().await;
    for _ in 0..rounds() {
        acquires_during_stall(&bench, None, AfterStall::Connected).await;
        acquires_during_stall(&bench, None, AfterStall::CutOff).await;
    }
}

/// Replies that arrive in one burst prove nothing about each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writes_in_a_stall_do_not_prove_each_other() {
    let bench = StallBench::start().await;
    for _ in 0..rounds() {
        acquires_during_stall(&bench, Some("b"), AfterStall::Connected).await;
        acquires_during_stall(&bench, Some("b"), AfterStall::CutOff).await;
    }
}

/// The state of X before the stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It has a session, and holds nothing.
    Idle,
    Holder,
    Waiter,
}

/// X as a separate process.
struct ClientX {
    process: ScriptedProcess,
    acquire: String,
}

impl ClientX {
    fn new(bench: &StallBench) -> Self {
        Self {
            process: ScriptedProcess::new(bench.url_of_x()),
            acquire: format!("acquire a {}", TTL.as_millis()),
        }
    }

    fn acquire(&mut self) {
        self.process.send(&self.acquire);
    }

    /// Returns whether it was granted the lock by now. Retries if its server was unavailable.
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

/// X sends a write during the stall and is paused until Y holds. A paused process does not notice that its connection
/// is silent, and reads the late replies when it is resumed.
async fn is_paused_during_stall(bench: &StallBench, role: Role, after_stall: AfterStall) {
    let mut x = ClientX::new(bench);
    let first = match role {
        Role::Idle | Role::Holder => None,
        Role::Waiter => Some(hold(&bench.y.lock("a").ttl(LONG_TTL)).await),
    };
    x.acquire();
    if role == Role::Waiter {
        until_queued(&bench.y, "a", 1).await;
    } else {
        x.process.receive("granted");
    }
    if role == Role::Idle {
        x.process.send("release");
        x.process.receive("released");
    }
    let before = bench.renewals().await;
    bench.stall();
    if let Some(first) = first {
        // X holds the lock now without knowing it.
        first.release().await.unwrap();
    }
    // The driver drops a connection that is silent for two fifths of a session timeout: the write must be sent before.
    if role == Role::Idle {
        wait::elapse(TTL / 5).await;
        x.acquire();
    }
    holds_within(TTL / 2, async || match role {
        Role::Idle => bench.contenders("a").await == 1,
        Role::Holder | Role::Waiter => bench.renewals().await != before,
    })
    .await;
    x.process.pause();
    let y = granted(spawn_waiter(bench.y.lock("a").ttl(LONG_TTL))).await;
    bench.resume(after_stall).await;
    x.process.resume();
    // Its lease would have expired after that.
    let believes_to_hold = holds_within(TTL, async || match role {
        Role::Holder => x.is_valid(),
        Role::Idle | Role::Waiter => x.is_granted(),
    })
    .await;
    assert!(!believes_to_hold && y.is_valid(), "two clients believe that they hold the lock");
    bench.wire.reset();
    bench.wire.heal();
    y.release().await.unwrap();
    if role != Role::Holder {
        wait::until("X is granted the lock", async || x.is_granted()).await;
    }
    drop(x);
    wait::until("its session has ended", async || bench.contenders("a").await == 0).await;
}

async fn run_paused(role: Role) {
    let bench = StallBench::start().await;
    for _ in 0..rounds() {
        for after_stall in [AfterStall::Connected, AfterStall::CutOff] {
            is_paused_during_stall(&bench, role, after_stall).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_client_paused_in_a_stall_gets_no_stale_grant() {
    run_paused(Role::Idle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_paused_in_a_stall_is_not_valid() {
    run_paused(Role::Holder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_paused_in_a_stall_gets_no_stale_grant() {
    run_paused(Role::Waiter).await;
}
