//! The floor of the server: pgbench, a prepared update of one row.

use std::process::Command;
use std::time::Duration;

use fencepost_testkit::servers::postgres::{PostgresServer, program};

/// Its name in the figures, and what it does.
pub(crate) const TOOL: (&str, &str) = (
    "pgbench",
    "a prepared `UPDATE` of one row, with as many connections as there are tasks, at most 64; a pair is two of them",
);

/// Measures statements per second.
pub(crate) fn statements_per_second(
    server: &PostgresServer,
    tasks: usize,
    length: Duration,
) -> Result<u32, String> {
    let rows = "CREATE TABLE IF NOT EXISTS floor_rows (id integer PRIMARY KEY, token bigint NOT NULL) WITH (fillfactor = 50);
        INSERT INTO floor_rows SELECT n, 0 FROM generate_series(1, 256) AS n ON CONFLICT DO NOTHING";
    server.try_psql(super::DATABASE, rows)?;
    let script = tempfile::NamedTempFile::new().map_err(|why| why.to_string())?;
    let update = "\\set id random(1, 256)\nUPDATE floor_rows SET token = token + 1 WHERE id = :id;\n";
    std::fs::write(script.path(), update).map_err(|why| why.to_string())?;
    let clients = tasks.min(64).to_string();
    let threads = tasks.min(2).to_string();
    let done = Command::new(program("pgbench"))
        .args(["--no-vacuum", "--protocol=prepared", "--client", &clients, "--jobs", &threads])
        .args(["--time", &length.as_secs().max(1).to_string(), "--file"])
        .arg(script.path())
        .arg(server.url(super::DATABASE))
        .output()
        .map_err(|why| format!("it cannot be started: {why}"))?;
    let output = String::from_utf8_lossy(&done.stdout);
    let words = || output.split_whitespace().collect::<Vec<_>>().join(" ");
    read(&output).ok_or_else(|| format!("its output cannot be read: {}", words()))
}

/// Returns the number after `tps = `, without the fraction.
fn read(output: &str) -> Option<u32> {
    output.split_once("tps = ")?.1.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_its_output() {
        let output = "latency average = 0.318 ms\ntps = 3140.913351 (without initial connection time)\n";
        assert_eq!((read(output), read("")), (Some(3140), None));
    }
}
