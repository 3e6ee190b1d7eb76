//! Files that are removed or replaced while clients have them open. Scenario 59: the holder loses its lock within a renewal, and a
//! new client does not acquire it while the holder considers it valid.

use std::path::PathBuf;
use std::time::Duration;

use fencepost_core::{Client, ErrorKind, Guard, LostReason, Severity};
use fencepost_testkit::scripted_process::ScriptedProcess;
use fencepost_testkit::wait;

use crate::bench::SqliteBench;
use crate::scripted_process::{pause_between_writes, scripted_process};

/// Long enough to be renewed in time on a busy machine.
const TTL: &str = "6000";

async fn connected(bench: &SqliteBench) -> Client {
    fencepost_sqlite::connect(bench.path().to_str().unwrap()).await.unwrap()
}

fn file(bench: &SqliteBench, ending: &str) -> PathBuf {
    bench.folder().join(format!("locks.db{ending}"))
}

fn remove(bench: &SqliteBench, endings: &[&str]) {
    for ending in endings {
        std::fs::remove_file(file(bench, ending)).unwrap();
    }
}

/// Makes a consistent copy of the database before any lock is held.
fn backup(bench: &SqliteBench) -> PathBuf {
    let copy = bench.folder().join("backup.db");
    bench.driver().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    copy
}

/// Starts a process that holds the lock.
fn holder(bench: &SqliteBench) -> ScriptedProcess {
    let mut holder = scripted_process(bench);
    holder.send(&format!("acquire a {TTL}"));
    holder.receive("granted");
    holder
}

/// Connects a new client and acquires the lock as soon as possible.
async fn new_holder(bench: &SqliteBench) -> (Client, Guard) {
    let mut acquired = None;
    wait::until("a new client to acquire the lock", async || {
        let Ok(client) = fencepost_sqlite::connect(bench.path().to_str().unwrap()).await else {
            return false;
        };
        if let Ok(Some(guard)) = client.lock("a").try_acquire().await {
            acquired = Some((client, guard));
        }
        acquired.is_some()
    })
    .await;
    acquired.unwrap()
}

/// Asserts that the holder knows at this moment that it has lost the lock, from a reply of its own backend.
fn assert_lost(holder: &mut ScriptedProcess) {
    holder.send("kept");
    assert_eq!(holder.receive("lost"), "NotHeld");
}

/// Whether the holder has lost its lock.
fn is_lost(holder: &mut ScriptedProcess) -> bool {
    holder.send("valid");
    holder.receive("valid") == "false"
}

/// Replaces the files under a holder and an idle client: a new client acquires the lock, and only after the holder has lost it.
async fn check_with_a_new_client(replace: impl FnOnce(&SqliteBench, PathBuf)) {
    let bench = SqliteBench::new();
    let idle = connected(&bench).await;
    let backup = backup(&bench);
    let mut holder = holder(&bench);
    replace(&bench, backup);
    let (_client, guard) = new_holder(&bench).await;
    assert_lost(&mut holder);
    assert!(guard.is_valid());
    let error = idle.lock("b").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("removed or replaced"), "{error}");
}

/// Without a new client, the holder detects it by itself, long before its lease expires.
async fn check_without_a_new_client(replace: impl FnOnce(&SqliteBench, PathBuf)) {
    let bench = SqliteBench::new();
    let backup = backup(&bench);
    let mut holder = holder(&bench);
    replace(&bench, backup);
    wait::until("the holder to lose the lock", async || is_lost(&mut holder)).await;
    assert_lost(&mut holder);
}

macro_rules! ways {
    ($($way:ident: $replace:expr;)*) => {
        $(mod $way {
            use super::*;

            #[tokio::test]
            async fn a_new_client_acquires_after_the_holder_has_lost_the_lock() {
                check_with_a_new_client($replace).await;
            }

            #[tokio::test]
            async fn the_holder_loses_the_lock_within_a_renewal() {
                check_without_a_new_client($replace).await;
            }
        })*
    };
}

ways! {
    the_index_is_removed: |bench, _| remove(bench, &["-shm"]);
    the_log_is_removed: |bench, _| remove(bench, &["-wal"]);
    log_and_index_are_removed: |bench, _| remove(bench, &["-wal", "-shm"]);
    the_database_is_removed: |bench, _| remove(bench, &[""]);
    everything_is_removed: |bench, _| remove(bench, &["", "-wal", "-shm"]);
    a_copy_is_renamed_over_it: |bench, copy| std::fs::rename(copy, bench.path()).unwrap();
    a_copy_replaces_all_files: |bench, copy| {
        remove(bench, &["-wal", "-shm"]);
        std::fs::rename(copy, bench.path()).unwrap();
    };
    a_copy_is_written_over_it: |bench, copy| {
        remove(bench, &["-wal", "-shm"]);
        std::fs::copy(copy, bench.path()).unwrap();
    };
}

/// A stopped holder cannot detect it, and would consider its lock valid when it continues.
#[tokio::test]
async fn a_new_client_is_rejected_while_a_holder_is_stopped() {
    let bench = SqliteBench::new();
    let mut holder = holder(&bench);
    pause_between_writes(&holder, &bench);
    remove(&bench, &["-wal", "-shm"]);
    let error = fencepost_sqlite::connect(bench.path().to_str().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("do not respond") && error.hint().is_some(), "{error}");
    holder.resume();
    let (_client, guard) = new_holder(&bench).await;
    assert!(is_lost(&mut holder) && guard.is_valid());
}

/// The renamed folder contains all files by which a new client could find the holder.
#[tokio::test]
async fn locks_in_a_renamed_folder_are_lost() {
    let bench = SqliteBench::new();
    let folder = bench.folder().join("jobs");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("locks.db");
    let mut holder = ScriptedProcess::new(&path);
    holder.send(&format!("acquire a {TTL}"));
    holder.receive("granted");
    std::fs::rename(&folder, bench.folder().join("old")).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let new = fencepost_sqlite::connect(path.to_str().unwrap()).await.unwrap();
    let guard = new.lock("a").acquire().await.unwrap();
    wait::until("the holder to lose the lock", async || is_lost(&mut holder)).await;
    assert_lost(&mut holder);
    assert!(guard.is_valid());
}

/// Files of a database without clients that SQLite or an administrator removes are created again, without a false alarm.
#[tokio::test]
async fn files_that_no_client_has_open_may_be_removed() {
    let bench = SqliteBench::new();
    for _ in 0..3 {
        let client = connected(&bench).await;
        client.lock("a").acquire().await.unwrap().release().await.unwrap();
        client.close().await;
        // The last connection to close removes the log and its index.
        drop(bench.driver().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"));
        assert!(!file(&bench, "-wal").exists() && !file(&bench, "-shm").exists());
    }
}

/// Other programs that open and close the database, checkpoint and vacuum do not remove files under a holder.
#[tokio::test]
async fn another_program_that_opens_and_closes_the_database_does_not_replace_it() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    for _ in 0..3 {
        bench.driver().execute_batch("PRAGMA wal_checkpoint(TRUNCATE); VACUUM").unwrap();
        let _ = bench.driver().execute_batch("PRAGMA journal_mode = DELETE");
        let known = guard.valid_until();
        wait::within_timeout("a renewal", guard.renewed(known)).await.unwrap();
    }
    assert_eq!(guard.lost_reason(), None);
    let finding = client.diagnose().await.unwrap().into_iter().find(|finding| finding.check == "identity");
    assert_eq!(finding.map(|finding| finding.severity), None::<Severity>);
}

/// A database that is restored to an earlier state through SQLite, while locks are held: its tokens would repeat.
#[tokio::test]
async fn locks_of_a_restored_database_are_lost() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").ttl(Duration::from_millis(600)).acquire().await.unwrap();
    bench.driver().execute("UPDATE storage SET last = last - 1", []).unwrap();
    assert_eq!(wait::within_timeout("the loss", guard.lost()).await, LostReason::NotHeld);
    let error = client.lock("b").acquire().await.unwrap_err();
    assert!(error.to_string().contains("earlier state"), "{error}");
}
