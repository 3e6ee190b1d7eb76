//! Injected faults, as in the tests of applications.

use std::time::Duration;

use fencepost_core::{ErrorKind, LostReason};
use fencepost_memory::Count;
use fencepost_testkit::wait;

use crate::manual_clock::{enqueue, on_a_manual_clock};

const TTL: Duration = Duration::from_secs(12);

#[test]
fn a_lost_reply_is_still_one_grant() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        memory.faults().lose_reply();
        let lock = client.lock("a").ttl(TTL);
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        wait::until("it is granted, and the reply lost", async || memory.count().holders == 1).await;
        clock.advance(TTL / 6);
        let guard = acquiring.await.unwrap().unwrap();
        let holders = client.inspect("a").await.unwrap().holders;
        assert_eq!((holders.len(), holders[0].token), (1, Some(guard.token())));
        guard.release().await.unwrap();
        assert!(memory.is_clean());
    });
}

/// Scenario 12: the validity counts from the send that arrived.
#[test]
fn a_lost_request_is_sent_again() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        memory.faults().lose_request();
        let lock = client.lock("a").ttl(TTL);
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        wait::until("it is granted", async || {
            clock.advance(TTL / 12);
            memory.count().holders == 1
        })
        .await;
        let guard = acquiring.await.unwrap().unwrap();
        assert!(guard.remaining() > TTL / 2);
    });
}

/// The acquire arrives after its caller has given up: its grant is released.
#[test]
fn a_delayed_acquire_is_undone() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        memory.faults().delay(TTL / 2);
        let lock = client.lock("a").ttl(TTL).wait(TTL / 12);
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        wait::until("the wait is over", async || {
            clock.advance(TTL / 12);
            acquiring.is_finished()
        })
        .await;
        assert_eq!(acquiring.await.unwrap().unwrap_err().kind(), ErrorKind::WaitTimeout);
        clock.advance(TTL);
        client.close().await;
        assert!(memory.is_clean());
    });
}

/// Scenario 20: one renewal hangs; the others keep the lease.
#[test]
fn a_delayed_renewal_does_not_lose_the_lock() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        for _ in 0..5 {
            memory.faults().delay(TTL * 5);
            clock.advance(TTL);
            assert!(guard.is_valid());
        }
    });
}

/// Scenario 56: the backend restarts empty. The holder detects it, waiters send their acquire again, and tokens keep growing.
#[test]
fn a_backend_that_lost_its_data_is_detected() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        let waiter = enqueue(&client, "a", TTL).await;
        memory.forget();
        clock.advance(TTL / 2);
        assert_eq!(guard.lost().await, LostReason::NotHeld);
        let next = waiter.await.unwrap().unwrap();
        assert!(next.token() > guard.token());
        assert_eq!(guard.release().await.unwrap_err().lost_reason(), Some(LostReason::NotHeld));
        assert!(next.is_valid());
    });
}

#[test]
fn an_unreachable_backend_is_an_error() {
    on_a_manual_clock(async |memory, _clock| {
        let client = memory.client().unwrap();
        memory.faults().cut();
        assert_eq!(client.lock("a").try_acquire().await.unwrap_err().kind(), ErrorKind::Unreachable);
        assert_eq!(client.inspect("a").await.unwrap_err().kind(), ErrorKind::Unreachable);
        memory.faults().heal();
        assert!(client.lock("a").try_acquire().await.unwrap().is_some());
    });
}

/// Scenario 25: the backend is unreachable when a guard is released; the release is sent again later.
#[test]
fn a_release_survives_an_outage() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        memory.faults().cut();
        let releasing = tokio::spawn(guard.release());
        clock.advance(TTL / 4);
        memory.faults().heal();
        wait::until("it is released", async || {
            clock.advance(TTL / 24);
            releasing.is_finished()
        })
        .await;
        releasing.await.unwrap().unwrap();
        assert!(memory.is_clean());
    });
}

/// Locks whose names are never used again are removed, whether they were released or expired.
#[test]
fn names_that_are_used_once_are_removed() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let crashing = memory.client().unwrap();
        for number in 0..200 {
            let guard = crashing.lock(format!("job/{number}")).ttl(TTL).acquire().await.unwrap();
            guard.write_cell(*b"result", fencepost_core::Keep::For(TTL)).await.unwrap();
            client.read_cell(format!("no such job/{number}")).await.unwrap();
            client.lock(format!("job/{number}")).try_acquire().await.unwrap();
            std::mem::forget(guard);
        }
        memory.faults().cut();
        clock.advance(TTL * 2);
        memory.faults().heal();
        for number in 0..500 {
            client.lock(format!("other/{number}")).acquire().await.unwrap().release().await.unwrap();
        }
        assert_eq!(memory.count(), Count::default());
    });
}
