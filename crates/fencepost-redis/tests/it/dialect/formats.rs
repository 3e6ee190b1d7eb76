//! The stored keys and values, byte for byte, as the other library expects them.

use std::time::Duration;

use fencepost_core::{Client, ErrorKind, Mode};
use fencepost_testkit::{TestBench, suite};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, cmd};

use super::bench::DialectBench;
use crate::bench::keys_like;

const TTL: Duration = Duration::from_secs(60);

async fn ask<T: FromRedisValue>(driver: &mut MultiplexedConnection, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    command.query_async(driver).await.expect("the server answers")
}

/// Acquires a lock in this dialect, and checks its key and its value.
fn held(option: &'static str, key: &'static str, check: impl Fn(&[u8]) + Send + 'static) {
    suite::run(
        option,
        move || DialectBench::with(option),
        async move |bench: &DialectBench| {
            let (client, mut driver) = (bench.client().await, bench.redis.driver().await);
            let guard = client.lock("a:b").ttl(TTL).acquire().await.unwrap();
            let ours = format!("{}:", bench.redis.namespace());
            let mut others = keys_like(&mut driver, "*").await;
            others.retain(|key| !key.starts_with(&ours));
            assert_eq!(others, [key]);
            let value: Vec<u8> = ask(&mut driver, &["GET", key]).await;
            check(&value);
            let left: i64 = ask(&mut driver, &["PTTL", key]).await;
            assert!((1..=60_000).contains(&left), "{left}");
            guard.release().await.unwrap();
            assert!(!ask::<bool>(&mut driver, &["EXISTS", key]).await);
            client.close().await;
        },
    );
}

fn is_hex(value: &[u8]) {
    assert!(value.len() == 32 && value.iter().all(|byte| b"0123456789abcdef".contains(byte)), "{value:?}");
}

fn is_base64(value: &[u8], letters: usize) {
    let (text, padding) = value.split_at(letters);
    assert!(text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte)), "{value:?}");
    assert!(value.len() == 24 && padding.iter().all(|byte| *byte == b'='), "{value:?}");
}

#[test]
fn a_lock_of_redis_py() {
    held("dialect=redis-py", "a:b", is_hex);
}

#[test]
fn a_lock_of_node_redlock() {
    held("dialect=node-redlock", "a:b", is_hex);
}

#[test]
fn a_raw_lock() {
    held("layout=raw", "a:b", is_hex);
}

#[test]
fn a_lock_of_redsync() {
    held("dialect=redsync", "a:b", |value| is_base64(value, 22));
}

#[test]
fn a_lock_of_rslock() {
    held("dialect=rslock", "a:b", |value| assert_eq!(value.len(), 20));
}

#[test]
fn a_lock_of_python_redis_lock() {
    held("dialect=python-redis-lock", "lock:a:b", |value| is_base64(value, 24));
}

#[test]
fn a_lock_of_shedlock() {
    held("dialect=shedlock&environment=prod", "job-lock:prod:a:b", |value| {
        let text = std::str::from_utf8(value).unwrap();
        let (time, owner) = text.strip_prefix("ADDED:").and_then(|rest| rest.split_once('@')).unwrap();
        assert!(time.len() == 24 && time.ends_with('Z'), "{text}");
        let (_, uuid) = owner.rsplit_once(':').unwrap();
        assert_eq!(uuid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{text}");
    });
}

#[test]
fn a_release_pushes_the_signal_of_python_redis_lock() {
    let name = "a_release_pushes_the_signal_of_python_redis_lock";
    suite::run(name, DialectBench::python_redis_lock, async |bench: &DialectBench| {
        let (client, mut driver) = (bench.client().await, bench.redis.driver().await);
        client.lock("a").acquire().await.unwrap().release().await.unwrap();
        let signal: Vec<String> = ask(&mut driver, &["LRANGE", "lock-signal:a", "0", "-1"]).await;
        assert_eq!(signal, ["1"]);
        let left: i64 = ask(&mut driver, &["PTTL", "lock-signal:a"]).await;
        assert!((1..=1000).contains(&left), "{left}");
        client.close().await;
    });
}

/// Operations that a lock in a dialect does not support are rejected with a hint.
#[test]
fn unsupported_operations_are_rejected() {
    suite::run(
        "unsupported_operations_are_rejected",
        DialectBench::redis_py,
        async |bench: &DialectBench| {
            let client: Client = bench.client().await;
            for lock in [
                client.lock("a").mode(Mode::Shared),
                client.lock("a").mode(Mode::Semaphore { permits: 2 }),
                client.lock_all(["a", "b"]),
            ] {
                let error = lock.try_acquire().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
                assert!(error.hint().is_some(), "{error:?}");
            }
            assert_eq!(client.read_cell("a").await.unwrap_err().kind(), ErrorKind::Unsupported);
            let ours = format!("{}:c", bench.redis.namespace());
            assert_eq!(client.lock(&ours).try_acquire().await.unwrap_err().kind(), ErrorKind::BadName);
            client.close().await;
        },
    );
}
