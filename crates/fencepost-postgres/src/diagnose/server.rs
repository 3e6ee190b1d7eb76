//! What the server reports about itself in one statement, and what follows from it.

use std::time::Duration;

use fencepost_core::clock::wall_time;
use fencepost_core::{Finding, Result};

use super::connections::connections;
use super::{Server, Storage};
use crate::error::call_failed;

/// The smallest clock difference that is a warning.
const CLOCK_SKEW: Duration = Duration::from_secs(2);
/// Older versions get no fixes any more.
const OLD_VERSION: i32 = 140_000;

/// What the server's clock means for locks in tables, and for those of sessions.
const LEASE_CLOCK: &str = "synchronise the clocks (NTP): leases depend on the server's clock only, but a step forward ends \
    them early, and fencing tokens are derived from it";
const SESSION_CLOCK: &str = "synchronise the clocks (NTP): fencing tokens are derived from the server's clock, and grow over a \
    failover only if the clock of the new primary is not behind";

/// The values of settings are those that a new connection of the account has.
const SQL: &str = "
SELECT current_setting('server_version'), current_setting('server_version_num')::integer,
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
    current_user::text, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
    ARRAY(SELECT name FROM pg_settings WHERE setting = 'off'
        AND name IN ('autovacuum', 'fsync', 'full_page_writes', 'track_counts')),
    (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
    (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'),
    current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication WHERE coalesce(state, 'streaming') = 'streaming'),
    (SELECT sum(numbackends)::bigint FROM pg_stat_database),
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
    (SELECT nullif(rolconnlimit, -1)::bigint - (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user)
        FROM pg_roles WHERE rolname = current_user),
    (SELECT nullif(datconnlimit, -1)::bigint - (SELECT count(*) FROM pg_stat_activity AS a WHERE a.datid = d.oid)
        FROM pg_database AS d WHERE datname = current_database()),
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, current_setting('transaction_isolation')";

/// What a server reports about itself.
#[derive(Debug)]
pub(super) struct Report {
    version: String,
    version_number: i32,
    is_read_only: bool,
    pub(super) role: String,
    pub(super) is_superuser: bool,
    /// Settings that are off and should not be.
    switched_off: Vec<String>,
    synchronous_commit: String,
    isolation: String,
    /// The isolation level of this connection.
    used_isolation: String,
    pub(super) synchronous_standby_names: String,
    pub(super) standbys: u64,
    /// Connections in use, and how many there may be.
    used_connections: i64,
    max_connections: i64,
    /// How many more the account or the database may have, if that is limited.
    left_by_limits: Option<i64>,
    /// By how much the server's clock is ahead of this host's, in ms.
    clock_ahead_ms: i64,
}

impl Report {
    pub(super) async fn read(server: &Server<'_>) -> Result<Self> {
        let before = wall_time();
        let row = server.client.query_typed_one(SQL, &[]).await;
        let row = row.map_err(|error| call_failed(server.link.location(), &error))?;
        let local_time = before + wall_time().saturating_sub(before) / 2;
        let (role_left, database_left): (Option<i64>, Option<i64>) = (row.get(12), row.get(13));
        let local_ms = i64::try_from(local_time.as_millis()).unwrap_or(i64::MAX);
        Ok(Self {
            version: row.get(0),
            version_number: row.get(1),
            is_read_only: row.get(2),
            role: row.get(3),
            is_superuser: row.get::<_, Option<bool>>(4).unwrap_or_default(),
            switched_off: row.get(5),
            synchronous_commit: row.get::<_, Option<String>>(6).unwrap_or_default(),
            isolation: row.get::<_, Option<String>>(7).unwrap_or_default(),
            used_isolation: row.get(15),
            synchronous_standby_names: row.get(8),
            standbys: row.get::<_, i64>(9).unsigned_abs(),
            used_connections: row.get::<_, Option<i64>>(10).unwrap_or_default(),
            max_connections: row.get(11),
            left_by_limits: role_left.into_iter().chain(database_left).min(),
            clock_ahead_ms: row.get::<_, i64>(14) / 1000 - local_ms,
        })
    }

    /// Checks what matters to locks that are stored there. Those of sessions are in the server's memory: neither are they durable,
    /// nor does vacuum matter to them.
    pub(super) fn findings(&self, storage: Storage) -> Vec<Finding> {
        let connections =
            connections(self.used_connections, self.max_connections, self.left_by_limits, storage);
        match storage {
            Storage::Tables { is_pooled } => vec![
                self.server(),
                self.role(),
                self.durability(),
                self.replicas(),
                self.isolation(is_pooled),
                pooler(is_pooled),
                connections,
                self.autovacuum(),
                self.clock(LEASE_CLOCK),
            ],
            // A client of a pooler that shares sessions is not opened.
            Storage::Sessions { .. } => vec![
                self.server(),
                self.role(),
                self.session_replicas(),
                self.isolation(false),
                pooler(false),
                connections,
                self.clock(SESSION_CLOCK),
            ],
        }
    }

    fn server(&self) -> Finding {
        let found = format!("PostgreSQL {}", self.version);
        if self.version_number >= OLD_VERSION {
            return Finding::ok("server", found);
        }
        Finding::warning("server", found).with_advice(
            "12 is the oldest version that works, and 15 is tested: upgrade to one that gets fixes",
        )
    }

    fn role(&self) -> Finding {
        if !self.is_read_only {
            return Finding::ok("role", "primary");
        }
        Finding::problem("role", "a standby, or read-only: it accepts no writes").with_advice(
            "use the primary's address, or name all servers: postgres://USER:PASSWORD@HOST,HOST/DATABASE",
        )
    }

    fn is_off(&self, setting: &str) -> bool {
        self.switched_off.iter().any(|off| off == setting)
    }

    fn durability(&self) -> Finding {
        if self.is_off("fsync") {
            return Finding::warning(
                "durability",
                "fsync is off: a crash of the host loses grants, and may damage the database",
            )
            .with_advice("set fsync = on");
        }
        if self.is_off("full_page_writes") {
            return Finding::warning(
                "durability",
                "full_page_writes is off: a crash of the host may damage the database",
            )
            .with_advice("set full_page_writes = on, unless the file system writes pages atomically");
        }
        let how = match self.synchronous_commit.as_str() {
            "on" | "remote_apply" => "",
            _ => "; synchronous_commit of the account is raised to on for locks",
        };
        Finding::ok("durability", format!("a grant is on disk before it is confirmed{how}"))
    }

    fn replicas(&self) -> Finding {
        let names = &self.synchronous_standby_names;
        match (self.standbys, names.is_empty()) {
            (0, true) => Finding::ok("replicas", "none, and so no failover"),
            (count, true) => Finding::warning("replicas", format!("{count}, and grants do not wait for them"))
                .with_advice("a failover loses the newest grants: set synchronous_standby_names; fencing makes it harmless"),
            (0, false) => Finding::problem("replicas", format!("none is connected, and commits wait for {names}"))
                .with_advice("no lock can be acquired until the standby is up or synchronous_standby_names is changed"),
            (count, false) => Finding::ok("replicas", format!("{count}, and grants wait for {names}")),
        }
    }

    fn isolation(&self, is_pooled: bool) -> Finding {
        const NEEDED: &str = "read committed";
        let is_set = !is_pooled && self.used_isolation == NEEDED;
        let level = if self.isolation == NEEDED { &self.used_isolation } else { &self.isolation };
        match (level.as_str(), is_set) {
            (NEEDED, _) => Finding::ok("isolation", NEEDED),
            (_, true) => Finding::ok("isolation", format!("{level}; read committed on the connections of Fencepost")),
            (_, false) => Finding::problem("isolation", format!("{level}: locks need read committed"))
                .with_advice("ALTER ROLE … SET default_transaction_isolation = 'read committed' for the account, or connect without the pooler"),
        }
    }

    fn autovacuum(&self) -> Finding {
        if !self.is_off("autovacuum") && !self.is_off("track_counts") {
            return Finding::ok("autovacuum", "on");
        }
        Finding::warning("autovacuum", "off, or without statistics: the tables of the locks grow")
            .with_advice("set autovacuum = on and track_counts = on, or run VACUUM for the tables often")
    }

    fn clock(&self, advice: &str) -> Finding {
        let skew = Duration::from_millis(self.clock_ahead_ms.unsigned_abs());
        if skew < CLOCK_SKEW {
            return Finding::ok(
                "server's clock",
                format!("within {} ms of this host's", skew.as_millis().max(1)),
            );
        }
        let direction = if self.clock_ahead_ms > 0 { "ahead of" } else { "behind" };
        Finding::warning("server's clock", format!("{} s {direction} this host's", skew.as_secs()))
            .with_advice(advice)
    }
}

fn pooler(is_pooled: bool) -> Finding {
    if !is_pooled {
        return Finding::ok("pooler", "none that shares connections between transactions");
    }
    let found = "a pooler shares connections between transactions: waiters poll, and are not woken";
    Finding::warning("pooler", found)
        .with_advice("connect to the server itself, or use pool_mode = session, for hand-overs without delay")
}

#[cfg(test)]
impl Report {
    pub(super) fn healthy() -> Self {
        Self {
            version: "15.8".into(),
            version_number: 150_008,
            is_read_only: false,
            role: "ann".into(),
            is_superuser: false,
            switched_off: Vec::new(),
            synchronous_commit: "on".into(),
            isolation: "read committed".into(),
            used_isolation: "read committed".into(),
            synchronous_standby_names: String::new(),
            standbys: 0,
            used_connections: 5,
            max_connections: 97,
            left_by_limits: None,
            clock_ahead_ms: -3,
        }
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity::{self, Problem, Warning};

    use super::*;

    fn concerns(report: &Report, is_pooled: bool) -> Vec<(String, Severity)> {
        concerns_of(report, Storage::Tables { is_pooled })
    }

    fn concerns_of(report: &Report, storage: Storage) -> Vec<(String, Severity)> {
        let findings = Finding::concerns(report.findings(storage));
        assert!(findings.iter().all(|finding| finding.advice.is_some()), "{findings:?}");
        findings.into_iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    #[test]
    fn a_healthy_server_has_no_warnings() {
        assert_eq!(concerns(&Report::healthy(), false), []);
        let raised = Report { synchronous_commit: "off".into(), ..Report::healthy() };
        assert_eq!(concerns(&raised, false), []);
        assert!(raised.durability().found.contains("raised to on"));
    }

    #[test]
    fn each_weakness_is_reported() {
        let healthy = Report::healthy;
        let names = || "ANY 1 (a, b)".to_owned();
        let off = |setting: &str| Report { switched_off: vec![setting.to_owned()], ..healthy() };
        for (report, check, severity) in [
            (Report { version_number: 130_014, ..healthy() }, "server", Warning),
            (Report { is_read_only: true, ..healthy() }, "role", Problem),
            (off("fsync"), "durability", Warning),
            (off("full_page_writes"), "durability", Warning),
            (Report { standbys: 1, ..healthy() }, "replicas", Warning),
            (Report { synchronous_standby_names: names(), ..healthy() }, "replicas", Problem),
            (Report { used_connections: 95, ..healthy() }, "connections", Warning),
            (Report { left_by_limits: Some(2), ..healthy() }, "connections", Warning),
            (off("track_counts"), "autovacuum", Warning),
            (Report { clock_ahead_ms: -2_500, ..healthy() }, "server's clock", Warning),
        ] {
            assert_eq!(concerns(&report, false), [(check.to_owned(), severity)], "{report:?}");
        }
        let waiting = Report { standbys: 2, synchronous_standby_names: names(), ..healthy() };
        assert_eq!(concerns(&waiting, false), []);
    }

    #[test]
    fn another_isolation_level_matters_behind_a_pooler() {
        let report = Report { isolation: "serializable".into(), ..Report::healthy() };
        assert_eq!(concerns(&report, false), []);
        let found = concerns(&report, true);
        assert_eq!(found, [("isolation".to_owned(), Problem), ("pooler".to_owned(), Warning)]);
        // A pooler in session mode: the connection is not changed.
        let unchanged = Report { used_isolation: "serializable".into(), ..report };
        assert_eq!(concerns(&unchanged, false), [("isolation".to_owned(), Problem)]);
    }

    /// What does not matter to locks of sessions is not reported there.
    #[test]
    fn locks_of_sessions_have_checks_of_their_own() {
        let healthy = Report::healthy;
        let of = |report: &Report| concerns_of(report, Storage::Sessions { per_client: 33 });
        let off = ["autovacuum", "fsync", "full_page_writes", "track_counts"].map(str::to_owned).to_vec();
        assert_eq!(of(&Report { switched_off: off, ..healthy() }), []);
        for (report, check, severity) in [
            (Report { is_read_only: true, ..healthy() }, "role", Problem),
            (Report { standbys: 1, ..healthy() }, "replicas", Warning),
            (Report { used_isolation: "serializable".into(), ..healthy() }, "isolation", Problem),
            (Report { used_connections: 70, ..healthy() }, "connections", Warning),
            (Report { clock_ahead_ms: 2_500, ..healthy() }, "server's clock", Warning),
        ] {
            assert_eq!(of(&report), [(check.to_owned(), severity)], "{report:?}");
        }
    }
}
