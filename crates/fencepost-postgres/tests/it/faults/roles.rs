//! Accounts with unusual defaults.

use std::time::Duration;

use fencepost_core::ErrorKind;
use fencepost_testkit::servers::postgres::shared;
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, Transaction, connect, enqueue, granted, hold};
use crate::bench::{DATABASE, PostgresBench};

/// Returns a bench for a new superuser with these settings.
fn bench_with(settings: &[&str]) -> PostgresBench {
    let role = format!("role_{:016x}", rand::random::<u64>());
    shared().psql(&format!("CREATE ROLE {role} SUPERUSER LOGIN"));
    for setting in settings {
        shared().psql(&format!("ALTER ROLE {role} SET {setting}"));
    }
    PostgresBench::at(&shared().url_as(&role, DATABASE), "", &shared().url(DATABASE))
}

#[tokio::test]
async fn another_isolation_level_is_replaced() {
    for level in ["repeatable read", "serializable"] {
        let bench = bench_with(&[&format!("default_transaction_isolation = '{level}'")]);
        let client = connect(&bench).await;
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
        guard.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
    }
}

/// Behind a proxy, sessions may be shared, and are left as they are.
#[tokio::test]
async fn another_isolation_level_behind_a_proxy_is_an_error_that_says_what_to_change() {
    let setting = "default_transaction_isolation = 'serializable'";
    let direct = bench_with(&[setting]);
    connect(&direct).await.close().await;
    let bench =
        PostgresBench::through_a_wire(direct.url().split('?').next().unwrap(), shared().port(), "", "");
    let error = match fencepost_postgres::connect(bench.url()).await {
        Err(error) => error,
        Ok(client) => client.lock("a").try_acquire().await.unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("default_transaction_isolation")), "{error:?}");
}

#[tokio::test]
async fn an_account_that_may_only_read_is_an_error_that_says_so() {
    let bench = bench_with(&["default_transaction_read_only = on"]);
    let error = fencepost_postgres::connect(bench.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    assert!(error.to_string().contains("read-only"), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("default_transaction_read_only")), "{error:?}");
}

/// What is granted is on the disk, and on the synchronous standby, whatever the default of the account is. A deferred trigger
/// reads the setting at the commit.
#[tokio::test]
async fn grants_commit_synchronously() {
    for (default, expected) in [
        ("off", "on"),
        ("local", "on"),
        ("remote_write", "on"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ] {
        let bench = bench_with(&[&format!("synchronous_commit = {default}")]);
        let client = connect(&bench).await;
        let namespace = bench.namespace();
        shared().psql(&format!(
            "CREATE TABLE {namespace}.seen (setting text);
             CREATE FUNCTION {namespace}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO {namespace}.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE OF token, owner, expires_at ON {namespace}.locks
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {namespace}.note()"
        ));
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
        guard.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        let seen = shared().psql(&format!("SELECT DISTINCT setting FROM {namespace}.seen"));
        assert_eq!(seen, expected, "with {default}");
    }
}

/// A release and a sweep that grant the lock to a waiter commit synchronously; flights that only wait do not.
#[tokio::test]
async fn only_waiting_does_not_commit_synchronously() {
    for default in ["off", "on"] {
        let bench = bench_with(&[&format!("synchronous_commit = {default}")]);
        let client = connect(&bench).await;
        let namespace = bench.namespace();
        shared().psql(&format!(
            "CREATE TABLE {namespace}.seen (event text, setting text);
             CREATE FUNCTION {namespace}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO {namespace}.seen VALUES (TG_OP, current_setting('synchronous_commit')); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER note AFTER INSERT OR DELETE ON {namespace}.tickets
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {namespace}.note()"
        ));
        let read =
            format!("SELECT event, setting FROM {namespace}.seen ORDER BY event; TRUNCATE {namespace}.seen");
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
        guard.release().await.unwrap();
        let expired = granted(waiter).await;
        assert_eq!(shared().psql(&read), "DELETE|on\nINSERT|off", "a release with {default}");
        let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
        shared().psql(&format!("UPDATE {namespace}.locks SET expires_at = expires_at - interval '1 day'"));
        client.sweep().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        assert_eq!(shared().psql(&read), "DELETE|on\nINSERT|off", "a sweep with {default}");
        drop(expired);
    }
}

/// A timeout below that of a row lock cancels flights: the error names it, and nothing was applied.
#[tokio::test]
async fn a_short_statement_timeout_is_named() {
    let bench = bench_with(&["statement_timeout = '60ms'"]);
    connect(&bench.without_wire()).await.close().await;
    let client = connect(&bench).await;
    let transaction = Transaction::begin(&bench).await;
    assert!(transaction.lock_in("a", 0).await.is_some());
    let error = client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("statement_timeout")), "{error:?}");
    transaction.end("COMMIT").await;
    wait::until("the lock can be acquired", async || {
        client.lock("a").ttl(LONG_TTL).try_acquire().await.is_ok_and(|guard| guard.is_some())
    })
    .await;
}

/// The server closes idle connections. A client that listens reconnects, and a waiter is granted at the release.
#[tokio::test]
async fn closed_idle_connections_are_reopened() {
    let bench = bench_with(&["idle_session_timeout = '300ms'"]);
    let (client, other) = (connect(&bench).await, connect(&bench).await);
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let kept = hold(&client.lock("kept").ttl(Duration::from_secs(2))).await;
    let waiter = enqueue(&client, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    wait::elapse(Duration::from_secs(3)).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    assert!(kept.is_valid());
}

/// Settings that change how values are read and written, and where names are looked up.
#[tokio::test]
async fn settings_of_texts_and_plans_do_not_matter() {
    let bench = bench_with(&[
        "standard_conforming_strings = off",
        "backslash_quote = on",
        "escape_string_warning = off",
        "bytea_output = 'escape'",
        "datestyle = 'German'",
        "intervalstyle = 'iso_8601'",
        "timezone = 'Asia/Kathmandu'",
        "client_encoding = 'LATIN1'",
        "search_path = 'nowhere'",
        "plan_cache_mode = 'force_custom_plan'",
        "enable_indexscan = off",
        "transform_null_equals = on",
        "array_nulls = off",
        "default_transaction_deferrable = on",
        "row_security = off",
    ]);
    let (client, other) = (connect(&bench).await, connect(&bench).await);
    for name in ["a\\b'ü", "C:\\new\\table"] {
        let guard = hold(&client.lock(name).ttl(LONG_TTL)).await;
        guard.write_cell(*b"\x00\xff\\\'", fencepost_core::Keep::Always).await.unwrap();
        let waiter = enqueue(&client, other.lock(name).ttl(LONG_TTL), name, 1).await;
        let all = enqueue(&client, other.lock_all([name, "b"]).ttl(LONG_TTL), name, 2).await;
        assert_eq!(other.locks("").next().await.unwrap().unwrap().name.as_str(), name);
        guard.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        granted(all).await.release().await.unwrap();
        assert_eq!(&*other.read_cell(name).await.unwrap().unwrap().bytes, b"\x00\xff\\\'");
        let transaction = Transaction::begin(&bench).await;
        assert!(transaction.lock_in(name, 0).await.is_some());
    }
}
