//! A standby is promoted. Asynchronous replication loses the last commits; synchronous replication loses nothing that was
//! confirmed.

use std::time::Duration;

use fencepost_testkit::databases::outages;
use fencepost_testkit::servers::postgres::{PostgresPair, Replication};
use fencepost_testkit::wait;

use crate::actions::{connect, granted, hold, spawn_waiter, until_renewed_since};
use crate::bench::{DATABASE, PostgresBench, drive};

/// Longer than a failover takes.
const TTL: Duration = Duration::from_secs(15);

/// A bench whose clients know both servers.
fn bench_on(pair: &PostgresPair) -> PostgresBench {
    let direct = pair.primary().url(DATABASE);
    let port = pair.primary().port();
    let both = format!("127.0.0.1:{port},127.0.0.1:{}", pair.standby().port());
    PostgresBench::at(&direct.replace(&format!("127.0.0.1:{port}"), &both), "", &direct)
}

/// The server's time is in the tokens, so that they grow.
#[tokio::test]
async fn an_asynchronous_standby_loses_the_last_grants() {
    let pair = PostgresPair::start(Replication::Asynchronous);
    let bench = bench_on(&pair);
    outages::an_asynchronous_replica_loses_the_last_grants(
        [connect(&bench).await, connect(&bench).await],
        || {
            pair.wait_until_caught_up();
            pair.wire().cut();
        },
        || {
            pair.primary().kill();
            pair.promote();
        },
    )
    .await;
}

/// A grant that the standby does not confirm is not returned, and its client does not fill the server with connections that
/// wait. What was returned is there after the promotion.
#[tokio::test]
async fn a_synchronous_standby_loses_nothing() {
    let pair = PostgresPair::start(Replication::Synchronous);
    let bench = bench_on(&pair);
    let (client, other) = (connect(&bench).await, connect(&bench).await);
    let kept = hold(&client.lock("kept").ttl(TTL)).await;
    pair.wire().cut();
    let last = kept.valid_until();
    let pending = spawn_waiter(client.lock("pending").ttl(TTL));
    // An application that tries again and again, with a short timeout.
    let short = other.lock("short").ttl(Duration::from_secs(1));
    let short = tokio::spawn(async move {
        loop {
            if let Ok(guard) = short.acquire().await {
                return guard;
            }
        }
    });
    let driver = drive(bench.direct()).await;
    let waiting = "SELECT count(*) FILTER (WHERE wait_event = 'SyncRep'), count(*) FROM pg_stat_activity \
        WHERE application_name = $1";
    let mut most = 0;
    let end = fencepost_core::clock::Clock::system().now() + TTL * 2 / 5;
    wait::until("the client has tried for a while", async || {
        let row = driver.query_one(waiting, &[&bench.namespace()]).await.unwrap();
        most = most.max(row.get::<_, i64>(1));
        fencepost_core::clock::Clock::system().now() >= end && row.get::<_, i64>(0) > 0
    })
    .await;
    println!("{most} connections while the standby is away");
    assert!(most < 50, "{most} connections");
    assert!(!pending.is_finished(), "a grant was returned that the standby does not have");
    pair.primary().kill();
    pair.promote();
    let short = wait::within_timeout("it is granted", short).await.unwrap();
    short.release().await.unwrap();
    until_renewed_since(&kept, last).await;
    assert!(other.lock("kept").ttl(TTL).try_acquire().await.unwrap().is_none());
    let guard = granted(pending).await;
    assert!(other.lock("pending").ttl(TTL).try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    kept.release().await.unwrap();
}
