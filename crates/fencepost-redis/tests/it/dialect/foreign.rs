//! Locks that a foreign client holds, and Fencepost's locks that a foreign client changes.

use std::time::Duration;

use fencepost_core::backend::{HolderState, OnBusy, Op, Page, Reply};
use fencepost_core::{Attempt, Grant, LockName, Mode, Owner, Rule, Want};
use fencepost_testkit::{TestBench, suite, wait};
use redis::aio::MultiplexedConnection;
use redis::cmd;

use super::bench::DialectBench;

const LONG: Duration = Duration::from_secs(60);

/// The release script of redis-py, redsync and rslock.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

async fn run(driver: &mut MultiplexedConnection, words: &str) {
    let mut words = words.split(' ');
    let mut command = cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query_async::<()>(driver).await.expect("the command succeeds");
}

/// Runs `work` with a new bench and the bare driver.
fn with_redis_py(
    name: &'static str,
    work: impl AsyncFnOnce(&DialectBench, MultiplexedConnection) + Send + 'static,
) {
    suite::run(name, DialectBench::redis_py, async |bench: &DialectBench| {
        let driver = bench.redis.driver().await;
        work(bench, driver).await;
    });
}

#[test]
fn a_key_without_a_ttl_is_held_forever() {
    with_redis_py("a_key_without_a_ttl_is_held_forever", async |bench, mut driver| {
        run(&mut driver, "SET a theirs").await;
        let client = bench.client().await;
        let state = client.inspect("a").await.unwrap();
        let [holder] = state.holders.as_slice() else { panic!("{state:?}") };
        assert_eq!(
            (&*holder.label, holder.expires_in),
            ("not a Fencepost client", Some(HolderState::NO_EXPIRY))
        );
        assert!(client.lock("a").try_acquire().await.unwrap().is_none());
        let error = client.lock("a").ttl(bench.ttl()).wait(bench.ttl() * 2).acquire().await.unwrap_err();
        assert_eq!(error.kind(), fencepost_core::ErrorKind::WaitTimeout);
        let value: String = cmd("GET").arg("a").query_async(&mut driver).await.unwrap();
        assert_eq!(value, "theirs");
        run(&mut driver, "DEL a").await;
        client.close().await;
    });
}

/// A hash as in Redisson, a sorted set as in Symfony, bytes that are not text.
#[test]
fn any_foreign_value_holds_the_lock_until_it_is_deleted() {
    with_redis_py("any_foreign_value_holds_the_lock_until_it_is_deleted", async |bench, mut driver| {
        let client = bench.client().await;
        for foreign in ["HSET a field 1", "ZADD a 1 token", "LPUSH a 1", "SETBIT a 0 1"] {
            run(&mut driver, foreign).await;
            run(&mut driver, "PEXPIRE a 60000").await;
            assert!(client.lock("a").try_acquire().await.unwrap().is_none(), "{foreign}");
            let state = client.inspect("a").await.unwrap();
            assert_eq!(&*state.holders[0].label, "not a Fencepost client", "{foreign}");
            let waiter = tokio::spawn({
                let lock = client.lock("a").ttl(LONG);
                async move { lock.acquire().await }
            });
            let waits = async || client.inspect("a").await.unwrap().waiter_count == 1;
            wait::until("the attempt waits", waits).await;
            run(&mut driver, "DEL a").await;
            let guard = wait::within_timeout("the waiter is granted", waiter).await.unwrap().unwrap();
            guard.release().await.unwrap();
        }
        client.close().await;
    });
}

#[test]
fn a_foreign_lease_that_expires_frees_the_lock() {
    with_redis_py("a_foreign_lease_that_expires_frees_the_lock", async |bench, mut driver| {
        run(&mut driver, "SET a theirs PX 300").await;
        let client = bench.client().await;
        let lock = client.lock("a").ttl(LONG);
        wait::within_timeout("the foreign lease expires", lock.acquire())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        client.close().await;
    });
}

#[test]
fn neither_side_releases_a_lock_of_the_other() {
    with_redis_py("neither_side_releases_a_lock_of_the_other", async |bench, mut driver| {
        let client = bench.client().await;
        let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let mut release = cmd("EVAL");
        release.arg(COMPARE_AND_DELETE).arg(1).arg("a");
        let theirs: i64 = release.clone().arg("theirs").query_async(&mut driver).await.unwrap();
        assert_eq!(theirs, 0);
        // A foreign release with the value of the Fencepost client succeeds.
        let value: String = cmd("GET").arg("a").query_async(&mut driver).await.unwrap();
        let stolen: i64 = release.arg(value).query_async(&mut driver).await.unwrap();
        assert_eq!(stolen, 1);
        run(&mut driver, "SET a theirs PX 60000 NX").await;
        assert!(guard.release().await.is_err());
        let value: String = cmd("GET").arg("a").query_async(&mut driver).await.unwrap();
        assert_eq!(value, "theirs");
        run(&mut driver, "DEL a").await;
        client.close().await;
    });
}

#[test]
fn a_lock_that_was_overwritten_is_not_renewed() {
    with_redis_py("a_lock_that_was_overwritten_is_not_renewed", async |bench, mut driver| {
        let client = bench.client().await;
        let guard = client.lock("a").ttl(bench.ttl()).acquire().await.unwrap();
        run(&mut driver, "SET a theirs").await;
        wait::within_timeout("the lock is lost", guard.lost()).await;
        let left: i64 = cmd("PTTL").arg("a").query_async(&mut driver).await.unwrap();
        assert_eq!(left, -1);
        run(&mut driver, "DEL a").await;
        client.close().await;
    });
}

/// Scenario 70: `ShedLock` without `safeUpdate`, whose job took longer than `lockAtMostFor`, deletes or overwrites the key without
/// comparing its value. The holder notices at its next renewal, the foreign value stays, and the next token is larger.
#[test]
fn a_foreign_client_that_does_not_compare_takes_the_lock() {
    let name = "a_foreign_client_that_does_not_compare_takes_the_lock";
    let make = || DialectBench::with("dialect=shedlock");
    suite::run(name, make, async |bench: &DialectBench| {
        let (client, mut driver) = (bench.client().await, bench.redis.driver().await);
        let lock = client.lock("a").ttl(bench.ttl());
        let deleted = lock.acquire().await.unwrap();
        run(&mut driver, "DEL job-lock:default:a").await;
        // Before the first holder notices there are two holders, ordered by their tokens.
        let overwritten = wait::within_timeout("the lock is free", lock.acquire()).await.unwrap();
        let tokens = [deleted.token(), overwritten.token()];
        wait::within_timeout("the lock is lost", deleted.lost()).await;
        assert!(deleted.release().await.is_err());
        let theirs = "ADDED:2026-01-01T00:00:00Z@host:x";
        run(&mut driver, &format!("SET job-lock:default:a {theirs} XX PX 60000")).await;
        wait::within_timeout("the lock is lost", overwritten.lost()).await;
        assert!(overwritten.release().await.is_err());
        let value: String = cmd("GET").arg("job-lock:default:a").query_async(&mut driver).await.unwrap();
        assert_eq!(value, theirs);
        run(&mut driver, "DEL job-lock:default:a").await;
        let last = wait::within_timeout("the lock is free", lock.acquire()).await.unwrap();
        assert!(tokens[0] < tokens[1] && tokens[1] < last.token(), "{tokens:?}, {:?}", last.token());
        last.release().await.unwrap();
        client.close().await;
    });
}

#[test]
fn a_list_shows_locks_with_a_fencepost_holder_or_waiter() {
    with_redis_py("a_list_shows_locks_with_a_fencepost_holder_or_waiter", async |bench, mut driver| {
        run(&mut driver, "MSET b theirs c theirs").await;
        let client = bench.client().await;
        let a = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let lock = client.lock("b").ttl(LONG);
            async move { lock.acquire().await }
        });
        wait::until("the attempt waits", async || client.inspect("b").await.unwrap().waiter_count == 1).await;
        let page = client.list("", Page::new(10)).await.unwrap();
        let seen: Vec<_> = page
            .locks
            .iter()
            .map(|lock| (lock.name.as_str(), lock.holders[0].token, lock.waiter_count))
            .collect();
        assert_eq!(seen, [("a", Some(a.token()), 0), ("b", None, 1)]);
        run(&mut driver, "DEL b c").await;
        wait::within_timeout("b is free", waiter).await.unwrap().unwrap().release().await.unwrap();
        a.release().await.unwrap();
        client.close().await;
    });
}

/// A repeated acquire returns the same grant, and a repeated release does nothing.
#[test]
fn a_resend_is_harmless() {
    with_redis_py("a_resend_is_harmless", async |bench, _| {
        let backend = bench.connect().await.unwrap();
        let wants = [Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }];
        let attempt = |owner| Attempt {
            owner,
            wants: wants.clone().into(),
            rule: Rule::All,
            ttl: LONG,
            label: "bare".into(),
            meta: [].into(),
        };
        let attempt = std::sync::Arc::new(attempt(Owner::random()));
        let acquire = || Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait };
        let first = backend.execute(vec![acquire()]).await.remove(0).unwrap();
        let Reply::Granted(award) = first.clone() else { panic!("{first:?}") };
        assert_eq!(backend.execute(vec![acquire()]).await.remove(0).unwrap(), first);
        let grant = Grant { attempt: attempt.clone(), award };
        let release = backend.execute(vec![Op::Release(grant.clone()), Op::Release(grant)]).await;
        let release: Vec<Reply> = release.into_iter().map(Result::unwrap).collect();
        assert_eq!(release, [Reply::Released, Reply::NotHeld]);
        backend.close().await;
    });
}

#[test]
fn locate_reports_the_keys_of_a_dialect() {
    with_redis_py("locate_reports_the_keys_of_a_dialect", async |bench, mut driver| {
        run(&mut driver, "SET a theirs").await;
        let client = bench.client().await;
        let found: Vec<String> =
            client.locate("a").await.unwrap().iter().map(|finding| format!("{finding:?}")).collect();
        assert!(found[0].contains("a (a string)"), "{found:?}");
        assert!(found.iter().any(|line| line.contains(":peer:q:a ")), "{found:?}");
        assert!(!found.iter().any(|line| line.contains("foreign")), "{found:?}");
        run(&mut driver, "DEL a").await;
        client.close().await;
    });
}

/// A foreign client deletes the queue: the waiters are in it again after their next check, in the same order.
#[test]
fn a_deleted_queue_is_restored() {
    with_redis_py("a_deleted_queue_is_restored", async |bench, mut driver| {
        let client = bench.client().await;
        let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let mut waiters = Vec::new();
        for count in 1..=2 {
            let lock = client.lock("a").ttl(bench.ttl());
            waiters.push(tokio::spawn(async move { lock.acquire().await }));
            let waits = async || client.inspect("a").await.unwrap().waiter_count == count;
            wait::until("it is in the queue", waits).await;
        }
        run(&mut driver, &format!("DEL {}:peer:q:a", bench.redis.namespace())).await;
        let again = async || client.inspect("a").await.unwrap().waiter_count == 2;
        wait::until("both are in the queue again", again).await;
        let mut newest = guard.token();
        guard.release().await.unwrap();
        for waiter in waiters {
            let guard = wait::within_timeout("the waiter is granted", waiter).await.unwrap().unwrap();
            assert!(guard.token() > newest, "a waiter was overtaken");
            newest = guard.token();
            guard.release().await.unwrap();
        }
        client.close().await;
    });
}

/// The counter is lost, and the server's clock is behind it: a client that has seen the last token gets a larger one.
#[test]
fn a_token_grows_although_the_counter_was_lost() {
    with_redis_py("a_token_grows_although_the_counter_was_lost", async |bench, mut driver| {
        let client = bench.client().await;
        let counter = format!("{}:c", bench.redis.namespace());
        let ahead = fencepost_core::clock::wall_time() + Duration::from_secs(3600);
        run(&mut driver, &format!("SET {counter} {}", ahead.as_micros())).await;
        let first = client.lock("a").ttl(LONG).acquire().await.unwrap();
        run(&mut driver, &format!("DEL {counter}")).await;
        let second = client.lock("b").ttl(LONG).acquire().await.unwrap();
        assert!(second.token() > first.token());
        first.release().await.unwrap();
        second.release().await.unwrap();
        client.close().await;
    });
}
