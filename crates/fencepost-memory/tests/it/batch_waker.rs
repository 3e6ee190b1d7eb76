//! Callers are woken in batches, one per runtime; none waits for another runtime than its own.

use std::sync::mpsc;
use std::time::Duration;

use fencepost_core::{Client, Options};
use fencepost_memory::Memory;
use fencepost_testkit::proxy::OpKind;
use fencepost_testkit::rng::Rng;
use fencepost_testkit::{TestBench, wait};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::bench::MemoryBench;

const LONG: Duration = Duration::from_secs(120);

fn single_threaded() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn cycle(client: Client, name: String) {
    client.lock(name).ttl(LONG).acquire().await.unwrap().release().await.unwrap();
}

/// Spawns tasks that each acquire and release a lock of their own.
fn cycles(client: &Client, prefix: &str, tasks: usize) -> Vec<JoinHandle<()>> {
    (0..tasks).map(|task| tokio::spawn(cycle(client.clone(), format!("{prefix}/{task}")))).collect()
}

async fn all(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        wait::within_timeout("a task to be woken", task).await.unwrap();
    }
}

#[test]
fn a_blocked_runtime_delays_only_its_own_callers() {
    let memory = Memory::new();
    let client = memory.client().unwrap();
    let ((is_blocked, blocked), (unblock, unblocked)) = (mpsc::channel(), mpsc::channel());
    let thread = std::thread::spawn({
        let client = client.clone();
        move || {
            single_threaded().block_on(async {
                let tasks = cycles(&client, "blocked", 16);
                // Their requests are sent; the replies arrive while their only thread does not run them.
                tokio::task::yield_now().await;
                is_blocked.send(()).unwrap();
                unblocked.recv().unwrap();
                all(tasks).await;
            });
        }
    });
    blocked.recv().unwrap();
    single_threaded().block_on(async {
        for _ in 0..20 {
            all(cycles(&client, "free", 16)).await;
        }
    });
    unblock.send(()).unwrap();
    thread.join().unwrap();
    assert!(memory.is_clean());
}

/// As if `fencepost::blocking` was called inside a runtime: the blocked thread is the only one that could run the waker task.
#[test]
fn a_caller_that_blocks_its_runtime_is_answered_among_tasks() {
    let memory = Memory::new();
    let client = memory.client().unwrap();
    single_threaded().block_on(async {
        for _ in 0..50 {
            let tasks = cycles(&client, "task", 16);
            tokio::task::yield_now().await;
            futures_executor::block_on(cycle(client.clone(), "blocking".into()));
            all(tasks).await;
        }
    });
}

#[test]
fn callers_of_different_executors_are_answered_concurrently() {
    let memory = Memory::new();
    let client = memory.client().unwrap();
    let thread = |number| {
        let client = client.clone();
        std::thread::spawn(move || {
            for _ in 0..50 {
                futures_executor::block_on(cycle(client.clone(), format!("thread/{number}")));
            }
        })
    };
    let threads: Vec<_> = (0..8).map(thread).collect();
    single_threaded().block_on(async {
        for _ in 0..50 {
            all(cycles(&client, "task", 8)).await;
        }
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_low_latency_client_answers_few_and_many() {
    let memory = Memory::new();
    let client = memory.client_with(Options::new().low_latency()).unwrap();
    single_threaded().block_on(async {
        for round in 0..100 {
            all(cycles(&client, "task", 1 + round % 8)).await;
        }
    });
    assert!(memory.is_clean());
}

#[test]
fn a_runtime_that_ends_while_replies_are_in_flight_leaves_nothing() {
    single_threaded().block_on(async {
        let bench = MemoryBench::new();
        let (client, proxy) = bench.proxied().await;
        for round in 1..=20 {
            let ending = Builder::new_multi_thread().worker_threads(2).build().unwrap();
            proxy.pause();
            for task in 0..64 {
                ending.spawn(cycle(client.clone(), format!("ending/{task}")));
            }
            wait::until("they are in flight", async || proxy.count(OpKind::Acquire) >= round).await;
            proxy.resume();
            ending.shutdown_background();
            all(cycles(&client, "surviving", 16)).await;
        }
        wait::until("nothing to be stored", async || {
            bench.peek().await == fencepost_testkit::StoredCounts::default()
        })
        .await;
    });
}

#[test]
fn ten_thousand_acquires_most_of_them_dropped_leave_nothing() {
    let memory = Memory::new();
    let client = memory.client().unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut rng = Rng::new(4);
        for _ in 0..100 {
            let tasks = cycles(&client, "many", 100);
            let mut kept = Vec::new();
            for (number, task) in tasks.into_iter().enumerate() {
                for _ in 0..rng.below(3) {
                    tokio::task::yield_now().await;
                }
                if number % 4 == 0 {
                    kept.push(task);
                } else {
                    task.abort();
                }
            }
            all(kept).await;
        }
        wait::until("nothing to be stored", async || memory.is_clean()).await;
    });
}
