//! The floors: two bare round trips with the same client library, and redis-benchmark.

use std::process::{Command, ExitCode};
use std::time::Duration;

use fencepost_testkit::servers::redis::RedisServer;
use redis::aio::MultiplexedConnection;

use crate::compare::subject::{Subject, TASKS, locked_version};
use crate::locking::Locking;
use crate::workers;

/// The name of the bare round trips in the figures.
pub(crate) const NAME: &str = "two bare round trips";
/// The program.
const BENCHMARK: &str = "redis-benchmark";
/// Its name in the figures, and what it does.
pub(crate) const TOOL: (&str, &str) =
    (BENCHMARK, "`SET`, as many in flight on one connection as there are tasks; a pair is two of them");

pub(crate) fn subject() -> Subject {
    let version = format!("PING twice, redis crate {}", locked_version("redis"));
    Subject { name: NAME, version, program: workers::this_program("bare"), tasks: TASKS }
}

struct RoundTrip(MultiplexedConnection);

impl RoundTrip {
    async fn ping(&self) {
        let mut connection = self.0.clone();
        redis::cmd("PING").exec_async(&mut connection).await.expect("the server replies");
    }
}

impl Locking for RoundTrip {
    type Held = ();

    async fn take(&self) {
        self.ping().await;
    }

    async fn release(&self, (): ()) {
        self.ping().await;
    }
}

pub(crate) fn serve(words: &[String]) -> ExitCode {
    workers::serve(words, async |url: &str| {
        let client = redis::Client::open(url).map_err(|why| format!("redis: {why}"))?;
        let connection =
            client.get_multiplexed_async_connection().await.map_err(|why| format!("redis: {why}"))?;
        Ok(move |_name: String| RoundTrip(connection.clone()))
    })
}

/// Measures commands per second with redis-benchmark for about this long, with this many in flight on one connection: the
/// most that a client that shares its connection could reach.
pub(crate) fn benchmark(server: &RedisServer, tasks: usize, length: Duration) -> Result<u32, String> {
    let short = commands_per_second(server, tasks, 20_000)?;
    commands_per_second(server, tasks, u64::from(short) * length.as_secs().max(1))
}

fn commands_per_second(server: &RedisServer, tasks: usize, commands: u64) -> Result<u32, String> {
    let (port, tasks, commands) = (server.port().to_string(), tasks.to_string(), commands.to_string());
    let done = Command::new(BENCHMARK)
        .args(["-h", "127.0.0.1", "-p", &port, "-c", "1", "-P", &tasks, "-n", &commands, "--csv"])
        .args(["SET", "floor", "x"])
        .output()
        .map_err(|why| format!("it cannot be started: {why}"))?;
    let output = String::from_utf8_lossy(&done.stdout);
    read(&output).ok_or_else(|| format!("its output cannot be read: {output}"))
}

/// The second column of its last line, without the fraction.
fn read(csv: &str) -> Option<u32> {
    let line = csv.lines().rfind(|line| !line.trim().is_empty())?;
    line.split("\",\"").nth(1)?.trim_matches('"').split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_its_csv() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET a,b x\",\"113636.37\",\"0.237\"\n";
        assert_eq!(read(csv), Some(113_636));
        assert_eq!(read("\"test\",\"rps\"\n"), None);
        assert_eq!(read(""), None);
    }
}
