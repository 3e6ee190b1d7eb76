//! `?replicas=1`: a grant counts only if a replica has confirmed it.

use fencepost_core::{ErrorKind, LostReason};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, SHORT, enqueue, granted, hold, until_idle, until_renewed};
use crate::bench::RedisBench;

fn follows(replica: &RedisServer) -> bool {
    replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
}

/// A grant is on the replica before it is returned.
#[tokio::test]
async fn without_the_replica_there_are_no_grants() {
    let primary = RedisServer::start(&RedisServerConfig::plain());
    let replica_of = format!("replicaof 127.0.0.1 {}", primary.port());
    let replica = RedisServer::start(&RedisServerConfig::plain().with_config(&replica_of));
    wait::block_until("the replica follows", || follows(&replica));
    let bench = RedisBench::at(&primary.url(), "&replicas=1", [primary.url()]);
    let client = bench.client().await;
    let key = format!("{}:l:a", bench.namespace());
    let guard = hold(&client.lock("a").ttl(SHORT * 4)).await;
    assert_eq!(replica.cli(&["EXISTS", &key]), "1");
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    guard.release().await.unwrap();
    let guard = granted(waiter).await;
    assert!(replica.cli(&["GET", &key]).contains(&guard.token().to_string()));
    guard.release().await.unwrap();

    let held = hold(&client.lock("held").ttl(SHORT * 4)).await;
    replica.kill();
    let error = client.lock("b").ttl(SHORT * 4).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(wait::within_timeout("it is lost", held.lost()).await, LostReason::Expired);
    until_idle(&client, "b").await;

    replica.restart();
    wait::until("the replica follows again", async || follows(&replica)).await;
    let again = hold(&client.lock("b").ttl(SHORT * 4)).await;
    until_renewed(&again).await;
    again.release().await.unwrap();
    drop(held);
    assert_clean(&bench).await;
}

/// The right to `WAIT` is revoked: a grant is not known to be on a replica, and is undone.
#[tokio::test]
async fn a_grant_without_the_right_to_wait_for_replicas_is_undone() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_user("app", "word", "+@all ~* &*"));
    let bench = RedisBench::at(&server.url_as("app"), "&replicas=1", [server.url()]);
    let client = bench.client().await;
    server.cli(&["ACL", "SETUSER", "app", "-wait"]);
    let error = client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    until_idle(&client, "a").await;
}
