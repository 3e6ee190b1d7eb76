//! The cost of a queue that never ends for the server.

use std::time::Duration;

use super::{Redis, commandstats};
use crate::compare::{BenchServer, Setting, hold_times, ours};
use crate::report::Report;
use crate::rounds::{Reading, Rounds};
use crate::statistics::number;
use crate::workers::{Order, WorkerGroup};

/// A queue of 1, 16 and 256 that never ends: the cost of each hand-over for the server.
pub(crate) fn measure(setting: &mut Setting<Redis>, report: &mut Report) {
    let mut rounds = Rounds::new("queue", Redis::NAME);
    for waiters in [1, 16, 256] {
        for subject in setting.locks() {
            let order = Order {
                // One holds the lock, the others wait.
                tasks: waiters + 1,
                hold: Duration::from_millis(1),
                think: Duration::ZERO,
                ..Order::contended(&setting.server.url(), 0, setting.length)
            };
            let values = setting.run_on_empty(&subject, report, |redis| {
                let mut group = WorkerGroup::start(&subject.program, &order, 1)?;
                commandstats::begin(&mut redis.observer)?;
                let found = group.work()?;
                let counted = commandstats::counted(&mut redis.observer, sends(subject.name))?;
                Ok((hold_times::count(&found), counted))
            });
            let Some((turns, counted)) = values else { continue };
            let value = |metric, count: u64, unit| {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                Reading { metric, value: number(count) / number(turns), unit }
            };
            let values = [
                value("commands sent per grant", counted.sent, "commands"),
                value("commands in scripts per grant", counted.scripted, "commands"),
                value("bytes to the server per grant", counted.bytes_in, "bytes"),
                value("bytes from the server per grant", counted.bytes_out, "bytes"),
            ];
            rounds.add(subject.name, waiters, turns, &values);
        }
    }
    rounds.report(report);
}

/// The commands that a subject sends itself. All others in the server's statistics were run by its scripts.
fn sends(subject: &str) -> &'static [&'static str] {
    match subject {
        ours::NAME | ours::LOW_LATENCY => &["eval", "evalsha", "fcall", "subscribe"],
        // It sets the key by a script as well.
        "node-redlock" => &["eval", "evalsha"],
        "python-redis-lock" => &["set", "blpop", "eval", "evalsha"],
        _ => &["set", "eval", "evalsha"],
    }
}
