//! The cell of a lock: written by its holder only, kept for as long as requested.

use std::time::Duration;

use fencepost_core::backend::{Op, Reply};
use fencepost_core::{Cell, Client, ErrorKind, Keep, LostReason};

use super::{Bare, LONG_TTL, attempt, hold, name, refused, until_free};
use crate::test_bench::TestBench;
use crate::wait;

async fn read(client: &Client, name: &str) -> Option<Vec<u8>> {
    client.read_cell(name).await.expect("a cell can be read").map(|cell| cell.bytes.to_vec())
}

/// Replaces a kept cell by one that ends with its grant: nothing is left.
async fn remove_cell(client: &Client, name: &str) {
    let guard = hold(&client.lock(name)).await;
    guard.write_cell(*b"", Keep::WhileHeld).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(read(client, name).await, None);
}

/// Every client reads what the holder has written, with the token of the grant that wrote it.
pub async fn what_the_holder_writes_every_client_reads<B: TestBench>(bench: &B) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    assert_eq!(read(&theirs, "a").await, None);
    let guard = hold(&ours.lock("a")).await;
    for text in ["", "one", "two, which is longer", "\0\u{fffd}"] {
        guard.write_cell(text.as_bytes(), Keep::WhileHeld).await.unwrap();
        let cell = guard.read_cell().await.unwrap().unwrap();
        assert_eq!((cell.token, &*cell.bytes), (guard.token(), text.as_bytes()));
        assert_eq!(read(&theirs, "a").await.as_deref(), Some(text.as_bytes()));
    }
    assert_eq!(read(&theirs, "b").await, None);
    guard.release().await.unwrap();
}

/// A `WhileHeld` cell ends with its grant: by release, and when the lease expires.
pub async fn a_cell_while_held_ends_with_its_grant<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a")).await;
    guard.write_cell(*b"here", Keep::WhileHeld).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(read(&client, "a").await, None);
    let (dying, proxy) = bench.proxied().await;
    let dead = hold(&dying.lock("a").ttl(bench.ttl())).await;
    dead.write_cell(*b"there", Keep::WhileHeld).await.unwrap();
    proxy.crash();
    wait::until("the cell is gone", async || read(&client, "a").await.is_none()).await;
    assert!(!dead.is_valid());
}

/// A `For` cell outlives its grant and expires after its time.
pub async fn a_cell_for_a_time_expires<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a")).await;
    guard.write_cell(*b"soon gone", Keep::For(bench.ttl())).await.unwrap();
    guard.release().await.unwrap();
    wait::until("the cell is gone", async || read(&client, "a").await.is_none()).await;
    let guard = hold(&client.lock("a")).await;
    guard.write_cell(*b"stays", Keep::For(LONG_TTL)).await.unwrap();
    guard.release().await.unwrap();
    wait::elapse(bench.ttl()).await;
    assert_eq!(read(&client, "a").await.as_deref(), Some(&b"stays"[..]));
    remove_cell(&client, "a").await;
}

/// An `Always` cell is kept over grants and clients until it is overwritten.
pub async fn an_always_kept_cell_outlives_its_grant<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a")).await;
    let token = guard.token();
    guard.write_cell(*b"for good", Keep::Always).await.unwrap();
    guard.release().await.unwrap();
    client.close().await;
    let client = bench.client().await;
    let guard = hold(&client.lock("a")).await;
    let cell = guard.read_cell().await.unwrap().unwrap();
    assert_eq!((cell.token, &*cell.bytes), (token, &b"for good"[..]));
    guard.write_cell(*b"newer", Keep::Always).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(read(&client, "a").await.as_deref(), Some(&b"newer"[..]));
    remove_cell(&client, "a").await;
}

/// A lost guard cannot write, even before it knows of the loss: the backend rejects it.
pub async fn a_write_after_a_loss_is_refused<B: TestBench>(bench: &B) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let stolen = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    bench.steal(&name("a")).await;
    let next = hold(&theirs.lock("a").ttl(LONG_TTL)).await;
    next.write_cell(*b"mine", Keep::WhileHeld).await.unwrap();
    let error = refused(stolen.write_cell(*b"theirs", Keep::WhileHeld).await);
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::Lost, Some(LostReason::NotHeld)));
    assert_eq!(read(&ours, "a").await.as_deref(), Some(&b"mine"[..]));
}

/// The backend rejects the write of an expired grant, and of a grant for another name.
pub async fn the_backend_rejects_writes_without_a_grant<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let client = bench.client().await;
    let grant = bare.hold(&attempt(&["a"], bench.ttl())).await;
    let write = |text: &str| Op::WriteCell {
        grant: grant.clone(),
        name: name(text),
        bytes: [1, 2, 3].into(),
        keep: Keep::Always,
    };
    assert_eq!(bare.execute(write("b")).await, Reply::NotHeld);
    until_free(&client, "a").await;
    assert_eq!(bare.execute(write("a")).await, Reply::NotHeld);
    assert_eq!(bare.execute(Op::ReadCell(name("a"))).await, Reply::Cell(None));
    assert_eq!(bare.execute(Op::ReadCell(name("b"))).await, Reply::Cell(None));
    bare.close().await;
}

/// A cell holds up to 64 KiB.
pub async fn a_cell_has_a_maximum_size<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a")).await;
    let large: Vec<u8> = (0..Cell::MAX_BYTES).map(|at| u8::try_from(at % 251).unwrap()).collect();
    guard.write_cell(large.clone(), Keep::WhileHeld).await.unwrap();
    assert_eq!(read(&client, "a").await, Some(large.clone()));
    let error = refused(guard.write_cell([large, vec![0]].concat(), Keep::WhileHeld).await);
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert_eq!(read(&client, "a").await.map(|bytes| bytes.len()), Some(Cell::MAX_BYTES));
    guard.release().await.unwrap();
}

/// A kept cell makes its lock visible in the list, and blocks no acquire.
pub async fn a_kept_cell_is_listed_and_blocks_no_client<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a")).await;
    guard.write_cell(*b"kept", Keep::For(Duration::from_secs(7 * 24 * 3600))).await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    let state = client.inspect("a").await.unwrap();
    assert!(state.holders.is_empty() && !state.is_idle());
    assert_eq!(state.cell.map(|cell| cell.token), Some(token));
    let page = client.list("", fencepost_core::Page::new(10)).await.unwrap();
    assert_eq!(page.locks.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["a"]);
    remove_cell(&client, "a").await;
}
