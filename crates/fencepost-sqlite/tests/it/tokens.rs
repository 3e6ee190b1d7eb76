//! Tokens only grow: from client to client, after a power failure, and when the file is created again.

use fencepost_core::{Client, FencingToken};

use crate::bench::SqliteBench;

async fn connected(bench: &SqliteBench) -> Client {
    fencepost_sqlite::connect(bench.path().to_str().unwrap()).await.unwrap()
}

async fn next_token(bench: &SqliteBench) -> FencingToken {
    let client = connected(bench).await;
    let guard = client.lock("a").acquire().await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    client.close().await;
    token
}

#[tokio::test]
async fn tokens_grow_from_client_to_client() {
    let bench = SqliteBench::new();
    let mut last = next_token(&bench).await;
    for _ in 0..10 {
        let next = next_token(&bench).await;
        assert!(next > last);
        last = next;
    }
}

/// The last commits are missing, and the host has another boot id and a wall clock that was set back.
#[tokio::test]
async fn a_power_failure_does_not_repeat_a_token() {
    let bench = SqliteBench::new();
    let before = next_token(&bench).await;
    let lost_commits = "UPDATE storage SET last = last - 1000, boot = boot + 1";
    bench.driver().execute(lost_commits, []).unwrap();
    assert!(next_token(&bench).await > before);
}

#[tokio::test]
async fn only_tokens_that_are_reserved_on_disk_are_granted() {
    let bench = SqliteBench::new();
    next_token(&bench).await;
    bench.driver().execute("UPDATE storage SET reserved = last + 10", []).unwrap();
    let token = next_token(&bench).await;
    let reserved: u64 = bench
        .driver()
        .query_row("SELECT reserved FROM storage", [], |row| row.get::<_, i64>(0).map(i64::cast_unsigned))
        .unwrap();
    assert!(token.get() <= reserved);
    assert!(reserved > token.get() + 1_000, "a new block was reserved");
}

#[tokio::test]
async fn a_file_that_is_created_again_has_larger_tokens_and_another_id() {
    let bench = SqliteBench::new();
    let old_id = connected(&bench).await.info().storage_id;
    let old = next_token(&bench).await;
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let _ = std::fs::remove_file(bench.folder().join(name));
    }
    assert!(next_token(&bench).await > old);
    assert_ne!(connected(&bench).await.info().storage_id, old_id);
}
