//! Ten thousand held locks whose renewal is due at the same moment: how long the wave takes, and how long the server
//! does nothing else.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use fencepost::clock::Clock;
use fencepost_testkit::wait::block_thread_for;
use redis::Connection;
use rustix::process::{Pid, Signal, kill_process};

use super::{Redis, commandstats};
use crate::compare::{Setting, Storage, us};
use crate::held::{LOCKS, resident};
use crate::report::Report;
use crate::rounds::{Reading, Rounds};
use crate::statistics::number;
use crate::workers::{self, Found, Worker};

const TTL: Duration = Duration::from_secs(12);
/// Longer than a third of the ttl, when renewals are due, and far shorter than the ttl.
const STOPPED: Duration = Duration::from_millis(4_500);
/// A wave is over when nothing has come for so long.
const QUIET: Duration = Duration::from_millis(200);

pub(crate) fn measure(setting: &mut Setting<Redis>, report: &mut Report) {
    let Some(subject) = setting.subjects.iter().find(|subject| subject.name == us::NAME).cloned() else {
        return;
    };
    let mut rounds = Rounds::new("held", Redis::NAME);
    let waves = setting.rounds;
    let done = setting.tried(&subject, report, |redis| {
        let held = Held::begin(&redis.url(), &mut redis.look)?;
        rounds.add(us::NAME, LOCKS, LOCKS, &held.costs());
        for _ in 0..waves {
            let wave = held.wave(&mut redis.look)?;
            rounds.add(us::NAME, LOCKS, LOCKS, &wave.values());
        }
        held.end()
    });
    if done.is_some() {
        rounds.tell(report);
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
    fn begin(url: &str, look: &mut Connection) -> Result<Self, String> {
        let words = workers::this_program("holder").into_iter().chain([OsString::from(url)]);
        let mut worker = Worker::start(&words.collect::<Vec<_>>())?;
        worker.is_ready()?;
        let process = worker.id().to_string();
        let (client, server) = (resident(&process), used(look)?);
        worker.begin()?;
        let taking = worker.found()?.wall;
        let client_bytes = (resident(&process) - client) / number(LOCKS);
        let server_bytes = (used(look)? - server) / number(LOCKS);
        Ok(Self { worker, taking, client_bytes, server_bytes })
    }

    fn costs(&self) -> [Reading; 3] {
        [
            Reading { metric: "taking them all", value: self.taking * 1e3, unit: "ms" },
            Reading { metric: "memory per lock, client", value: self.client_bytes, unit: "bytes" },
            Reading { metric: "memory per lock, server", value: self.server_bytes, unit: "bytes" },
        ]
    }

    /// Stops the process until all its renewals are due, lets it go on, and looks at what comes.
    fn wave(&self, look: &mut Connection) -> Result<Wave, String> {
        let process =
            i32::try_from(self.worker.id()).ok().and_then(Pid::from_raw).ok_or("it has no number")?;
        let signal =
            |signal| kill_process(process, signal).map_err(|why| format!("it takes no signal: {why}"));
        signal(Signal::STOP)?;
        block_thread_for(STOPPED);
        command(look, &["CONFIG", "SET", "slowlog-max-len", "100000"])?;
        command(look, &["CONFIG", "SET", "slowlog-log-slower-than", "0"])?;
        command(look, &["SLOWLOG", "RESET"])?;
        commandstats::begin(look)?;
        let clock = Clock::system();
        let begun = clock.now();
        signal(Signal::CONT)?;
        let (mut calls, mut last) = (0, begun);
        // It may take a moment to begin, but then it does not pause for long.
        while calls == 0 || clock.now() < last + QUIET {
            block_thread_for(Duration::from_millis(1));
            let now = commandstats::script_calls(&commandstats::info(look, "commandstats")?);
            if now > calls {
                (calls, last) = (now, clock.now());
            }
            if clock.now() > begun + TTL {
                return Err("no renewal has come".to_owned());
            }
        }
        command(look, &["CONFIG", "SET", "slowlog-log-slower-than", "-1"])?;
        let (longest, total) = slowest(look)?;
        Ok(Wave { wall: last.since(begun).as_secs_f64(), calls, longest, total })
    }

    fn end(mut self) -> Result<(), String> {
        self.worker.end()
    }
}

/// One renewal of all.
#[derive(Debug)]
struct Wave {
    wall: f64,
    calls: u64,
    /// Microseconds of the longest command, and of all.
    longest: u32,
    total: u32,
}

impl Wave {
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

/// The microseconds of the slowest call of a script, and of all of them.
fn slowest(look: &mut Connection) -> Result<(u32, u32), String> {
    type Entry = (u64, u64, u32, Vec<Vec<u8>>, String, String);
    let entries: Vec<Entry> = redis::cmd("SLOWLOG")
        .arg("GET")
        .arg("-1")
        .query(look)
        .map_err(|why| format!("SLOWLOG GET: {why}"))?;
    let scripts = entries.iter().filter(|(_, _, _, words, ..)| {
        let first = words.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        first.starts_with(b"eval") || first.starts_with(b"fcall")
    });
    let times: Vec<u32> = scripts.map(|(_, _, micros, ..)| *micros).collect();
    Ok((times.iter().copied().max().unwrap_or(0), times.iter().sum()))
}

fn used(look: &mut Connection) -> Result<f64, String> {
    let info = commandstats::info(look, "memory")?;
    let used = commandstats::field(&info, "used_memory").and_then(|used| used.parse().ok());
    used.ok_or_else(|| "the server does not say how much memory it uses".to_owned())
}

fn command(look: &mut Connection, words: &[&str]) -> Result<(), String> {
    redis::cmd(words[0]).arg(&words[1..]).exec(look).map_err(|why| format!("{}: {why}", words.join(" ")))
}

/// The process that holds them, until its standard input ends.
pub(crate) fn serve(words: &[String]) -> ExitCode {
    let [url] = words else { return ExitCode::from(2) };
    workers::runtime().block_on(async {
        let client = match fencepost::connect(url).await {
            Ok(client) => client,
            Err(why) => return workers::failed(&format!("fencepost: {why}")),
        };
        // What every client needs once is not the locks' own.
        drop(take(&client, 100).await);
        workers::ready();
        let clock = Clock::system();
        let start = clock.now();
        let guards = take(&client, LOCKS).await;
        workers::tell(&Found { wall: clock.now().since(start).as_secs_f64(), ..Found::default() });
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

/// Takes so many at the same time.
async fn take(client: &fencepost::Client, count: usize) -> Vec<fencepost::Guard> {
    let tasks: Vec<_> = (0..count)
        .map(|number| {
            let lock = client.lock(format!("job/{number}")).ttl(TTL);
            tokio::spawn(async move { lock.acquire().await.expect("nobody is in the way") })
        })
        .collect();
    let mut guards = Vec::with_capacity(count);
    for task in tasks {
        guards.push(task.await.expect("no panic"));
    }
    guards
}
