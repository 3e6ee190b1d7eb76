//! Several processes that are killed and stopped, with one clock.

use fencepost_core::clock::Moment;
use fencepost_core::{FencingToken, LockName, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::history::{Hold, check};
use fencepost_testkit::rng::Rng;
use fencepost_testkit::scripted_process::ScriptedProcess;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, SHORT, granted, hold, spawn_waiter, until_queued};
use crate::bench::RedisBench;

/// Parses a hold that a process has reported.
fn parse_hold(who: &str, said: &str) -> Hold {
    let words: Vec<u64> = said.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
    let [token, from, to] = words[..] else { panic!("it said {said:?}") };
    Hold {
        holder: who.into(),
        name: LockName::new("a").unwrap(),
        mode: Mode::Exclusive,
        token: FencingToken::new(token),
        from: Moment::from_nanos(from),
        to: Moment::from_nanos(to),
    }
}

/// Four processes acquire one lock in turn; at random one is killed and replaced, or stopped for longer than its lease. No two
/// of them ever hold the lock at once, and tokens only grow.
#[test]
fn killed_and_stopped_processes_never_hold_a_lock_together() {
    const ROUNDS: usize = 12;
    let bench = RedisBench::plain();
    let (mut rng, mut holds) = (Rng::new(7), Vec::new());
    let start = || {
        let mut process = ScriptedProcess::new(bench.url());
        process.send(&format!("turns a {}", SHORT.as_millis() / 2));
        process
    };
    let mut processes: Vec<ScriptedProcess> = (0..4).map(|_| start()).collect();
    for round in 0..ROUNDS {
        let at = rng.index(4);
        if round % 3 == 2 {
            processes[at].pause();
            wait::block_thread_for(SHORT * 6 / 10);
            processes[at].resume();
        } else {
            holds.extend(processes[at].kill().iter().map(|said| parse_hold("killed", said)));
            processes[at] = start();
        }
        let goal = holds.len() + 20;
        wait::block_until("turns are taken", || {
            for (who, process) in processes.iter().enumerate() {
                holds.extend(process.received().iter().map(|said| parse_hold(&who.to_string(), said)));
            }
            holds.len() >= goal
        });
    }
    for process in &mut processes {
        holds.extend(process.kill().iter().map(|said| parse_hold("killed", said)));
    }
    assert!(holds.len() >= ROUNDS * 20);
    check(&holds).unwrap_or_else(|violation| panic!("{violation}"));
}

/// Scenario 51: holder and first waiter are killed together. The ticket of the waiter would live for two minutes.
#[tokio::test]
async fn holder_and_first_waiter_die_together() {
    let bench = RedisBench::plain();
    let client = bench.client().await;
    let (mut holder, mut first) = (ScriptedProcess::new(bench.url()), ScriptedProcess::new(bench.url()));
    holder.send(&format!("acquire a {}", SHORT.as_millis()));
    let token: u64 = holder.receive("granted").parse().unwrap();
    first.send(&format!("acquire a {}", LONG_TTL.as_millis()));
    until_queued(&client, "a", 1).await;
    let second = spawn_waiter(client.lock("a").ttl(SHORT * 3));
    until_queued(&client, "a", 2).await;
    holder.kill();
    first.kill();
    let second = granted(second).await;
    assert!(second.token().get() > token);
    second.release().await.unwrap();
}

/// Scenario 45: a grant that was handed over to a stopped process is given back, and never returned to its caller.
#[tokio::test]
async fn a_stopped_process_does_not_return_an_expired_grant() {
    let bench = RedisBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let mut stopped = ScriptedProcess::new(bench.url());
    stopped.send(&format!("acquire a {}", SHORT.as_millis()));
    until_queued(&client, "a", 1).await;
    stopped.pause();
    guard.release().await.unwrap();
    // It was handed over to the stopped process, whose lease must expire first.
    let later = hold(&client.lock("a").ttl(LONG_TTL)).await;
    stopped.resume();
    until_queued(&client, "a", 1).await;
    assert_eq!(stopped.received(), Vec::<String>::new(), "it has returned an expired grant");
    let token = later.token().get();
    later.release().await.unwrap();
    assert!(stopped.receive("granted").parse::<u64>().unwrap() > token);
    stopped.kill();
    assert_clean(&bench).await;
}
