//! Ten thousand held locks whose renewals are due at the same moment: how long the burst takes, and how long the server is
//! blocked by it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use fencepost::clock::Clock;
use fencepost_testkit::wait::block_thread_for;
use redis::Connection;
use rustix::process::{Pid, Signal, kill_process};

use super::{Redis, commandstats};
use crate::compare::{BenchServer, Setting, ours};
use crate::held_locks::{LOCKS, resident};
use crate::report::Report;
use crate::rounds::{Reading, Rounds};
use crate::statistics::number;
use crate::workers::{self, Worker, WorkerResult};

const TTL: Duration = Duration::from_secs(12);
/// Longer than a third of the ttl, when renewals are due, and far shorter than the ttl.
const STOPPED: Duration = Duration::from_millis(4_500);
/// The burst is over when no renewal has arrived for this long.
const QUIET: Duration = Duration::from_millis(200);

pub(crate) fn measure(setting: &mut Setting<Redis>, report: &mut Report) {
    let Some(subject) = setting.subjects.iter().find(|subject| subject.name == ours::NAME).cloned() else {
        return;
    };
    let mut rounds = Rounds::new("held", Redis::NAME);
    let waves = setting.rounds;
    let done = setting.run_on_empty(&subject, report, |redis| {
        let held = Held::begin(&redis.url(), &mut redis.observer)?;
        rounds.add(ours::NAME, LOCKS, LOCKS, &held.costs());
        for _ in 0..waves {
            let wave = held.measure_burst(&mut redis.observer)?;
            rounds.add(ours::NAME, LOCKS, LOCKS, &wave.values());
        }
        held.end()
    });
    if done.is_some() {
        rounds.report(report);
    }
}

/// A process that holds them all.
struct Held {
    worker: Worker,
    taking: f64,
    client_bytes: f64,
    server_bytes: f64,
}

impl Held {
    fn begin(url: &str, observer: &mut Connection) -> Result<Self, String> {
        let words = workers::this_program("holder").into_iter().chain([OsString::from(url)]);
        let mut worker = Worker::start(&words.collect::<Vec<_>>())?;
        worker.is_ready()?;
        let process = worker.id().to_string();
        let (client, server) = (resident(&process), used(observer)?);
        worker.begin()?;
        let taking = worker.found()?.wall;
        let client_bytes = (resident(&process) - client) / number(LOCKS);
        let server_bytes = (used(observer)? - server) / number(LOCKS);
        Ok(Self { worker, taking, client_bytes, server_bytes })
    }

    fn costs(&self) -> [Reading; 3] {
        [
            Reading { metric: "taking them all", value: self.taking * 1e3, unit: "ms" },
            Reading { metric: "memory per lock, client", value: self.client_bytes, unit: "bytes" },
            Reading { metric: "memory per lock, server", value: self.server_bytes, unit: "bytes" },
        ]
    }

    /// Pauses the process until all its renewals are due, resumes it, and measures the burst.
    fn measure_burst(&self, observer: &mut Connection) -> Result<RenewalBurst, String> {
        let process =
            i32::try_from(self.worker.id()).ok().and_then(Pid::from_raw).ok_or("it has no process id")?;
        let signal =
            |signal| kill_process(process, signal).map_err(|why| format!("it cannot be signalled: {why}"));
        signal(Signal::STOP)?;
        block_thread_for(STOPPED);
        command(observer, &["CONFIG", "SET", "slowlog-max-len", "100000"])?;
        command(observer, &["CONFIG", "SET", "slowlog-log-slower-than", "0"])?;
        command(observer, &["SLOWLOG", "RESET"])?;
        commandstats::begin(observer)?;
        let clock = Clock::system();
        let begun = clock.now();
        signal(Signal::CONT)?;
        let (mut calls, mut last) = (0, begun);
        // It may take a moment to start, but then it does not pause for long.
        while calls == 0 || clock.now() < last + QUIET {
            block_thread_for(Duration::from_millis(1));
            let now = commandstats::script_calls(&commandstats::info(observer, "commandstats")?);
            if now > calls {
                (calls, last) = (now, clock.now());
            }
            if clock.now() > begun + TTL {
                return Err("no renewal has arrived".to_owned());
            }
        }
        command(observer, &["CONFIG", "SET", "slowlog-log-slower-than", "-1"])?;
        let (longest, total) = slowest(observer)?;
        Ok(RenewalBurst { wall: last.since(begun).as_secs_f64(), calls, longest, total })
    }

    fn end(mut self) -> Result<(), String> {
        self.worker.end()
    }
}

/// One renewal of all locks.
#[derive(Debug)]
struct RenewalBurst {
    wall: f64,
    calls: u64,
    /// Microseconds of the longest command, and of all.
    longest: u32,
    total: u32,
}

impl RenewalBurst {
    fn values(&self) -> [Reading; 4] {
        let calls = number(usize::try_from(self.calls).unwrap_or(usize::MAX));
        [
            Reading { metric: "renewal of all", value: self.wall * 1e3, unit: "ms" },
            Reading {
                metric: "renewal of all, on the server",
                value: f64::from(self.total) / 1e3,
                unit: "ms",
            },
            Reading { metric: "renewal of all, calls", value: calls, unit: "calls" },
            Reading { metric: "longest single call", value: f64::from(self.longest) / 1e3, unit: "ms" },
        ]
    }
}

/// Returns the microseconds of the slowest call of a script, and of all of them.
fn slowest(observer: &mut Connection) -> Result<(u32, u32), String> {
    type Entry = (u64, u64, u32, Vec<Vec<u8>>, String, String);
    let entries: Vec<Entry> = redis::cmd("SLOWLOG")
        .arg("GET")
        .arg("-1")
        .query(observer)
        .map_err(|why| format!("SLOWLOG GET: {why}"))?;
    let scripts = entries.iter().filter(|(_, _, _, words, ..)| {
        let first = words.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        first.starts_with(b"eval") || first.starts_with(b"fcall")
    });
    let times: Vec<u32> = scripts.map(|(_, _, micros, ..)| *micros).collect();
    Ok((times.iter().copied().max().unwrap_or(0), times.iter().sum()))
}

fn used(observer: &mut Connection) -> Result<f64, String> {
    let info = commandstats::info(observer, "memory")?;
    let used = commandstats::field(&info, "used_memory").and_then(|used| used.parse().ok());
    used.ok_or_else(|| "the server does not report its memory".to_owned())
}

fn command(observer: &mut Connection, words: &[&str]) -> Result<(), String> {
    redis::cmd(words[0]).arg(&words[1..]).exec(observer).map_err(|why| format!("{}: {why}", words.join(" ")))
}

/// Runs the process that holds them, until its standard input ends.
pub(crate) fn serve(words: &[String]) -> ExitCode {
    let [url] = words else { return ExitCode::from(2) };
    workers::runtime().block_on(async {
        let client = match fencepost::connect(url).await {
            Ok(client) => client,
            Err(why) => return workers::failed(&format!("fencepost: {why}")),
        };
        // What every client needs once is not counted.
        drop(take(&client, 100).await);
        workers::ready();
        let clock = Clock::system();
        let start = clock.now();
        let guards = take(&client, LOCKS).await;
        workers::print_results(&WorkerResult {
            wall: clock.now().since(start).as_secs_f64(),
            ..WorkerResult::default()
        });
        let mut rest = String::new();
        std::io::stdin().read_line(&mut rest).expect("it ends");
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        drop(guards);
        client.close().await;
        if lost == 0 {
            ExitCode::SUCCESS
        } else {
            workers::failed(&format!("fencepost: {lost} locks were lost"))
        }
    })
}

/// Acquires this many concurrently.
async fn take(client: &fencepost::Client, count: usize) -> Vec<fencepost::Guard> {
    let tasks: Vec<_> = (0..count)
        .map(|number| {
            let lock = client.lock(format!("job/{number}")).ttl(TTL);
            tokio::spawn(async move { lock.acquire().await.expect("the lock is free") })
        })
        .collect();
    let mut guards = Vec::with_capacity(count);
    for task in tasks {
        guards.push(task.await.expect("no panic"));
    }
    guards
}
