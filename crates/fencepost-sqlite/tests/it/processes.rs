//! Several processes: crashes, stops, and clean exits.

use std::time::Duration;

use fencepost_core::Client;
use fencepost_testkit::scripted_process::ScriptedProcess;
use fencepost_testkit::wait;
use rustix::fs::{FlockOperation, flock};

use crate::bench::SqliteBench;
use crate::scripted_process::{pause_between_writes, scripted_process};

/// Far longer than a test may take: a test that waited for it would time out.
const AN_HOUR: &str = "3600000";

async fn connected(bench: &SqliteBench) -> Client {
    fencepost_sqlite::connect(bench.path().to_str().unwrap()).await.unwrap()
}

async fn until_waiters(client: &Client, count: usize) {
    wait::until(&format!("{count} waiters"), async || {
        client.inspect("a").await.unwrap().waiter_count == count
    })
    .await;
}

/// Starts a process that waits as the last of `count`.
async fn waiter(bench: &SqliteBench, client: &Client, ttl: &str, count: usize) -> ScriptedProcess {
    let mut process = scripted_process(bench);
    process.send(&format!("acquire a {ttl}"));
    until_waiters(client, count).await;
    process
}

#[tokio::test]
async fn the_lock_of_a_killed_holder_is_free_after_its_ttl() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let mut holder = scripted_process(&bench);
    holder.send("acquire a 1000");
    let token: u64 = holder.receive("granted").parse().unwrap();
    holder.kill();
    let guard = wait::within_timeout("the lock", client.lock("a").acquire()).await.unwrap();
    assert!(guard.token().get() > token);
}

#[tokio::test]
async fn a_clean_exit_hands_over() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let mut holder = scripted_process(&bench);
    holder.send(&format!("acquire a {AN_HOUR}"));
    holder.receive("granted");
    let waiting = tokio::spawn({
        let lock = client.lock("a");
        async move { lock.acquire().await }
    });
    until_waiters(&client, 1).await;
    holder.finish();
    let guard = wait::within_timeout("the lock", waiting).await.unwrap().unwrap();
    assert!(guard.is_valid());
}

#[tokio::test]
async fn a_release_wakes_the_successor_in_another_process() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").acquire().await.unwrap();
    let successor = waiter(&bench, &client, AN_HOUR, 1).await;
    let token = guard.token().get();
    guard.release().await.unwrap();
    assert!(successor.receive("granted").parse::<u64>().unwrap() > token);
}

/// Scenario 38.
#[tokio::test]
async fn the_lock_is_not_handed_over_to_a_dead_waiter() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").acquire().await.unwrap();
    let mut first = waiter(&bench, &client, AN_HOUR, 1).await;
    let second = waiter(&bench, &client, AN_HOUR, 2).await;
    first.kill();
    guard.release().await.unwrap();
    second.receive("granted");
}

/// Scenario 51: the ticket of the first waiter would live for an hour.
#[tokio::test]
async fn holder_and_first_waiter_die_together() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let mut holder = scripted_process(&bench);
    holder.send("acquire a 1000");
    holder.receive("granted");
    let mut first = waiter(&bench, &client, AN_HOUR, 1).await;
    let second = tokio::spawn({
        let lock = client.lock("a").ttl(Duration::from_secs(3));
        async move { lock.acquire().await }
    });
    until_waiters(&client, 2).await;
    holder.kill();
    first.kill();
    drop(wait::within_timeout("the lock", second).await.unwrap().unwrap());
}

/// Scenario 45: a grant that was handed over to a stopped process is released and never returned to its caller.
#[tokio::test]
async fn a_stopped_waiter_does_not_return_an_expired_grant() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").acquire().await.unwrap();
    let stopped = waiter(&bench, &client, "1000", 1).await;
    pause_between_writes(&stopped, &bench);
    guard.release().await.unwrap();
    // It was handed over to the stopped process, whose lease must expire first.
    let later = wait::within_timeout("the lock", client.lock("a").acquire()).await.unwrap();
    stopped.resume();
    until_waiters(&client, 1).await;
    assert_eq!(stopped.received(), Vec::<String>::new(), "it has returned an expired grant");
    let token = later.token().get();
    later.release().await.unwrap();
    assert!(stopped.receive("granted").parse::<u64>().unwrap() > token);
}

/// Scenario 41: no client gets a busy error, and no update is lost.
#[tokio::test]
async fn eight_processes_increment_a_counter_without_errors() {
    let bench = SqliteBench::new();
    let file = bench.folder().join("counter");
    std::fs::write(&file, "0").unwrap();
    let mut processes: Vec<ScriptedProcess> = (0..8).map(|_| scripted_process(&bench)).collect();
    for process in &mut processes {
        process.send(&format!("count_on a 50 {}", file.display()));
    }
    for process in &processes {
        process.receive("counted");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "400");
    assert_eq!((bench.count("holders"), bench.count("tickets")), (0, 0));
}

/// The process that waits for the turn holds the gate. If it is stopped there, it must not block the others.
#[tokio::test]
async fn a_process_that_is_stopped_at_the_gate_does_not_block_others() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let mut stopped = scripted_process(&bench);
    stopped.send("acquire warm 60000");
    stopped.receive("granted");
    let (gate, turn) = (bench.turnstile("gate"), bench.turnstile("turn"));
    flock(&turn, FlockOperation::LockExclusive).unwrap();
    stopped.send("acquire b 60000");
    wait::until("it to hold the gate", async || {
        let free = flock(&gate, FlockOperation::NonBlockingLockExclusive).is_ok();
        if free {
            flock(&gate, FlockOperation::Unlock).unwrap();
        }
        !free
    })
    .await;
    stopped.pause();
    flock(&turn, FlockOperation::Unlock).unwrap();
    let guard = wait::within_timeout("the lock", client.lock("c").acquire()).await.unwrap();
    guard.release().await.unwrap();
    stopped.resume();
    stopped.receive("granted");
}

#[tokio::test]
async fn a_client_without_waiters_does_not_poll() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").acquire().await.unwrap();
    let mut idle = waiter(&bench, &client, AN_HOUR, 1).await;
    guard.release().await.unwrap();
    idle.receive("granted");
    idle.send("release");
    idle.receive("released");
    idle.send("switches");
    let before: u64 = idle.receive("switches").parse().unwrap();
    // A client with waiters would poll ten times in this time.
    wait::elapse(Duration::from_secs(1)).await;
    idle.send("switches");
    let after: u64 = idle.receive("switches").parse().unwrap();
    assert!(after - before <= 2, "the idle writer woke {} times", after - before);
}
