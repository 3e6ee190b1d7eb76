//! Scenario 71: the first of ours in line hears of the end of another library's holder at once, so that it has a chance
//! against one that takes the lock again at once.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Backend, OnBusy, Op, Reply, Wakeup};
use fencepost_core::{Attempt, Client, Guard, LockName, Mode, Owner, Result, Rule, Want};
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::wait;
use futures_util::StreamExt;
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(60);

/// How many keys the server notifies clients of.
pub(super) fn tracked_keys(server: &RedisServer) -> usize {
    let info = server.cli(&["INFO", "stats"]);
    let count = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    count.and_then(|count| count.trim().parse().ok()).expect("it counts them")
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

/// Without the core, so that nothing looks by itself: what is heard, the server said.
#[tokio::test]
async fn the_first_in_line_hears_of_every_change() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let backend = fencepost_redis::open(&format!("{}?dialect=redis-py", server.url())).await.unwrap();
    let mut wakeups = backend.wakeups();
    server.cli(&["SET", "a", "theirs"]);
    let (first, second) = (attempt(), attempt());
    let join = |attempt: &Arc<Attempt>| Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait };
    assert!(matches!(execute(&backend, join(&first)).await, Reply::Waiting { .. }));
    assert!(matches!(execute(&backend, join(&second)).await, Reply::Waiting { .. }));
    let mut turn = async || wait::within_timeout("a notice", wakeups.next()).await.unwrap();
    for change in [&["PEXPIRE", "a", "60000"][..], &["SET", "a", "another"], &["DEL", "a"]] {
        is_tracked(&server).await;
        server.cli(change);
        let heard = turn().await;
        assert!(matches!(heard, Wakeup::Check { owner } if owner == first.owner), "{change:?}: {heard:?}");
        let reply = execute(&backend, Op::Check(first.clone())).await;
        let is_free = change[0] == "DEL";
        assert_eq!(matches!(reply, Reply::Granted(_)), is_free, "{change:?}: {reply:?}");
    }
    // Behind one of ours there is nothing to track; behind another library's holder there is.
    assert_eq!(tracked_keys(&server), 0);
    server.cli(&["SET", "a", "theirs"]);
    assert!(matches!(execute(&backend, Op::Check(second.clone())).await, Reply::Waiting { .. }));
    is_tracked(&server).await;
    server.cli(&["FLUSHALL"]);
    let heard = turn().await;
    assert!(matches!(heard, Wakeup::Check { owner } if owner == second.owner), "{heard:?}");
    backend.close().await;
}

fn wait_for(client: &Client) -> JoinHandle<Result<Guard>> {
    let lock = client.lock("a").ttl(TTL);
    tokio::spawn(async move { lock.acquire().await })
}

async fn enters(waiter: JoinHandle<Result<Guard>>) {
    let guard = wait::within_timeout("its turn comes", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// The connection that tracks is lost: the lock is found free without it, and the next waiter has another.
#[tokio::test]
async fn a_lost_connection_is_made_again() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let client = fencepost_redis::connect(&format!("{}?dialect=redis-py", server.url())).await.unwrap();
    for _ in 0..2 {
        server.cli(&["SET", "a", "theirs"]);
        let waiter = wait_for(&client);
        is_tracked(&server).await;
        let clients = server.cli(&["CLIENT", "LIST"]);
        let tracking = clients.lines().find(|line| line.contains(" flags=t "));
        let id = tracking.and_then(|line| line.strip_prefix("id=")?.split(' ').next());
        server.cli(&["CLIENT", "KILL", "ID", id.expect("one tracks")]);
        server.cli(&["DEL", "a"]);
        enters(waiter).await;
    }
    client.close().await;
}

/// An account without the right to it, as `fencepost rights` printed it before there was tracking.
#[tokio::test]
async fn without_the_right_it_goes_on_by_looking() {
    let rights = "resetkeys resetchannels ~* &* +@all -client|tracking";
    let server = RedisServer::start(&RedisServerConfig::plain().with_user("ann", "secret", rights));
    let url = format!("{}?dialect=redis-py", server.url_as("ann"));
    let client = fencepost_redis::connect(&url).await.unwrap();
    for _ in 0..2 {
        server.cli(&["SET", "a", "theirs"]);
        let waiter = wait_for(&client);
        wait::until("one waits", async || client.inspect("a").await.unwrap().waiter_count == 1).await;
        server.cli(&["DEL", "a"]);
        enters(waiter).await;
    }
    assert!(server.cli(&["ACL", "LOG"]).contains("client|tracking"), "it was tried");
    client.close().await;
}
