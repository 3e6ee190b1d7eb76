//! Servers that answer, but refuse writes for a while.

use fencepost_core::ErrorKind;
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::actions::{SHORT, enqueue, granted, hold, spawn_waiter, until_queued, until_renewed};
use crate::bench::RedisBench;

/// Returns how often the server has replied with this error.
pub(crate) fn refusals_of(server: &RedisServer, code: &str) -> usize {
    let stats = server.cli(&["INFO", "errorstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{code}:count=")));
    line.map_or(0, |count| count.trim().parse().expect("it is a number"))
}

/// The server refuses every write until it is healed. Holders keep their locks; waiters keep waiting, also if their ticket
/// expires meanwhile; an acquire is retried until its wait timeout.
async fn outlasts(server: &RedisServer, code: &str, hint: &str, refuse: impl Fn(), heal: impl Fn()) {
    let bench = RedisBench::behind_a_wire(server, "");
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let held = hold(&ours.lock("a").ttl(SHORT * 10)).await;
    let with_long_ttl = enqueue(&ours, theirs.lock("a").ttl(SHORT * 10), "a", 1).await;
    let with_short_ttl = enqueue(&ours, theirs.lock("a").ttl(SHORT), "a", 2).await;
    refuse();
    // After a reset all leases are renewed and all tickets checked at once.
    let before = refusals_of(server, code);
    bench.wire().reset();
    let new_waiter = spawn_waiter(theirs.lock("b").ttl(SHORT));
    let error = theirs.lock("c").ttl(SHORT).try_acquire().await.expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let error = theirs.lock("c").ttl(SHORT).wait(SHORT).acquire().await.expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains(code) && error.hint().unwrap().contains(hint), "{error}");
    until_queued(&ours, "a", 1).await;
    assert!(refusals_of(server, code) > before + 3);
    assert!([&with_long_ttl, &with_short_ttl, &new_waiter].iter().all(|waiter| !waiter.is_finished()));
    heal();
    granted(new_waiter).await.release().await.unwrap();
    until_renewed(&held).await;
    until_queued(&ours, "a", 2).await;
    held.release().await.unwrap();
    granted(with_long_ttl).await.release().await.unwrap();
    granted(with_short_ttl).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Scenario 66: the server has too few replicas for a while.
#[tokio::test]
async fn a_lack_of_replicas_is_outlasted() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let replicas = |count: &str| drop(server.cli(&["CONFIG", "SET", "min-replicas-to-write", count]));
    outlasts(&server, "NOREPLICAS", "min-replicas-to-write", || replicas("1"), || replicas("0")).await;
}

/// Scenario 66: the server cannot write its snapshot for a while.
#[tokio::test]
async fn a_snapshot_that_fails_is_outlasted() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    server.cli(&["CONFIG", "SET", "save", "3600 1"]);
    let folder = server.cli(&["CONFIG", "GET", "dir"]);
    let in_the_way = std::path::Path::new(folder.lines().last().unwrap()).join("dump.rdb");
    let snapshot = |status: &str| {
        server.cli(&["BGSAVE"]);
        let status = format!("rdb_last_bgsave_status:{status}");
        wait::block_until("the snapshot is over", || server.cli(&["INFO", "persistence"]).contains(&status));
    };
    let refuse = || {
        std::fs::create_dir_all(in_the_way.join("full")).unwrap();
        snapshot("err");
    };
    let heal = || {
        std::fs::remove_dir_all(&in_the_way).unwrap();
        snapshot("ok");
    };
    outlasts(&server, "MISCONF", "its disk", refuse, heal).await;
}
