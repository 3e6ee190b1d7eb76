//! What the server's settings and state say about locks.

use std::collections::HashMap;
use std::time::Duration;

use fencepost_core::clock::wall_time;
use fencepost_core::{Finding, duration_text};

use super::Storage;

/// A difference between the clocks of server and client that is worth a warning: their logs cannot be compared.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);
/// Fewer connections than this are few: a client needs up to four.
const FEW_CONNECTIONS: i64 = 10;

/// What the server's clock means for locks in tables, and for those of connections.
const LEASE_CLOCK: &str =
    "leases are timed by the server's clock alone; but synchronise both, so that logs agree";
const SESSION_CLOCK: &str = "synchronise the clocks (NTP): fencing tokens are raised to the server's time, and grow over a \
    failover only if the clock of the new primary is not behind";

/// Reads settings and state: names and values.
pub(super) const QUERY: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'read_only', \
    'super_read_only', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format', 'wsrep_on', 'tx_isolation', \
    'transaction_isolation', 'max_connections'); \
    SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected', 'Slaves_connected', 'Rpl_semi_sync_master_status', \
    'Rpl_semi_sync_source_status')";

/// What was read from the server.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) values: HashMap<String, String>,
    /// The server's time.
    pub(super) micros: i64,
    /// The account as the server knows it.
    pub(super) account: String,
}

impl Report {
    /// Checks what matters to locks that are stored there. Those of connections are in the server's memory: they are not durable, and
    /// what is stored beside them is read by its own connection only.
    pub(super) fn findings(&self, storage: Storage) -> Vec<Finding> {
        match storage {
            Storage::Tables => vec![
                self.server(),
                self.role(),
                self.durability(),
                self.binary_log(),
                self.replicas(),
                self.cluster(),
                self.isolation(),
                self.connections(storage),
                self.clock(wall_time(), LEASE_CLOCK),
            ],
            Storage::Sessions { .. } => vec![
                self.server(),
                self.role(),
                self.binary_log(),
                self.session_replicas(),
                self.session_cluster(),
                // A client of such a proxy is not opened.
                Finding::ok("proxy", "none that shares connections"),
                self.connections(storage),
                self.clock(wall_time(), SESSION_CLOCK),
            ],
        }
    }

    fn value(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> i64 {
        self.value(name).parse().unwrap_or(0)
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        ["ON", "1"].contains(&self.value(name))
    }

    fn server(&self) -> Finding {
        let version = self.value("version");
        let is_mariadb = version.contains("MariaDB");
        let name = if is_mariadb { "MariaDB" } else { "MySQL" };
        let found = format!("{name} {}", version.split('-').next().unwrap_or(version));
        let numbers: Vec<u32> = version.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
        let oldest: &[u32] = if is_mariadb { &[10, 6] } else { &[8, 0, 19] };
        if numbers.as_slice() < oldest {
            return Finding::warning("server", format!("{found}, older than what Fencepost is written for"))
                .with_advice("upgrade to MariaDB 10.6 or MySQL 8.0.19 or later");
        }
        if is_mariadb {
            return Finding::ok("server", found);
        }
        Finding::ok("server", format!("{found} ({}); tested is MariaDB", self.value("version_comment")))
    }

    fn role(&self) -> Finding {
        if ["read_only", "super_read_only"].iter().any(|name| self.is_on(name)) {
            return Finding::problem("role", "a replica, or read-only")
                .with_advice("connect to the primary: locks on a replica do not exclude anything");
        }
        Finding::ok("role", "primary: it can be written")
    }

    /// With a binary log, a commit outlives a crash of the host once that log is synced.
    fn durability(&self) -> Finding {
        let mut weak = Vec::new();
        let (flush, sync) = (self.value("innodb_flush_log_at_trx_commit"), self.value("sync_binlog"));
        if !["1", "3"].contains(&flush) {
            weak.push(format!("innodb_flush_log_at_trx_commit = {flush}"));
        }
        if self.is_on("log_bin") && sync != "1" {
            weak.push(format!("sync_binlog = {sync}"));
        }
        if weak.is_empty() {
            return Finding::ok("durability", "every commit is synced");
        }
        let found = format!("{}: a crash of the host loses the newest grants", weak.join(", "));
        Finding::warning("durability", found).with_advice(
            "set innodb_flush_log_at_trx_commit = 1, and sync_binlog = 1 if there is a binary log",
        )
    }

    fn binary_log(&self) -> Finding {
        let format = self.value("binlog_format");
        if !self.is_on("log_bin") {
            return Finding::ok("binary log", "none");
        }
        if format == "STATEMENT" {
            return Finding::problem("binary log", "binlog_format = STATEMENT: no lock can be acquired")
                .with_advice("set binlog_format = ROW or MIXED");
        }
        Finding::ok("binary log", format)
    }

    pub(super) fn replicas(&self) -> Finding {
        let is_awaited = ["Rpl_semi_sync_master_status", "Rpl_semi_sync_source_status"]
            .iter()
            .any(|name| self.is_on(name));
        match self.number("Slaves_connected") {
            0 => Finding::ok("replicas", "none is connected"),
            count if is_awaited => Finding::ok("replicas", format!("{count}; commits wait for one of them")),
            count => Finding::warning("replicas", format!("{count}, but grants do not wait for them")).with_advice(
                "a failover can lose the newest grants: enable semi-synchronous replication, and check tokens",
            ),
        }
    }

    pub(super) fn cluster(&self) -> Finding {
        if !self.is_on("wsrep_on") {
            return Finding::ok("cluster", "none");
        }
        let found =
            "a node of a Galera cluster: each node has its own clock, and leases are timed by the one in use";
        Finding::warning("cluster", found)
            .with_advice("let all clients use one node, and keep the clocks of all nodes in sync")
    }

    fn isolation(&self) -> Finding {
        let level = [self.value("transaction_isolation"), self.value("tx_isolation")].concat();
        let found = format!("{level}; READ COMMITTED on Fencepost's connections");
        Finding::ok("isolation", if level == "READ-COMMITTED" { level } else { found })
    }

    fn connections(&self, storage: Storage) -> Finding {
        let max = self.number("max_connections");
        let left = max - self.number("Threads_connected");
        let found = format!("{left} of {max} are left");
        let (enough, advice) = match storage {
            Storage::Tables => {
                let advice = "raise max_connections, or close idle ones: a client needs up to 4";
                (FEW_CONNECTIONS, advice.to_owned())
            }
            Storage::Sessions { per_client } => (
                i64::try_from(per_client).unwrap_or(i64::MAX).max(FEW_CONNECTIONS),
                format!(
                    "each lock that is held or waited for has one, and a client uses up to {per_client}: raise max_connections, \
                     lower connections= in the URL, or use mode=lease"
                ),
            ),
        };
        if left >= enough {
            return Finding::ok("connections", found);
        }
        Finding::warning("connections", found).with_advice(advice)
    }

    fn clock(&self, here: Duration, advice: &str) -> Finding {
        let difference = Duration::from_micros(self.micros.unsigned_abs()).abs_diff(here);
        let found = format!("differs from this host's by {}", duration_text(difference));
        if difference > MAX_CLOCK_DIFFERENCE {
            return Finding::warning("server's clock", found).with_advice(advice);
        }
        Finding::ok("server's clock", found)
    }

    #[cfg(test)]
    pub(super) fn healthy() -> Self {
        let values = [
            ("version", "10.11.6-MariaDB-log"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("log_bin", "ON"),
            ("sync_binlog", "1"),
            ("binlog_format", "MIXED"),
            ("tx_isolation", "REPEATABLE-READ"),
            ("max_connections", "151"),
            ("Threads_connected", "20"),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let micros = i64::try_from(wall_time().as_micros()).unwrap();
        Self { values, micros, account: "ann@%".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity::{self, Problem, Warning};

    use super::*;

    fn concerns(changes: &[(&str, &str)]) -> Vec<(String, Severity)> {
        concerns_of(changes, Storage::Tables)
    }

    fn concerns_of(changes: &[(&str, &str)], storage: Storage) -> Vec<(String, Severity)> {
        let mut report = Report::healthy();
        report.values.extend(changes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let findings = Finding::concerns(report.findings(storage));
        assert!(findings.iter().all(|finding| finding.advice.is_some()), "{findings:?}");
        findings.into_iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    #[test]
    fn a_healthy_server_has_no_warnings() {
        assert_eq!(concerns(&[]), []);
        assert_eq!(concerns(&[("log_bin", "OFF"), ("sync_binlog", "0"), ("binlog_format", "STATEMENT")]), []);
        assert_eq!(concerns(&[("version", "8.0.36"), ("version_comment", "MySQL Community Server")]), []);
        let awaited = [("Slaves_connected", "2"), ("Rpl_semi_sync_master_status", "ON")];
        assert_eq!(concerns(&awaited), []);
    }

    #[test]
    fn each_weakness_is_reported() {
        for (name, value, check, severity) in [
            ("version", "10.5.21-MariaDB", "server", Warning),
            ("version", "5.7.44", "server", Warning),
            ("read_only", "ON", "role", Problem),
            ("innodb_flush_log_at_trx_commit", "0", "durability", Warning),
            ("sync_binlog", "0", "durability", Warning),
            ("binlog_format", "STATEMENT", "binary log", Problem),
            ("Slaves_connected", "1", "replicas", Warning),
            ("wsrep_on", "ON", "cluster", Warning),
            ("Threads_connected", "145", "connections", Warning),
        ] {
            assert_eq!(concerns(&[(name, value)]), [(check.to_owned(), severity)], "{name} = {value}");
        }
        let report = Report { micros: 0, ..Report::healthy() };
        assert_eq!(report.clock(wall_time(), LEASE_CLOCK).severity, Warning);
    }

    /// What does not matter to locks of connections is not reported there.
    #[test]
    fn locks_of_connections_have_checks_of_their_own() {
        let of = |changes: &[(&str, &str)]| concerns_of(changes, Storage::Sessions { per_client: 35 });
        assert_eq!(of(&[("innodb_flush_log_at_trx_commit", "0"), ("sync_binlog", "0")]), []);
        for (name, value, check, severity) in [
            ("version", "10.5.21-MariaDB", "server", Warning),
            ("read_only", "ON", "role", Problem),
            ("binlog_format", "STATEMENT", "binary log", Problem),
            ("Slaves_connected", "1", "replicas", Warning),
            ("wsrep_on", "ON", "cluster", Problem),
            ("Threads_connected", "117", "connections", Warning),
        ] {
            assert_eq!(of(&[(name, value)]), [(check.to_owned(), severity)], "{name} = {value}");
        }
        assert_eq!(of(&[("Threads_connected", "116")]), []);
        // Commits that wait for a replica do not keep locks that are not committed.
        let awaited = [("Slaves_connected", "2"), ("Rpl_semi_sync_master_status", "ON")];
        assert_eq!(of(&awaited), [("replicas".to_owned(), Warning)]);
    }
}
