//! Servers with unusual settings.

use fencepost_core::{ErrorKind, Keep};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::mariadb::MariadbServerConfig;

use crate::actions::{LONG_TTL, enqueue, granted, hold};
use crate::bench::MariadbBench;

/// Uses every kind of statement: modes, several names, a queue, a cell, lists, a sweep.
async fn use_locks(bench: &MariadbBench) {
    let (client, other) = (bench.client().await, bench.client().await);
    for name in ["a\\b'ü\"`", "C:\\new\\table"] {
        let guard = hold(&client.lock(name).ttl(LONG_TTL)).await;
        guard.write_cell(*b"\x00\xff\\\'", Keep::Always).await.unwrap();
        let waiter = enqueue(&client, other.lock(name).ttl(LONG_TTL), name, 1).await;
        let all = enqueue(&client, other.lock_all([name, "b"]).ttl(LONG_TTL), name, 2).await;
        let readers = [hold(&client.lock("r").shared()).await, hold(&other.lock("r").shared()).await];
        let state = other.inspect(name).await.unwrap();
        assert_eq!((state.holders.len(), state.waiter_count), (1, 2), "{state:?}");
        assert_eq!(other.inspect("r").await.unwrap().holders.len(), 2);
        assert_eq!(other.list("", fencepost_core::Page::new(10)).await.unwrap().locks.len(), 3);
        let token = guard.token();
        guard.release().await.unwrap();
        let guard = granted(waiter).await;
        assert!(guard.token() > token);
        assert!(client.lock(name).try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        granted(all).await.release().await.unwrap();
        for reader in readers {
            reader.release().await.unwrap();
        }
        assert_eq!(&*other.read_cell(name).await.unwrap().unwrap().bytes, b"\x00\xff\\\'");
        other.sweep().await.unwrap();
        let guard = hold(&client.lock(name).ttl(LONG_TTL)).await;
        guard.write_cell(*b"", Keep::WhileHeld).await.unwrap();
        guard.release().await.unwrap();
    }
}

/// Defaults of sessions that change what statements mean, what they return, and what they may do.
#[tokio::test]
async fn defaults_of_sessions_do_not_matter() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain());
    for setting in [
        "tx_isolation = 'SERIALIZABLE'",
        "tx_isolation = 'READ-UNCOMMITTED'",
        "tx_read_only = 1",
        "autocommit = 0",
        "completion_type = 'CHAIN'",
        "completion_type = 'RELEASE'",
        "sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,ONLY_FULL_GROUP_BY'",
        "sql_mode = 'ORACLE'",
        "sql_mode = ''",
        "time_zone = '+05:45'",
        "time_zone = '-11:00'",
        "sql_select_limit = 1",
        "sql_safe_updates = 1",
        "auto_increment_increment = 7",
        "auto_increment_offset = 5",
        "max_statement_time = 0.001",
        "innodb_lock_wait_timeout = 50",
        "character_set_server = 'latin1', collation_connection = 'latin1_german2_ci'",
        "init_connect = 'SET autocommit = 0'",
        "default_storage_engine = 'MyISAM'",
    ] {
        // Accounts with all rights are not limited by some of them, but their sessions have the same defaults.
        let name = setting.split_once(' ').unwrap().0;
        bench.try_sql(&format!("SET GLOBAL {}", setting.replace(", ", ", GLOBAL "))).await.unwrap();
        println!("with {setting}");
        use_locks(&bench).await;
        if !["auto_increment_increment", "auto_increment_offset"].contains(&name) {
            bench.try_sql(&format!("SET GLOBAL {name} = DEFAULT")).await.unwrap();
        }
    }
}

/// What can be set only when a server starts.
#[tokio::test]
async fn defaults_of_the_server_do_not_matter() {
    let mut config = MariadbServerConfig::plain();
    for option in [
        "--lower-case-table-names=1",
        "--innodb-autoinc-lock-mode=2",
        "--innodb-rollback-on-timeout=1",
        "--log-bin",
        "--binlog-format=MIXED",
        "--default-time-zone=+05:45",
        "--character-set-server=utf16",
        "--skip-innodb-adaptive-hash-index",
        "--default-storage-engine=MyISAM",
        "--innodb-default-row-format=redundant",
    ] {
        config = config.with_option(option);
    }
    use_locks(&MariadbBench::on(&config)).await;
}

/// A server that stores tables in another way than it is told.
#[tokio::test]
async fn another_storage_engine_is_refused() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain());
    bench.sql("SET GLOBAL enforce_storage_engine = 'MyISAM'");
    let error = fencepost_mysql::connect(fencepost_testkit::WireBench::url(&bench)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("InnoDB")), "{error:?}");
    // An administrator created them there.
    let schema = fencepost_mysql::schema(fencepost_testkit::WireBench::url(&bench)).unwrap();
    bench.sql(&format!("SET sql_mode = ''; {schema}"));
    let error = fencepost_mysql::connect(fencepost_testkit::WireBench::url(&bench)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains("is not stored by InnoDB"), "{error:?}");
    bench.sql("SET GLOBAL enforce_storage_engine = NULL");
    for table in ["locks", "holders", "tickets", "cells", "tombstones", "notices", "tokens", "storage"] {
        bench.sql(&format!("ALTER TABLE {{{table}}} ENGINE = InnoDB"));
    }
    use_locks(&bench).await;
}

/// The binary log with statements cannot log what is written with this isolation level.
#[tokio::test]
async fn a_binary_log_of_statements_is_refused() {
    let config =
        MariadbServerConfig::plain().with_option("--log-bin").with_option("--binlog-format=STATEMENT");
    let bench = MariadbBench::on(&config);
    let error = fencepost_mysql::connect(fencepost_testkit::WireBench::url(&bench)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("binlog_format")), "{error:?}");
    bench.sql("SET GLOBAL binlog_format = 'ROW'");
    use_locks(&bench).await;
}
