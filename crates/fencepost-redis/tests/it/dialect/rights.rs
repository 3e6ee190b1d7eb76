//! The rights that `fencepost rights` prints are sufficient for locks in a dialect.

use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::wait;

use super::tracking::tracked_keys;

/// Acquires a lock, waits for it behind a Fencepost client and behind a foreign one, and releases it, as a user with just these
/// rights.
async fn use_lock_with_printed_rights(option: &str, key: &str) {
    let printed = fencepost_redis::rights(&format!("redis://h?{option}")).unwrap();
    let line = printed.lines().find(|line| line.contains("resetkeys")).unwrap();
    let (_, rights) = line.split_once("resetkeys resetchannels ").unwrap();
    let server = RedisServer::start(&RedisServerConfig::plain().with_user(
        "ann",
        "secret",
        &format!("resetkeys resetchannels {rights}"),
    ));
    let url = format!("{}?{option}", server.url_as("ann"));
    let client = fencepost_redis::connect(&url).await.unwrap();
    let guard = client.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = client.lock("a");
        async move { lock.acquire().await }
    });
    wait::until("the attempt waits", async || client.inspect("a").await.unwrap().waiter_count == 1).await;
    guard.release().await.unwrap();
    wait::within_timeout("the waiter is granted", waiter).await.unwrap().unwrap().release().await.unwrap();
    server.cli(&["SET", key, "theirs"]);
    let waiter = tokio::spawn({
        let lock = client.lock("a");
        async move { lock.acquire().await }
    });
    wait::until("the key is tracked", async || tracked_keys(&server) == 1).await;
    server.cli(&["DEL", key]);
    wait::within_timeout("the waiter is granted", waiter).await.unwrap().unwrap().release().await.unwrap();
    let denied = server.cli(&["ACL", "LOG"]);
    assert_eq!(denied, "", "{option}");
    client.close().await;
}

#[tokio::test]
async fn nothing_is_denied_to_a_lock_of_redis_py() {
    use_lock_with_printed_rights("dialect=redis-py", "a").await;
}

#[tokio::test]
async fn nothing_is_denied_to_a_lock_of_python_redis_lock() {
    use_lock_with_printed_rights("dialect=python-redis-lock", "lock:a").await;
}

#[tokio::test]
async fn nothing_is_denied_to_a_lock_of_shedlock() {
    use_lock_with_printed_rights("dialect=shedlock", "job-lock:default:a").await;
}
