//! Bad input and servers that cannot write: a clear error each, and nothing is lost.

use std::time::Duration;

use fencepost_core::{Client, Error, ErrorKind};

use crate::actions::{LONG_TTL, hold};
use crate::servers::OwnServer;
use crate::wait;

/// Asserts the kind of an error, that it contains these words, and that it has a hint.
#[track_caller]
pub fn assert_error(error: &Error, kind: ErrorKind, words: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(words), "{error:?}");
    assert!(error.hint().is_some(), "{error:?}");
}

/// The limits themselves are accepted.
pub async fn a_ttl_out_of_range_is_refused(client: Client) {
    for ttl in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(u64::MAX), Duration::MAX] {
        let error = client.lock("a").ttl(ttl).try_acquire().await.expect_err("this is refused");
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{ttl:?}: {error:?}");
    }
    for ttl in [client.info().min_ttl, client.info().max_ttl] {
        // The shortest lease may end before the release.
        drop(hold(&client.lock("a").ttl(ttl)).await);
    }
}

/// The disk is full for a while. New locks fail with the reason; what is held stays held.
pub async fn a_full_disk(client: Client, server: &impl OwnServer) {
    let kept = hold(&client.lock("kept").ttl(LONG_TTL)).await;
    server.fill_disk();
    let mut number = 0;
    let error = loop {
        number += 1;
        assert!(number < 20_000, "the disk is never full");
        let lock = client.lock(format!("new/{number}/{}", "x".repeat(400))).ttl(LONG_TTL);
        let lock = lock.meta("note", "x".repeat(4000));
        match lock.try_acquire().await {
            Ok(guard) => std::mem::forget(guard),
            Err(error) => break error,
        }
    };
    assert_error(&error, ErrorKind::Backend, "no space left");
    assert!(kept.is_valid());
    server.clear_disk();
    wait::until("locks can be acquired again", async || {
        client.lock("new").ttl(LONG_TTL).try_acquire().await.is_ok_and(|guard| guard.is_some())
    })
    .await;
    kept.release().await.expect("it is held");
}
