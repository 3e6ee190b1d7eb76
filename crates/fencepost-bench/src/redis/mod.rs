//! Redis: the server, who takes locks there, and what can be measured only there.

mod bare;
mod commandstats;
mod held;
mod line;
mod node;
mod peers;
mod rslock;

use std::process::ExitCode;
use std::time::Duration;

use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use redis::Connection;

use crate::compare::docs::Page;
use crate::compare::{Bench, Build, Storage, benches, subject, us};

/// A private server, without persistence.
pub(crate) struct Redis {
    server: RedisServer,
    /// Looks at the server, beside those that are measured.
    look: Connection,
}

impl Storage for Redis {
    const NAME: &'static str = "redis";
    const TITLE: &'static str = "Redis";
    const FLOOR: &'static str = bare::NAME;
    const PARTICIPANTS: &'static str = "fencepost is fenced, fair and renewed; the others are not fenced";
    const TOOL: Option<(&'static str, &'static str)> = Some(bare::TOOL);
    const SUBJECTS: &'static [(&'static str, Build)] = &[
        (us::NAME, || Ok(us::subject())),
        ("low-latency", || Ok(us::low_latency())),
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
        ("held", held::measure),
        ("line", line::measure),
    ];

    fn start() -> Result<Self, String> {
        subject::require("redis-server")?;
        let server = RedisServer::start(&RedisServerConfig::plain());
        let look = redis::Client::open(server.url()).and_then(|client| client.get_connection());
        let look = look.map_err(|why| format!("redis-server does not answer: {why}"))?;
        Ok(Self { server, look })
    }

    fn url(&self) -> String {
        self.server.url()
    }

    fn clear(&mut self) -> Result<(), String> {
        redis::cmd("FLUSHALL").exec(&mut self.look).map_err(|why| format!("FLUSHALL: {why}"))
    }

    fn described(&mut self) -> Result<String, String> {
        let info = commandstats::info(&mut self.look, "server")?;
        let version = commandstats::field(&info, "redis_version").unwrap_or("unknown");
        Ok(format!("Redis {version}, on the same machine, without persistence"))
    }

    fn tool(&self, tasks: usize, length: Duration) -> Result<u32, String> {
        bare::benchmark(&self.server, tasks, length)
    }

    fn say_more(page: &mut Page<'_>) {
        let sent = "commands sent per turn";
        let scripted = "commands in scripts per turn";
        let to = "bytes to the server per turn";
        let from = "bytes from the server per turn";
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
        page.table("Commands and bytes per turn, in a line that never ends", "line", &columns);
        page.list("10,000 held locks, all renewals due at once", "held");
    }
}

/// The worker of this sort, if it is one of those that only Redis has.
pub(crate) fn serve(sort: &str, words: &[String]) -> Option<ExitCode> {
    Some(match sort {
        "rslock" => rslock::serve(words),
        "bare" => bare::serve(words),
        "holder" => held::serve(words),
        _ => return None,
    })
}
