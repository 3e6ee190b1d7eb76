//! What locks that live in sessions of the server do not have.

use fencepost_core::{ErrorKind, Keep, Mode};

use super::{LONG_TTL, hold};
use crate::test_bench::SessionBench;
use crate::wait;

/// The hint names the mode of the backend that has it.
pub async fn what_sessions_do_not_have_is_refused<B: SessionBench>(bench: &B) {
    let client = bench.client().await;
    let shared = client.lock("a").mode(Mode::Shared).try_acquire().await;
    assert_eq!(shared.is_ok(), bench.has_shared_locks());
    let semaphore = client.lock("b").mode(Mode::Semaphore { permits: 2 }).try_acquire().await;
    let all = client.lock_all(["b", "c"]).try_acquire().await;
    let any = client.lock_any(["b", "c"]).acquire().await;
    let guard = hold(&client.lock("b").ttl(LONG_TTL)).await;
    let write = guard.write_cell(*b"x", Keep::Always).await;
    let errors = [
        semaphore.map(drop).unwrap_err(),
        all.map(drop).unwrap_err(),
        any.map(drop).unwrap_err(),
        client.read_cell("b").await.map(drop).unwrap_err(),
        write.unwrap_err(),
    ];
    for error in errors.into_iter().chain(shared.err()) {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("mode=lease")), "{error:?}");
    }
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

/// Further attempts wait in the process for a connection; one that does not wait is told.
pub async fn more_locks_than_connections_wait_in_the_client<B: SessionBench>(bench: &B) {
    let client = bench.client_with("connections=2").await;
    let held = [hold(&client.lock("a").ttl(LONG_TTL)).await, hold(&client.lock("b").ttl(LONG_TTL)).await];
    let error = client.lock("c").try_acquire().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("connections=N")), "{error:?}");
    let waiters = ["c", "d", "e"].map(|name| {
        let lock = client.lock(name).ttl(LONG_TTL);
        tokio::spawn(async move { lock.acquire().await?.release().await })
    });
    for guard in held {
        guard.release().await.unwrap();
    }
    for waiter in waiters {
        wait::within_timeout("a connection is left for it", waiter).await.unwrap().unwrap();
    }
}

/// Two names with one key are one lock for the server: that is reported, not waited for.
pub async fn names_with_the_same_key_are_a_conflict<B: SessionBench>(bench: &B) {
    let (rule, [first, second]) = bench.names_with_the_same_key();
    let rule = format!("key={rule}");
    let (client, other) = (bench.client_with(&rule).await, bench.client_with(&rule).await);
    let guard = hold(&client.lock(first.as_str()).ttl(LONG_TTL)).await;
    for client in [&client, &other] {
        for error in [
            client.lock(second.as_str()).try_acquire().await.map(drop).unwrap_err(),
            client.lock(second.as_str()).acquire().await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
            assert!(error.to_string().contains(&format!("{first:?}")), "{error:?}");
        }
    }
    guard.release().await.unwrap();
    assert!(other.lock(second.as_str()).try_acquire().await.unwrap().is_some());
}
