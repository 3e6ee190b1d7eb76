//! The tables: other versions, tables of other programs, missing rights, tables that are dropped.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, LostReason, Owner};
use fencepost_testkit::servers::mariadb::shared;
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::actions::{LONG_TTL, granted, hold, spawn_waiter, until_queued};
use crate::bench::{MariadbBench, Server};

fn assert_error(error: &Error, kind: ErrorKind, words: &str, hint: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(words), "{error:?}");
    assert!(error.hint().is_some_and(|found| found.contains(hint)), "{error:?}");
}

async fn refused(bench: &MariadbBench) -> Error {
    fencepost_mysql::connect(WireBench::url(bench)).await.unwrap_err()
}

/// The modes, as options of the URL, and their tables with the format.
const MODES: [(&str, &str); 2] = [("", "storage"), ("&mode=named", "named_storage")];

/// The error tells whether the other version is older or newer.
#[tokio::test]
async fn another_version_is_refused() {
    for (mode, table) in MODES {
        for (version, age) in [(0, "older"), (2, "newer"), (1_000_000, "newer")] {
            let bench = MariadbBench::plain();
            let (url, namespace) = (format!("{}{mode}", WireBench::url(&bench)), bench.namespace());
            fencepost_mysql::connect(&url).await.unwrap().close().await;
            bench.sql(&format!("UPDATE `{namespace}_{table}` SET format = {version}"));
            let error = fencepost_mysql::connect(&url).await.unwrap_err();
            let hint = format!("use the {age} fencepost for all clients, or another");
            assert_error(&error, ErrorKind::Backend, &format!("have format {version}, of a"), &hint);
            let words = format!("{age} fencepost than this one, which has format 1");
            assert_error(&error, ErrorKind::Backend, &words, "?namespace=NAME");
        }
    }
}

/// Clients of one mode, and of both, that start at once in a new namespace.
#[tokio::test(flavor = "multi_thread")]
async fn many_clients_of_each_mode_create_its_tables_once() {
    let [(lease, _), (named, _)] = MODES;
    for modes in [[named, named], [lease, named], [named, lease]] {
        let bench = MariadbBench::plain();
        let urls: Vec<String> =
            modes.iter().map(|mode| format!("{}{mode}", WireBench::url(&bench))).collect();
        let clients = (0..12).map(|index| fencepost_mysql::connect(&urls[index % 2]));
        let clients = futures_util::future::join_all(clients).await;
        let clients: Vec<_> = clients.into_iter().map(|client| client.expect("it connects")).collect();
        for (index, client) in clients.iter().enumerate() {
            assert_eq!(client.info().storage_id, clients[index % 2].info().storage_id);
            hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
        }
        for (mode, table) in MODES.into_iter().filter(|(mode, _)| modes.contains(mode)) {
            let count = bench.sql(&format!("SELECT COUNT(*) FROM `{}_{table}`", bench.namespace()));
            assert_eq!(count, "1", "{modes:?}: {mode}");
        }
    }
}

#[tokio::test]
async fn tables_of_other_programs_are_not_touched() {
    for (sql, table) in [
        ("CREATE TABLE {locks} (id INT); INSERT INTO {locks} VALUES (7)", "locks"),
        ("CREATE TABLE {holders} (name VARCHAR(10), owner VARCHAR(10))", "holders"),
        ("CREATE TABLE {storage} (bytes BIGINT)", "storage"),
        (
            "CREATE TABLE {storage} (id INT, format TEXT, storage_id TEXT); INSERT INTO {storage} VALUES (1, 'x', 'y')",
            "storage",
        ),
        ("CREATE VIEW {tokens} AS SELECT 1 AS x", "tokens"),
    ] {
        let bench = MariadbBench::plain();
        bench.sql(sql);
        let before = bench.sql(&format!("SELECT * FROM {{{table}}}"));
        let error = refused(&bench).await;
        assert_error(&error, ErrorKind::Backend, "has tables of another program", "namespace=");
        assert_eq!(bench.sql(&format!("SELECT * FROM {{{table}}}")), before);
    }
}

/// Creates an account without rights, and returns a bench for it.
fn as_an_account() -> (MariadbBench, String) {
    let account = format!("u_{}", &Owner::random().to_hex()[..12]);
    shared().sql(&format!("CREATE USER {account}@'127.0.0.1'; GRANT USAGE ON *.* TO {account}@'127.0.0.1'"));
    let url = shared().url_as(&account);
    (MariadbBench::through_a_wire(Server::Shared(shared()), &url, ""), account)
}

/// Returns the printed statements for the accounts of these tests.
fn printed_rights(bench: &MariadbBench) -> String {
    fencepost_mysql::rights(WireBench::url(bench)).unwrap().replace("@'%'", "@'127.0.0.1'")
}

#[tokio::test]
async fn missing_rights_are_named() {
    let (bench, account) = as_an_account();
    assert_error(
        &refused(&bench).await,
        ErrorKind::Denied,
        "denies the account permission",
        "fencepost rights",
    );
    // It may read the database, and not create tables.
    bench.sql(&format!("GRANT SELECT ON app.* TO {account}@'127.0.0.1'"));
    assert_error(
        &refused(&bench).await,
        ErrorKind::Denied,
        "denies the account permission",
        "`fencepost schema` and `fencepost rights`",
    );
    bench.sql(&format!("REVOKE SELECT ON app.* FROM {account}@'127.0.0.1'"));
    bench.sql(&fencepost_mysql::schema(WireBench::url(&bench)).unwrap());
    let rights = printed_rights(&bench);
    let without: Vec<&str> = rights.lines().filter(|line| !line.contains("_holders`")).collect();
    bench.sql(&without.join("\n"));
    assert_error(
        &refused(&bench).await,
        ErrorKind::Denied,
        "denies the account permission",
        "fencepost rights",
    );
    // Without a right to write, an acquire fails and a lock that is held stays so.
    bench.sql(&bench.with_tables(&format!("GRANT SELECT ON {{holders}} TO {account}@'127.0.0.1'")));
    let admin = WireBench::url(&bench).replace(&format!("{account}@"), "root@");
    let admin = fencepost_mysql::connect(&admin).await.unwrap();
    let guard = hold(&admin.lock("a").ttl(LONG_TTL)).await;
    let client = bench.client().await;
    let error = client.lock("b").ttl(LONG_TTL).try_acquire().await.unwrap_err();
    assert_error(&error, ErrorKind::Denied, "denies the account permission", "fencepost rights");
    bench.sql(&rights);
    hold(&client.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
    assert!(client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap().is_none());
    guard.release().await.expect("it is still held");
}

/// An account that may create the tables itself, by the lines of the printed rights that are comments.
#[tokio::test]
async fn an_account_with_the_right_to_create_them_creates_the_tables() {
    let (bench, _) = as_an_account();
    let rights =
        printed_rights(&bench).replace("\nGRANT ", "\n-- GRANT ").replace("-- GRANT CREATE", "GRANT CREATE");
    bench.sql(&rights);
    let client = bench.client().await;
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}

/// The tables are dropped under clients, and created again by another one: holders are told, and waiters are granted.
#[tokio::test]
async fn dropped_tables_are_an_error_until_they_exist_again() {
    let bench = MariadbBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(Duration::from_secs(3))).await;
    for kind in ["storage", "locks", "holders", "tickets", "cells", "tombstones", "notices", "tokens"] {
        bench.try_sql(&format!("DROP TABLE {{{kind}}}")).await.unwrap();
    }
    let error = client.lock("b").ttl(LONG_TTL).try_acquire().await.unwrap_err();
    assert_error(&error, ErrorKind::Backend, "lacks Fencepost's tables", "fencepost schema");
    let other = bench.client().await;
    let second = hold(&other.lock("a").ttl(LONG_TTL)).await;
    assert!(second.token() > guard.token());
    let reason = wait::within_timeout("the loss is told", guard.lost()).await;
    assert!(matches!(reason, LostReason::NotHeld | LostReason::Expired), "{reason:?}");
    let waiter = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    until_queued(&other, "a", 1).await;
    second.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}
