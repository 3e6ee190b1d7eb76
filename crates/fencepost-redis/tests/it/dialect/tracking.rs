//! Scenario 71: the first waiter is notified at once when a foreign holder releases the lock, so that it has a chance against
//! a client that acquires the lock again at once.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Backend, OnBusy, Op, Reply, Wakeup};
use fencepost_core::{Attempt, Client, Guard, LockName, Mode, Owner, Result, Rule, Want};
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::wait;
use futures_util::StreamExt;
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(60);

/// Returns how many keys the server tracks for clients.
pub(super) fn tracked_keys(server: &RedisServer) -> usize {
    let info = server.cli(&["INFO", "stats"]);
    let count = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    count.and_then(|count| count.trim().parse().ok()).expect("INFO has tracking_total_keys")
}

async fn is_tracked(server: &RedisServer) {
    wait::until("the key is tracked", async || tracked_keys(server) == 1).await;
}

fn attempt() -> Arc<Attempt> {
    let wants = [Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }];
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: wants.into(),
        rule: Rule::All,
        ttl: TTL,
        label: "bare".into(),
        meta: [].into(),
    })
}

async fn execute(backend: &Arc<dyn Backend>, op: Op) -> Reply {
    backend.execute(vec![op]).await.remove(0).unwrap()
}

/// Without the core, which would check by itself: every wake-up is a notification of the server.
#[tokio::test]
async fn the_first_waiter_is_notified_of_every_change() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let backend = fencepost_redis::open(&format!("{}?dialect=redis-py", server.url())).await.unwrap();
    let mut wakeups = backend.wakeups();
    server.cli(&["SET", "a", "theirs"]);
    let (first, second) = (attempt(), attempt());
    let join = |attempt: &Arc<Attempt>| Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait };
    assert!(matches!(execute(&backend, join(&first)).await, Reply::Waiting { .. }));
    assert!(matches!(execute(&backend, join(&second)).await, Reply::Waiting { .. }));
    let mut next_wakeup = async || wait::within_timeout("a wake-up arrives", wakeups.next()).await.unwrap();
    for change in [&["PEXPIRE", "a", "60000"][..], &["SET", "a", "another"], &["DEL", "a"]] {
        is_tracked(&server).await;
        server.cli(change);
        let wakeup = next_wakeup().await;
        assert!(matches!(wakeup, Wakeup::Check { owner } if owner == first.owner), "{change:?}: {wakeup:?}");
        let reply = execute(&backend, Op::Check(first.clone())).await;
        let is_free = change[0] == "DEL";
        assert_eq!(matches!(reply, Reply::Granted(_)), is_free, "{change:?}: {reply:?}");
    }
    // Behind a Fencepost client no key is tracked, behind a foreign holder it is.
    assert_eq!(tracked_keys(&server), 0);
    server.cli(&["SET", "a", "theirs"]);
    assert!(matches!(execute(&backend, Op::Check(second.clone())).await, Reply::Waiting { .. }));
    is_tracked(&server).await;
    server.cli(&["FLUSHALL"]);
    let wakeup = next_wakeup().await;
    assert!(matches!(wakeup, Wakeup::Check { owner } if owner == second.owner), "{wakeup:?}");
    backend.close().await;
}

fn wait_for(client: &Client) -> JoinHandle<Result<Guard>> {
    let lock = client.lock("a").ttl(TTL);
    tokio::spawn(async move { lock.acquire().await })
}

async fn is_granted(waiter: JoinHandle<Result<Guard>>) {
    let guard = wait::within_timeout("the waiter is granted", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// The connection that tracks is lost: the waiter finds the free lock by polling, and the next waiter gets a new connection.
#[tokio::test]
async fn a_lost_tracking_connection_is_restored() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let client = fencepost_redis::connect(&format!("{}?dialect=redis-py", server.url())).await.unwrap();
    for _ in 0..2 {
        server.cli(&["SET", "a", "theirs"]);
        let waiter = wait_for(&client);
        is_tracked(&server).await;
        let clients = server.cli(&["CLIENT", "LIST"]);
        let tracking = clients.lines().find(|line| line.contains(" flags=t "));
        let id = tracking.and_then(|line| line.strip_prefix("id=")?.split(' ').next());
        server.cli(&["CLIENT", "KILL", "ID", id.expect("a connection tracks")]);
        server.cli(&["DEL", "a"]);
        is_granted(waiter).await;
    }
    client.close().await;
}

/// The account has no right to `CLIENT TRACKING`, as `fencepost rights` printed it before there was tracking.
#[tokio::test]
async fn without_the_right_to_track_waiters_poll() {
    let rights = "resetkeys resetchannels ~* &* +@all -client|tracking";
    let server = RedisServer::start(&RedisServerConfig::plain().with_user("ann", "secret", rights));
    let url = format!("{}?dialect=redis-py", server.url_as("ann"));
    let client = fencepost_redis::connect(&url).await.unwrap();
    for _ in 0..2 {
        server.cli(&["SET", "a", "theirs"]);
        let waiter = wait_for(&client);
        wait::until("the attempt waits", async || client.inspect("a").await.unwrap().waiter_count == 1).await;
        server.cli(&["DEL", "a"]);
        is_granted(waiter).await;
    }
    assert!(server.cli(&["ACL", "LOG"]).contains("client|tracking"), "it was tried");
    client.close().await;
}
