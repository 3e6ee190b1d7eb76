//! The wall clocks of the server and of clients: only the server's decides when leases end, and tokens rise all the same.

use std::time::Duration;

use fencepost_testkit::WireBench;
use fencepost_testkit::databases::outages;
use fencepost_testkit::servers::mariadb::MariadbServerConfig;

use crate::actions::{hold, until_renewed};
use crate::bench::MariadbBench;

const TTL: Duration = Duration::from_secs(6);

/// Scenario 42: set back, the clock does not make leases longer. Live holders renew, and waiters of dead ones are granted after a
/// ttl.
#[tokio::test]
async fn a_clock_set_back_keeps_no_lock() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain().with_movable_clock());
    outages::a_clock_set_back_keeps_no_lock(&bench, bench.server()).await;
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
