//! What a line that never ends costs the server.

use std::time::Duration;

use super::{Redis, commandstats};
use crate::compare::{Setting, Storage, turns, us};
use crate::report::Report;
use crate::rounds::{Reading, Rounds};
use crate::statistics::number;
use crate::workers::{Crew, Order};

/// A line of 1, 16 and 256 that never ends: what each hand-over costs the server.
pub(crate) fn measure(setting: &mut Setting<Redis>, report: &mut Report) {
    let mut rounds = Rounds::new("line", Redis::NAME);
    for waiters in [1, 16, 256] {
        for subject in setting.locks() {
            let order = Order {
                // One has it, the others wait.
                tasks: waiters + 1,
                hold: Duration::from_millis(1),
                think: Duration::ZERO,
                ..Order::contended(&setting.storage.url(), 0, setting.length)
            };
            let values = setting.tried(&subject, report, |redis| {
                let mut crew = Crew::start(&subject.program, &order, 1)?;
                commandstats::begin(&mut redis.look)?;
                let found = crew.work()?;
                let counted = commandstats::counted(&mut redis.look, sends(subject.name))?;
                Ok((turns::count(&found), counted))
            });
            let Some((turns, counted)) = values else { continue };
            let value = |metric, count: u64, unit| {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                Reading { metric, value: number(count) / number(turns), unit }
            };
            let values = [
                value("commands sent per turn", counted.sent, "commands"),
                value("commands in scripts per turn", counted.scripted, "commands"),
                value("bytes to the server per turn", counted.bytes_in, "bytes"),
                value("bytes from the server per turn", counted.bytes_out, "bytes"),
            ];
            rounds.add(subject.name, waiters, turns, &values);
        }
    }
    rounds.tell(report);
}

/// The commands that a subject sends itself. All others in the server's statistics were run by its scripts.
fn sends(subject: &str) -> &'static [&'static str] {
    match subject {
        us::NAME | us::LOW_LATENCY => &["eval", "evalsha", "fcall", "subscribe"],
        // It sets the key by a script, too.
        "node-redlock" => &["eval", "evalsha"],
        "python-redis-lock" => &["set", "blpop", "eval", "evalsha"],
        _ => &["set", "eval", "evalsha"],
    }
}
