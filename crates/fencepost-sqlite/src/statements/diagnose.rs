//! The doctor's findings that an open database reports.

use fencepost_core::{Finding, Result};
use rusqlite::params;

use super::{SCHEMA_VERSION, Statements};
use crate::host_clock::has_boot_id;

const RESET_ADVICE: &str = "no other program may change it; connect again to reset it";

type Check = fn(&Statements, &str) -> Result<Finding>;

impl Statements {
    /// Returns one finding per check. It only reads.
    pub(crate) fn diagnose(&self) -> Vec<Finding> {
        let checks: [(&str, Check); 8] = [
            ("SQLite", |_, check| Ok(Finding::ok(check, rusqlite::version()))),
            ("schema", check_schema),
            ("storage id", |statements, check| {
                let id = statements.text("SELECT lower(hex(storage_id)) FROM storage")?;
                Ok(Finding::ok(check, id))
            }),
            ("journal mode", check_journal),
            ("synchronous", check_synchronous),
            ("integrity", check_integrity),
            ("locks", check_locks),
            ("clock", check_clock),
        ];
        checks
            .into_iter()
            .map(|(check, diagnose)| Finding::from_result(check, diagnose(self, check)))
            .collect()
    }

    fn text(&self, sql: &str) -> Result<String> {
        self.connection.query_row(sql, [], |row| row.get(0)).map_err(|error| self.failed(error))
    }
}

fn check_schema(statements: &Statements, check: &str) -> Result<Finding> {
    let version = statements.number("PRAGMA user_version")?;
    Ok(if version == SCHEMA_VERSION {
        Finding::ok(check, format!("version {version}"))
    } else {
        Finding::problem(check, format!("version {version}; this program supports {SCHEMA_VERSION}"))
            .with_advice("use one version of fencepost everywhere")
    })
}

fn check_journal(statements: &Statements, check: &str) -> Result<Finding> {
    let mode = statements.text("PRAGMA journal_mode")?;
    Ok(match mode.as_str() {
        "wal" => Finding::ok(check, mode),
        _ => Finding::problem(check, format!("{mode}, not wal")).with_advice(RESET_ADVICE),
    })
}

fn check_synchronous(statements: &Statements, check: &str) -> Result<Finding> {
    Ok(match statements.number("PRAGMA synchronous")? {
        0 => Finding::problem(check, "off: a power failure can corrupt the file").with_advice(RESET_ADVICE),
        _ => Finding::ok(check, "normal, and full when tokens are reserved"),
    })
}

fn check_integrity(statements: &Statements, check: &str) -> Result<Finding> {
    let result = statements.text("PRAGMA quick_check(1)")?;
    Ok(match result.as_str() {
        "ok" => Finding::ok(check, "quick_check reports ok"),
        _ => Finding::problem(check, format!("quick_check reports {}", result.replace('\n', " ")))
            .with_advice("stop all processes that use the file, then remove it with all files beside it"),
    })
}

fn check_locks(statements: &Statements, check: &str) -> Result<Finding> {
    let held = statements.number("SELECT count(DISTINCT name) FROM holders")?;
    let waiting = statements.number("SELECT count(*) FROM tickets")?;
    let cells = statements.number("SELECT count(*) FROM cells")?;
    Ok(Finding::ok(check, format!("{held} held, {waiting} waiting, {cells} cells")))
}

/// Leases of another clock are timed from when they were first seen, so they expire later than they could.
fn check_clock(statements: &Statements, check: &str) -> Result<Finding> {
    if !has_boot_id() {
        let found = "this boot has no id: locks of crashed processes expire later than they could";
        return Ok(
            Finding::warning(check, found).with_advice("make /proc/sys/kernel/random/boot_id readable")
        );
    }
    let foreign = "SELECT (SELECT count(*) FROM holders WHERE clock <> ?1) + (SELECT count(*) FROM tickets \
                   WHERE clock <> ?1)";
    let read = statements.connection.query_row(foreign, params![statements.clock], |row| row.get(0));
    let foreign: i64 = read.map_err(|error| statements.failed(error))?;
    if foreign == 0 {
        return Ok(Finding::ok(check, "the host's boot-time clock"));
    }
    let found = format!(
        "{foreign} leases of another boot or time namespace: they expire one ttl after they are first seen"
    );
    Ok(Finding::warning(check, found).with_advice(
        "after a reboot this resolves itself; otherwise run all containers in one time namespace",
    ))
}
