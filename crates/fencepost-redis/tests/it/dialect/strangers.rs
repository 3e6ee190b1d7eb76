//! Locks that somebody else holds, and ours in the hands of somebody else's scripts.

use std::time::Duration;

use fencepost_core::backend::{HolderState, OnBusy, Op, Page, Reply};
use fencepost_core::{Attempt, Grant, LockName, Mode, Owner, Rule, Want};
use fencepost_testkit::{TestBench, suite, wait};
use redis::aio::MultiplexedConnection;
use redis::cmd;

use super::bench::DialectBench;

const LONG: Duration = Duration::from_secs(60);

/// What everybody's release is: redis-py, redsync, rslock.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

async fn say(driver: &mut MultiplexedConnection, words: &str) {
    let mut words = words.split(' ');
    let mut command = cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query_async::<()>(driver).await.expect("the server does it");
}

/// On a fresh bench; `work` gets the bare driver too.
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
fn a_key_without_a_ttl_is_held_for_ever() {
    with_redis_py("a_key_without_a_ttl_is_held_for_ever", async |bench, mut driver| {
        say(&mut driver, "SET a theirs").await;
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
        say(&mut driver, "DEL a").await;
        client.close().await;
    });
}

/// A hash as Redisson has it, a sorted set as Symfony has it, bytes that are no text.
#[test]
fn whatever_is_there_is_held_until_it_is_gone() {
    with_redis_py("whatever_is_there_is_held_until_it_is_gone", async |bench, mut driver| {
        let client = bench.client().await;
        for there in ["HSET a field 1", "ZADD a 1 token", "LPUSH a 1", "SETBIT a 0 1"] {
            say(&mut driver, there).await;
            say(&mut driver, "PEXPIRE a 60000").await;
            assert!(client.lock("a").try_acquire().await.unwrap().is_none(), "{there}");
            let state = client.inspect("a").await.unwrap();
            assert_eq!(&*state.holders[0].label, "not a Fencepost client", "{there}");
            let waiter = tokio::spawn({
                let lock = client.lock("a").ttl(LONG);
                async move { lock.acquire().await }
            });
            let waits = async || client.inspect("a").await.unwrap().waiter_count == 1;
            wait::until("somebody waits", waits).await;
            say(&mut driver, "DEL a").await;
            let guard = wait::within_timeout("the first in line finds out", waiter).await.unwrap().unwrap();
            guard.release().await.unwrap();
        }
        client.close().await;
    });
}

#[test]
fn a_foreign_lease_that_ends_makes_room() {
    with_redis_py("a_foreign_lease_that_ends_makes_room", async |bench, mut driver| {
        say(&mut driver, "SET a theirs PX 300").await;
        let client = bench.client().await;
        let lock = client.lock("a").ttl(LONG);
        wait::within_timeout("their lease ends", lock.acquire()).await.unwrap().release().await.unwrap();
        client.close().await;
    });
}

#[test]
fn nobody_releases_what_is_not_theirs() {
    with_redis_py("nobody_releases_what_is_not_theirs", async |bench, mut driver| {
        let client = bench.client().await;
        let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let mut release = cmd("EVAL");
        release.arg(COMPARE_AND_DELETE).arg(1).arg("a");
        let theirs: i64 = release.clone().arg("theirs").query_async(&mut driver).await.unwrap();
        assert_eq!(theirs, 0);
        // Theirs with our value takes it for one of its own.
        let value: String = cmd("GET").arg("a").query_async(&mut driver).await.unwrap();
        let stolen: i64 = release.arg(value).query_async(&mut driver).await.unwrap();
        assert_eq!(stolen, 1);
        say(&mut driver, "SET a theirs PX 60000 NX").await;
        assert!(guard.release().await.is_err());
        let value: String = cmd("GET").arg("a").query_async(&mut driver).await.unwrap();
        assert_eq!(value, "theirs");
        say(&mut driver, "DEL a").await;
        client.close().await;
    });
}

#[test]
fn a_lock_that_was_taken_over_is_not_renewed() {
    with_redis_py("a_lock_that_was_taken_over_is_not_renewed", async |bench, mut driver| {
        let client = bench.client().await;
        let guard = client.lock("a").ttl(bench.ttl()).acquire().await.unwrap();
        say(&mut driver, "SET a theirs").await;
        wait::within_timeout("the loss is found out", guard.lost()).await;
        let left: i64 = cmd("PTTL").arg("a").query_async(&mut driver).await.unwrap();
        assert_eq!(left, -1);
        say(&mut driver, "DEL a").await;
        client.close().await;
    });
}

/// Scenario 70: `ShedLock` without `safeUpdate`, whose job took longer than `lockAtMostFor`, deletes or overwrites whatever is at the
/// key. The holder is told at its next renewal, what the other wrote stays, and the next token is larger.
#[test]
fn a_peer_that_does_not_compare_costs_the_lock() {
    let name = "a_peer_that_does_not_compare_costs_the_lock";
    let make = || DialectBench::with("dialect=shedlock");
    suite::run(name, make, async |bench: &DialectBench| {
        let (client, mut driver) = (bench.client().await, bench.redis.driver().await);
        let lock = client.lock("a").ttl(bench.ttl());
        let deleted = lock.acquire().await.unwrap();
        say(&mut driver, "DEL job-lock:default:a").await;
        // Before the first holder knows: two hold it, in the order of their tokens.
        let overwritten = wait::within_timeout("the lock is free", lock.acquire()).await.unwrap();
        let tokens = [deleted.token(), overwritten.token()];
        wait::within_timeout("the loss is found out", deleted.lost()).await;
        assert!(deleted.release().await.is_err());
        let theirs = "ADDED:2026-01-01T00:00:00Z@host:x";
        say(&mut driver, &format!("SET job-lock:default:a {theirs} XX PX 60000")).await;
        wait::within_timeout("the loss is found out", overwritten.lost()).await;
        assert!(overwritten.release().await.is_err());
        let value: String = cmd("GET").arg("job-lock:default:a").query_async(&mut driver).await.unwrap();
        assert_eq!(value, theirs);
        say(&mut driver, "DEL job-lock:default:a").await;
        let last = wait::within_timeout("the lock is free", lock.acquire()).await.unwrap();
        assert!(tokens[0] < tokens[1] && tokens[1] < last.token(), "{tokens:?}, {:?}", last.token());
        last.release().await.unwrap();
        client.close().await;
    });
}

#[test]
fn a_list_shows_ours_and_those_that_ours_wait_for() {
    with_redis_py("a_list_shows_ours_and_those_that_ours_wait_for", async |bench, mut driver| {
        say(&mut driver, "MSET b theirs c theirs").await;
        let client = bench.client().await;
        let a = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let lock = client.lock("b").ttl(LONG);
            async move { lock.acquire().await }
        });
        wait::until("somebody waits", async || client.inspect("b").await.unwrap().waiter_count == 1).await;
        let page = client.list("", Page::new(10)).await.unwrap();
        let seen: Vec<_> = page
            .locks
            .iter()
            .map(|lock| (lock.name.as_str(), lock.holders[0].token, lock.waiter_count))
            .collect();
        assert_eq!(seen, [("a", Some(a.token()), 0), ("b", None, 1)]);
        say(&mut driver, "DEL b c").await;
        wait::within_timeout("b is free", waiter).await.unwrap().unwrap().release().await.unwrap();
        a.release().await.unwrap();
        client.close().await;
    });
}

/// A resend gets what the first send got, and a late one nothing.
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
fn the_doctor_says_where_such_a_lock_is() {
    with_redis_py("the_doctor_says_where_such_a_lock_is", async |bench, mut driver| {
        say(&mut driver, "SET a theirs").await;
        let client = bench.client().await;
        let found: Vec<String> =
            client.locate("a").await.unwrap().iter().map(|finding| format!("{finding:?}")).collect();
        assert!(found[0].contains("a (a string)"), "{found:?}");
        assert!(found.iter().any(|line| line.contains(":peer:q:a ")), "{found:?}");
        assert!(!found.iter().any(|line| line.contains("foreign")), "{found:?}");
        say(&mut driver, "DEL a").await;
        client.close().await;
    });
}

/// Somebody deletes the line behind our back: those who stood in it stand in it again, in their order.
#[test]
fn a_line_that_was_taken_away_is_made_again() {
    with_redis_py("a_line_that_was_taken_away_is_made_again", async |bench, mut driver| {
        let client = bench.client().await;
        let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let mut waiters = Vec::new();
        for count in 1..=2 {
            let lock = client.lock("a").ttl(bench.ttl());
            waiters.push(tokio::spawn(async move { lock.acquire().await }));
            let waits = async || client.inspect("a").await.unwrap().waiter_count == count;
            wait::until("it stands in line", waits).await;
        }
        say(&mut driver, &format!("DEL {}:peer:q:a", bench.redis.namespace())).await;
        let again = async || client.inspect("a").await.unwrap().waiter_count == 2;
        wait::until("they stand in line again", again).await;
        let mut newest = guard.token();
        guard.release().await.unwrap();
        for waiter in waiters {
            let guard = wait::within_timeout("its turn comes", waiter).await.unwrap().unwrap();
            assert!(guard.token() > newest, "somebody was overtaken");
            newest = guard.token();
            guard.release().await.unwrap();
        }
        client.close().await;
    });
}

/// The counter is lost, and the server's clock with it: whoever has seen the last token gets a larger one.
#[test]
fn a_lost_token_is_exceeded() {
    with_redis_py("a_lost_token_is_exceeded", async |bench, mut driver| {
        let client = bench.client().await;
        let counter = format!("{}:c", bench.redis.namespace());
        let ahead = fencepost_core::clock::wall_time() + Duration::from_secs(3600);
        say(&mut driver, &format!("SET {counter} {}", ahead.as_micros())).await;
        let first = client.lock("a").ttl(LONG).acquire().await.unwrap();
        say(&mut driver, &format!("DEL {counter}")).await;
        let second = client.lock("b").ttl(LONG).acquire().await.unwrap();
        assert!(second.token() > first.token());
        first.release().await.unwrap();
        second.release().await.unwrap();
        client.close().await;
    });
}
