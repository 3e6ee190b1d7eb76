//! Opening connections, on real servers.

mod poolers;
mod rejections;

use std::time::Duration;

use fencepost_core::{Error, ErrorKind};
use fencepost_testkit::servers::postgres::{
    PostgresPair, PostgresServer, PostgresServerConfig, Replication, shared,
};
use fencepost_testkit::wait;
use tokio::sync::mpsc::unbounded_channel;

use super::*;
use crate::config::parse;

fn link(url: &str) -> Link {
    Link::new(parse(url).unwrap()).unwrap()
}

async fn open_error(url: &str) -> Error {
    link(url).open(None).await.map(|_| ()).unwrap_err()
}

async fn value(client: &Client, sql: &str) -> String {
    client.query_typed_one(sql, &[]).await.unwrap().get(0)
}

/// Returns a URL with another host before the one it has.
fn with_host_before(url: &str, port: u16) -> String {
    url.replacen("127.0.0.1", &format!("127.0.0.1:{port},127.0.0.1"), 1)
}

#[tokio::test]
async fn a_connection_has_the_configured_name_and_read_committed() {
    let server = shared();
    server.create_database("strict");
    server.psql("ALTER DATABASE strict SET default_transaction_isolation = 'serializable'");
    let link = link(&server.url("strict"));
    let client = link.open(None).await.unwrap();
    assert_eq!(value(&client, "SHOW application_name").await, "fencepost");
    assert_eq!(value(&client, "SHOW transaction_isolation").await, "read committed");
    assert!(!link.pooled(&client).await.unwrap());
}

#[tokio::test]
async fn notifications_and_the_end_of_the_connection_are_events() {
    let (events, mut received) = unbounded_channel();
    let link = link(&shared().url("postgres"));
    let client = link.open(Some(events)).await.unwrap();
    client.batch_execute("LISTEN bell; NOTIFY bell, 'rings'").await.unwrap();
    let rings = Event::Notification { channel: "bell".into(), payload: "rings".into() };
    assert_eq!(received.recv().await, Some(rings));
    let process = value(&client, "SELECT pg_backend_pid()::text").await;
    shared().psql(&format!("SELECT pg_terminate_backend({process})"));
    assert_eq!(received.recv().await, Some(Event::Closed));
    assert_eq!(received.recv().await, None);
    assert!(client.is_closed());
}

#[tokio::test]
async fn a_dropped_client_closes_its_connection() {
    let (events, mut received) = unbounded_channel();
    let client = link(&shared().url("postgres")).open(Some(events)).await.unwrap();
    drop(client);
    assert_eq!(received.recv().await, Some(Event::Closed));
}

#[tokio::test]
async fn the_primary_is_found_among_the_hosts() {
    let pair = PostgresPair::start(Replication::Asynchronous);
    let gone = fencepost_testkit::servers::free_port();
    let url = with_host_before(&pair.primary().url("postgres"), pair.standby().port());
    let url = with_host_before(&url, gone);
    let client = link(&url).open(None).await.unwrap();
    assert_eq!(value(&client, "SHOW port").await, pair.primary().port().to_string());

    let url = with_host_before(&pair.standby().url("postgres"), gone);
    let error = open_error(&url).await;
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Unreachable, true), "{error:?}");
    assert!(error.to_string().contains("is a standby"), "{error:?}");
    pair.primary().psql("ALTER SYSTEM SET default_transaction_read_only = on");
    pair.primary().reload();
    let error = open_error(&pair.primary().url("postgres")).await;
    assert!(error.to_string().contains("read-only"), "{error:?}");
}

#[tokio::test]
async fn a_lost_connection_leaves_the_outcome_unknown_and_a_gone_server_is_unreachable() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let link = link(&server.url("postgres"));
    for hurt in [PostgresServer::kill, PostgresServer::stop] {
        let client = link.open(None).await.unwrap();
        let sleep = tokio::spawn(async move { client.batch_execute("SELECT pg_sleep(600)").await });
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        wait::until("it sleeps", async || server.psql(sleeping) == "1").await;
        hurt(&server);
        let error = call_failed(link.location(), &sleep.await.unwrap().unwrap_err());
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error:?}");
        let error = open_error(&server.url("postgres")).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
        assert!(error.hint().is_some(), "{error:?}");
        server.restart();
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    server.pause();
    let error = open_error(&server.url("postgres")).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    assert!(error.full_message().contains("no reply"), "{error:?}");
    server.resume();
    let client = link(&server.url("postgres")).open(None).await.unwrap();
    assert_eq!(value(&client, "SELECT 'here'").await, "here");
    assert_eq!(
        link(&server.url("postgres?connect_timeout=1")).config.connect_timeout,
        Duration::from_secs(1)
    );
}
