//! The wall clocks of the server and of clients: only the server's decides when leases end, and tokens rise all the same.

use std::time::Duration;

use fencepost_testkit::servers::mariadb::MariadbServerConfig;
use fencepost_testkit::{TestBench, WireBench};

use crate::actions::{enqueue, granted, hold, until_renewed};
use crate::bench::MariadbBench;

const TTL: Duration = Duration::from_secs(6);
const HOUR: i64 = 3600;

/// Scenario 42: set back, the clock does not make leases longer. Live holders renew, and waiters of dead ones are granted after a
/// ttl.
#[tokio::test]
async fn a_clock_set_back_keeps_no_lock() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain().with_movable_clock());
    let server = bench.server();
    let (dead, client, other) =
        (bench.client().await, bench.direct_client().await, bench.direct_client().await);
    server.shift_clock(HOUR);
    let kept = hold(&client.lock("kept").ttl(TTL)).await;
    let kept_reader = hold(&client.lock("kept/read").shared().ttl(TTL)).await;
    let mut orphans = Vec::new();
    for name in ["exclusive", "queued"] {
        orphans.push(hold(&dead.lock(name).ttl(TTL)).await);
    }
    let dead_waiter = enqueue(&client, dead.lock("queued").ttl(TTL), "queued", 1).await;
    let reader = hold(&dead.lock("shared").shared().ttl(TTL)).await;
    // Its lease is extended after the row of its lock was last written.
    server.shift_clock(HOUR + 2);
    until_renewed(&reader).await;
    orphans.push(reader);
    bench.wire().cut();
    server.shift_clock(0);
    let waiters = ["exclusive", "queued", "shared"].map(|name| {
        let lock = other.lock(name).ttl(TTL);
        tokio::spawn(async move { lock.acquire().await })
    });
    for (waiter, orphan) in waiters.into_iter().zip([0, 1, 2]) {
        let guard = granted(waiter).await;
        assert!(guard.token() > orphans[orphan].token(), "{:?}", guard.name());
        guard.release().await.unwrap();
    }
    for guard in [&kept, &kept_reader] {
        until_renewed(guard).await;
        until_renewed(guard).await;
    }
    assert!(other.lock("kept").ttl(TTL).try_acquire().await.unwrap().is_none());
    dead_waiter.abort();
}

/// Scenario 18: the clocks of clients decide nothing. The server's is minutes ahead of theirs, then as far behind, and both
/// clients agree on which of them holds the lock.
#[tokio::test]
async fn clocks_of_clients_do_not_matter() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain().with_movable_clock());
    let mut newest = None;
    for minutes in [0, 3, -3] {
        bench.server().shift_clock(60 * minutes);
        let (client, other) = (bench.direct_client().await, bench.direct_client().await);
        let guard = hold(&client.lock("a").ttl(TTL)).await;
        until_renewed(&guard).await;
        assert!(other.lock("a").ttl(TTL).try_acquire().await.unwrap().is_none(), "{minutes} min ahead");
        let left = other.inspect("a").await.unwrap().holders[0].expires_in.unwrap();
        assert!(left <= TTL, "{left:?}");
        assert!(Some(guard.token()) > newest);
        newest = Some(guard.token());
        guard.release().await.unwrap();
    }
}
