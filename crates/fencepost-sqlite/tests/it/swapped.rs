//! Files that are removed or swapped while clients have them open. Scenario 59: the holder is lost within a renewal, and
//! a newcomer does not enter while the holder believes.

use std::path::PathBuf;
use std::time::Duration;

use fencepost_core::{Client, ErrorKind, Guard, LostReason, Severity};
use fencepost_testkit::scripted_process::ScriptedProcess;
use fencepost_testkit::wait;

use crate::bench::SqliteBench;
use crate::scripted_process::{scripted_process, stop_between_writes};

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

/// A consistent copy of the database as it was before anything was locked.
fn backup(bench: &SqliteBench) -> PathBuf {
    let copy = bench.folder().join("backup.db");
    bench.driver().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    copy
}

/// A holder in a process of its own.
fn holder(bench: &SqliteBench) -> ScriptedProcess {
    let mut holder = scripted_process(bench);
    holder.send(&format!("acquire a {TTL}"));
    holder.receive("granted");
    holder
}

/// Connects and takes the lock as soon as that is possible.
async fn newcomer(bench: &SqliteBench) -> (Client, Guard) {
    let mut got = None;
    wait::until("a newcomer enters", async || {
        let Ok(client) = fencepost_sqlite::connect(bench.path().to_str().unwrap()).await else {
            return false;
        };
        if let Ok(Some(guard)) = client.lock("a").try_acquire().await {
            got = Some((client, guard));
        }
        got.is_some()
    })
    .await;
    got.unwrap()
}

/// Asserts that the holder knows at this moment that it has lost the lock, and that its own storage told it so.
fn assert_lost(holder: &mut ScriptedProcess) {
    holder.send("kept");
    assert_eq!(holder.receive("lost"), "NotHeld");
}

/// Whether the holder has lost its lock.
fn is_lost(holder: &mut ScriptedProcess) -> bool {
    holder.send("valid");
    holder.receive("valid") == "false"
}

/// Swaps the files under a holder and an idle client; a newcomer enters, and only after the holder was lost.
async fn nobody_else_believes(swap: impl FnOnce(&SqliteBench, PathBuf)) {
    let bench = SqliteBench::new();
    let idle = connected(&bench).await;
    let backup = backup(&bench);
    let mut holder = holder(&bench);
    swap(&bench, backup);
    let (_client, guard) = newcomer(&bench).await;
    assert_lost(&mut holder);
    assert!(guard.is_valid());
    let error = idle.lock("b").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("removed or replaced"), "{error}");
}

/// Without a newcomer the holder finds out by itself, long before its lease ends.
async fn the_holder_notices(swap: impl FnOnce(&SqliteBench, PathBuf)) {
    let bench = SqliteBench::new();
    let backup = backup(&bench);
    let mut holder = holder(&bench);
    swap(&bench, backup);
    wait::until("the holder is lost", async || is_lost(&mut holder)).await;
    assert_lost(&mut holder);
}

macro_rules! ways {
    ($($way:ident: $swap:expr;)*) => {
        $(mod $way {
            use super::*;

            #[tokio::test]
            async fn a_newcomer_enters_after_the_holder_is_lost() {
                nobody_else_believes($swap).await;
            }

            #[tokio::test]
            async fn the_holder_is_lost_within_a_renewal() {
                the_holder_notices($swap).await;
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
    a_copy_is_swapped_in: |bench, copy| {
        remove(bench, &["-wal", "-shm"]);
        std::fs::rename(copy, bench.path()).unwrap();
    };
    a_copy_is_written_over_it: |bench, copy| {
        remove(bench, &["-wal", "-shm"]);
        std::fs::copy(copy, bench.path()).unwrap();
    };
}

/// A holder that is stopped cannot notice, and would believe when it goes on.
#[tokio::test]
async fn a_newcomer_is_refused_while_a_holder_is_stopped() {
    let bench = SqliteBench::new();
    let mut holder = holder(&bench);
    stop_between_writes(&holder, &bench);
    remove(&bench, &["-wal", "-shm"]);
    let error = fencepost_sqlite::connect(bench.path().to_str().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("do not react") && error.hint().is_some(), "{error}");
    holder.resume();
    let (_client, guard) = newcomer(&bench).await;
    assert!(is_lost(&mut holder) && guard.is_valid());
}

/// With the folder goes everything by which a newcomer could find the holder.
#[tokio::test]
async fn a_folder_that_is_renamed_takes_its_locks_away() {
    let bench = SqliteBench::new();
    let folder = bench.folder().join("jobs");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("locks.db");
    let mut holder = ScriptedProcess::new(&path);
    holder.send(&format!("acquire a {TTL}"));
    holder.receive("granted");
    std::fs::rename(&folder, bench.folder().join("old")).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let newcomer = fencepost_sqlite::connect(path.to_str().unwrap()).await.unwrap();
    let guard = newcomer.lock("a").acquire().await.unwrap();
    wait::until("the holder is lost", async || is_lost(&mut holder)).await;
    assert_lost(&mut holder);
    assert!(guard.is_valid());
}

/// A database without clients: what SQLite or an administrator removes then is made again, without a false alarm.
#[tokio::test]
async fn files_that_nobody_has_open_may_be_removed() {
    let bench = SqliteBench::new();
    for _ in 0..3 {
        let client = connected(&bench).await;
        client.lock("a").acquire().await.unwrap().release().await.unwrap();
        client.close().await;
        // The last to close a database removes its log and its index.
        drop(bench.driver().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"));
        assert!(!file(&bench, "-wal").exists() && !file(&bench, "-shm").exists());
    }
}

/// Other programs that come and go, checkpoint and vacuum, remove nothing from under a holder.
#[tokio::test]
async fn another_program_that_opens_and_closes_it_is_no_swap() {
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

/// A database that is put back to an earlier state, through SQLite and under its locks: what it hands out would repeat.
#[tokio::test]
async fn a_database_that_is_put_back_loses_its_locks() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").ttl(Duration::from_millis(600)).acquire().await.unwrap();
    bench.driver().execute("UPDATE storage SET last = last - 1", []).unwrap();
    assert_eq!(wait::within_timeout("the loss", guard.lost()).await, LostReason::NotHeld);
    let error = client.lock("b").acquire().await.unwrap_err();
    assert!(error.to_string().contains("earlier state"), "{error}");
}
