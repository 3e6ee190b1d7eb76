//! Fencing tokens grow with every grant of a name, however the grant before it ended.

use fencepost_core::{FencingToken, Mode};

use super::{LONG_TTL, granted, hold, name, spawn_waiter, until_free, until_queued};
use crate::test_bench::TestBench;

/// Tokens grow over releases, from client to client.
pub async fn tokens_rise_over_releases<B: TestBench>(bench: &B) {
    let mut newest = FencingToken::new(0);
    for _ in 0..5 {
        let client = bench.client().await;
        for _ in 0..5 {
            let guard = hold(&client.lock("a")).await;
            assert!(guard.token() > newest);
            newest = guard.token();
            guard.release().await.unwrap();
        }
        client.close().await;
    }
}

/// Tokens grow over everything that can end a grant: expiry, deletion, breaking, hand-over.
pub async fn tokens_rise_over_every_end_of_a_grant<B: TestBench>(bench: &B) {
    let (dying, proxy) = bench.proxied().await;
    let client = bench.client().await;
    let lock = client.lock("a").ttl(LONG_TTL);
    let expired = hold(&dying.lock("a").ttl(bench.ttl())).await;
    proxy.crash();
    until_free(&client, "a").await;
    let stolen = hold(&lock).await;
    bench.steal(&name("a")).await;
    let broken = hold(&lock).await;
    client.break_lock("a", broken.token()).await.unwrap();
    let released = hold(&lock).await;
    let waiter = spawn_waiter(lock);
    until_queued(&client, "a", 1).await;
    let token = released.token();
    released.release().await.unwrap();
    let handed_over = granted(waiter).await;
    let tokens = [expired.token(), stolen.token(), broken.token(), token, handed_over.token()];
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

/// A renewal keeps the token.
pub async fn a_renewal_keeps_the_token<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(bench.ttl() * 2)).await;
    let token = guard.token();
    crate::wait::elapse(bench.ttl() * 2).await;
    assert_eq!(guard.token(), token);
    assert_eq!(client.inspect("a").await.unwrap().holders[0].token, Some(token));
}

/// Readers have tokens too: smaller than that of the writer after them.
pub async fn a_writer_has_a_larger_token_than_the_readers_before_it<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let reading = client.lock("a").mode(Mode::Shared);
    let (one, two) = (hold(&reading).await, hold(&reading).await);
    assert_ne!(one.token(), two.token());
    let readers = one.token().max(two.token());
    let writer = spawn_waiter(client.lock("a"));
    until_queued(&client, "a", 1).await;
    one.release().await.unwrap();
    two.release().await.unwrap();
    let writer = granted(writer).await;
    assert!(writer.token() > readers);
    let token = writer.token();
    writer.release().await.unwrap();
    assert!(hold(&reading).await.token() > token);
}

/// The token of several names is larger than the earlier tokens of each name, and smaller than the later ones.
pub async fn the_token_of_several_names_is_newer_for_each_name<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let mut newest = FencingToken::new(0);
    for names in [&["a"][..], &["b"], &["a", "b"], &["b"], &["a", "b"], &["a"]] {
        let guard = hold(&client.lock_all(names)).await;
        assert!(guard.token() > newest);
        newest = guard.token();
        guard.release().await.unwrap();
    }
}

/// All clients of one backend see the same storage id, within which tokens are ordered.
pub async fn clients_see_the_same_storage_id<B: TestBench>(bench: &B) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a")).await;
    assert_eq!(guard.storage_id(), theirs.info().storage_id);
}
