//! Files that cannot be used as a database: a clear error, and nothing is lost.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use fencepost_core::{Client, Error, ErrorKind, LostReason, Options};
use fencepost_sqlite::{connect, connect_with};
use fencepost_testkit::{TestBench, wait};

use crate::bench::SqliteBench;
use crate::scripted_process::{on_a_small_disk, with_the_file_mounted_at};

async fn rejected(path: &Path) -> Error {
    connect(path.to_str().unwrap()).await.expect_err("it must be rejected")
}

async fn connected(bench: &SqliteBench) -> Client {
    connect(bench.path().to_str().unwrap()).await.expect("it connects")
}

#[tokio::test]
async fn the_database_and_the_files_beside_it_are_private() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").acquire().await.unwrap();
    let mode = |name: &str| bench.folder().join(name).metadata().unwrap().permissions().mode() & 0o777;
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    assert_eq!(mode("locks.db-peers"), 0o700);
    drop(guard);
}

/// A client that connects while another creates the tables finds them complete.
#[tokio::test]
async fn many_clients_create_a_database_together() {
    for _ in 0..20 {
        let bench = SqliteBench::new();
        let path = bench.path().to_str().unwrap().to_owned();
        let connecting = (0..16).map(|_| {
            let path = path.clone();
            tokio::spawn(async move { connect(&path).await })
        });
        let clients: Vec<_> = connecting.collect();
        for client in clients {
            let client = client.await.unwrap().unwrap();
            client.lock("a").acquire().await.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_client_that_only_reads_creates_nothing() {
    let bench = SqliteBench::new();
    let path = bench.path().to_str().unwrap().to_owned();
    for missing in [path.clone(), format!("{path}.d/locks.db")] {
        let error =
            connect_with(&missing, Options::new().only_existing()).await.expect_err("it must be rejected");
        assert_eq!(error.kind(), ErrorKind::Missing);
        assert!(error.to_string().contains(&missing) && error.hint().is_some(), "{error}");
    }
    assert_eq!(std::fs::read_dir(bench.folder()).unwrap().count(), 0);

    let holder = connected(&bench).await;
    let _guard = holder.lock("a").acquire().await.unwrap();
    let read_only_client = connect_with(&path, Options::new().only_existing()).await.unwrap();
    assert_eq!(read_only_client.inspect("a").await.unwrap().holders.len(), 1);
}

#[tokio::test]
async fn closing_leaves_no_socket_behind() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    client.lock("a").acquire().await.unwrap().release().await.unwrap();
    client.close().await;
    let beside = std::fs::read_dir(bench.folder().join("locks.db-peers")).unwrap();
    let mut names: Vec<_> = beside.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["gate", "turn"]);
}

#[tokio::test]
async fn a_peers_folder_that_all_users_can_write_is_rejected() {
    let bench = SqliteBench::new();
    let beside = bench.folder().join("locks.db-peers");
    std::fs::create_dir(&beside).unwrap();
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = rejected(&bench.path()).await;
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.hint().is_some());
}

#[tokio::test]
async fn a_folder_is_rejected() {
    let bench = SqliteBench::new();
    let error = rejected(bench.folder()).await;
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.to_string().contains("is a folder"), "{error}");
}

/// The files beside a database are found by its name: clients of two names would not exclude each other.
#[tokio::test]
async fn a_file_with_two_names_is_rejected() {
    let bench = SqliteBench::new();
    connected(&bench).await.close().await;
    std::fs::hard_link(bench.path(), bench.folder().join("other.db")).unwrap();
    for name in ["locks.db", "other.db"] {
        let error = rejected(&bench.folder().join(name)).await;
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        assert!(error.hint().unwrap().contains("folder"), "{error}");
    }
}

#[tokio::test]
async fn a_file_that_is_mounted_without_its_folder_is_rejected() {
    let bench = SqliteBench::new();
    connected(&bench).await.close().await;
    let other = bench.folder().join("in the container.db");
    std::fs::write(&other, "").unwrap();
    let process = with_the_file_mounted_at(&bench, &other);
    let error = process.receive("refused");
    assert!(error.contains("mounted by itself"), "{error}");
}

#[tokio::test]
async fn a_symbolic_link_is_the_file_it_points_to() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").acquire().await.unwrap();
    let link = bench.folder().join("link.db");
    std::os::unix::fs::symlink(bench.path(), &link).unwrap();
    let other = connect(link.to_str().unwrap()).await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    drop(guard);
}

#[tokio::test]
async fn nothing_is_created_beside_a_rejected_file() {
    let bench = SqliteBench::new();
    std::fs::write(bench.path(), "root:x:0:0:root:/:/bin/sh\n".repeat(100)).unwrap();
    assert_eq!(rejected(&bench.path()).await.kind(), ErrorKind::Backend);
    assert_eq!(rejected(Path::new("/dev/null")).await.kind(), ErrorKind::BadConfig);
    assert_eq!(rejected(Path::new(":memory:")).await.kind(), ErrorKind::BadConfig);
    let remaining: Vec<_> =
        std::fs::read_dir(bench.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(remaining, ["locks.db"]);
}

#[tokio::test]
async fn a_missing_folder_is_named() {
    let bench = SqliteBench::new();
    let error = rejected(&bench.folder().join("missing/locks.db")).await;
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(error.hint().is_some());
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_rejected_and_unchanged() {
    let bench = SqliteBench::new();
    let text = "plain text, long enough to be read as the header of a database".repeat(100);
    std::fs::write(bench.path(), &text).unwrap();
    let error = rejected(&bench.path()).await;
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert_eq!(std::fs::read_to_string(bench.path()).unwrap(), text);
}

#[tokio::test]
async fn the_database_of_another_program_is_rejected_and_unchanged() {
    let bench = SqliteBench::new();
    bench.driver().execute_batch("CREATE TABLE notes (day TEXT)").unwrap();
    let error = rejected(&bench.path()).await;
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(bench.count("sqlite_schema"), 1);
}

#[tokio::test]
async fn a_newer_schema_is_rejected_and_unchanged() {
    let bench = SqliteBench::new();
    connected(&bench).await.close().await;
    bench.driver().execute_batch("PRAGMA user_version = 2").unwrap();
    let error = rejected(&bench.path()).await;
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("schema 2"), "{error}");
    assert!(error.hint().unwrap().contains("newer"));
}

#[tokio::test]
async fn a_corrupt_database_is_an_error_not_a_lock() {
    let bench = SqliteBench::new();
    connected(&bench).await.close().await;
    bench.driver().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let mut bytes = std::fs::read(bench.path()).unwrap();
    bytes[4096..].fill(0xAA);
    std::fs::write(bench.path(), bytes).unwrap();
    let error = rejected(&bench.path()).await;
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_denied() {
    let bench = SqliteBench::new();
    connected(&bench).await.close().await;
    // Root can write to the file all the same; connecting must then succeed.
    std::fs::set_permissions(bench.path(), std::fs::Permissions::from_mode(0o400)).unwrap();
    let writable = std::fs::OpenOptions::new().write(true).open(bench.path()).is_ok();
    let outcome = connect(bench.path().to_str().unwrap()).await;
    assert_eq!(outcome.is_ok(), writable);
    if let Err(error) = outcome {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

/// On a disk of one megabyte.
#[test]
fn a_full_disk_is_an_error_and_ends_no_lease_early() {
    let bench = SqliteBench::new();
    let mut process = on_a_small_disk(&bench);
    process.send("acquire held 30000");
    let token = process.receive("granted");
    process.send("fill");
    let error = process.receive("full");
    assert!(error.starts_with("Backend"), "{error}");
    assert!(error.contains("the disk is full"), "{error}");
    process.send("valid");
    assert_eq!(process.receive("valid"), "true");
    process.send("holder held");
    assert_eq!(process.receive("holder"), token);
    // The locks that filled the disk are released, so there is free space again.
    process.send("acquire other 30000");
    process.receive("granted");
}

/// Scenario 41.
#[tokio::test]
async fn an_acquire_waits_for_a_foreign_writer() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let foreign = bench.driver();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let acquiring = tokio::spawn({
        let lock = client.lock("a").ttl(Duration::from_secs(30));
        async move { lock.acquire().await }
    });
    wait::elapse(Duration::from_millis(300)).await;
    assert!(!acquiring.is_finished());
    foreign.execute_batch("COMMIT").unwrap();
    acquiring.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn locks_of_a_removed_file_are_lost() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").ttl(bench.ttl()).acquire().await.unwrap();
    std::fs::remove_file(bench.path()).unwrap();
    let reason = wait::within_timeout("the guard to be lost", guard.lost()).await;
    assert_eq!(reason, LostReason::NotHeld);
    let error = client.lock("b").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("removed or replaced"), "{error}");
    let again = connected(&bench).await;
    again.lock("a").acquire().await.unwrap().release().await.unwrap();
}
