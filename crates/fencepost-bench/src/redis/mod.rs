//! Redis: the server, its subjects, and the benches that only Redis has.

mod bare;
mod commandstats;
mod held_locks;
mod node;
mod peers;
mod queue;
mod rslock;

use std::process::ExitCode;
use std::time::Duration;

use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use redis::Connection;

use crate::compare::docs::Page;
use crate::compare::{Bench, BenchServer, Build, benches, ours, subject};

/// A private server, without persistence.
pub(crate) struct Redis {
    server: RedisServer,
    /// For reading statistics, beside the connections of the subjects.
    observer: Connection,
}

impl BenchServer for Redis {
    const NAME: &'static str = "redis";
    const TITLE: &'static str = "Redis";
    const FLOOR: &'static str = bare::NAME;
    const PARTICIPANTS: &'static str = "fencepost is fenced, fair and renewed; the others are not fenced";
    const TOOL: Option<(&'static str, &'static str)> = Some(bare::TOOL);
    const SUBJECTS: &'static [(&'static str, Build)] = &[
        (ours::NAME, || Ok(ours::subject())),
        ("low-latency", || Ok(ours::low_latency())),
        ("rslock", || Ok(rslock::subject())),
        ("redsync", peers::redsync),
        ("node-redlock", node::subject),
        ("redis-py", peers::redis_py),
        ("python-redis-lock", peers::python_redis_lock),
        (bare::NAME, || Ok(bare::subject())),
    ];
    const BENCHES: &'static [(&'static str, Bench<Self>)] = &[
        ("uncontended", benches::uncontended),
        ("contended", benches::contended),
        ("held", held_locks::measure),
        ("queue", queue::measure),
    ];

    fn start() -> Result<Self, String> {
        subject::require("redis-server")?;
        let server = RedisServer::start(&RedisServerConfig::plain());
        let observer = redis::Client::open(server.url()).and_then(|client| client.get_connection());
        let observer = observer.map_err(|why| format!("redis-server does not reply: {why}"))?;
        Ok(Self { server, observer })
    }

    fn url(&self) -> String {
        self.server.url()
    }

    fn clear(&mut self) -> Result<(), String> {
        redis::cmd("FLUSHALL").exec(&mut self.observer).map_err(|why| format!("FLUSHALL: {why}"))
    }

    fn describe(&mut self) -> Result<String, String> {
        let info = commandstats::info(&mut self.observer, "server")?;
        let version = commandstats::field(&info, "redis_version").unwrap_or("unknown");
        Ok(format!("Redis {version}, on the same machine, without persistence"))
    }

    fn tool(&self, tasks: usize, length: Duration) -> Result<u32, String> {
        bare::benchmark(&self.server, tasks, length)
    }

    fn add_sections(page: &mut Page<'_>) {
        let sent = "commands sent per grant";
        let scripted = "commands in scripts per grant";
        let to = "bytes to the server per grant";
        let from = "bytes from the server per grant";
        let columns = [
            ("sent, 1 waiter", 1, sent),
            ("16", 16, sent),
            ("256", 256, sent),
            ("in scripts, 1 waiter", 1, scripted),
            ("16", 16, scripted),
            ("256", 256, scripted),
            ("bytes to, 1 waiter", 1, to),
            ("16", 16, to),
            ("256", 256, to),
            ("bytes from, 1 waiter", 1, from),
            ("16", 16, from),
            ("256", 256, from),
        ];
        page.table("Commands and bytes per grant, in a queue that never ends", "queue", &columns);
        page.list("10,000 held locks, all renewals due at once", "held");
    }
}

/// Runs the worker of this kind, if it is one of those that only Redis has.
pub(crate) fn serve(sort: &str, words: &[String]) -> Option<ExitCode> {
    Some(match sort {
        "rslock" => rslock::serve(words),
        "bare" => bare::serve(words),
        "holder" => held_locks::serve(words),
        _ => return None,
    })
}
