//! What the database says about itself.

use fencepost_core::{Finding, Result};
use rusqlite::params;

use super::{SCHEMA_VERSION, Statements};
use crate::host_clock::knows_its_boot;

const SET_BACK: &str = "let no other program change it; connect again to set it back";

type Check = fn(&Statements, &str) -> Result<Finding>;

impl Statements {
    /// One finding for each thing that an open database can tell. It only reads.
    pub(crate) fn diagnose(&self) -> Vec<Finding> {
        let checks: [(&str, Check); 8] = [
            ("SQLite", |_, check| Ok(Finding::ok(check, rusqlite::version()))),
            ("schema", examine_schema),
            ("storage id", |statements, check| {
                let id = statements.text("SELECT lower(hex(storage_id)) FROM storage")?;
                Ok(Finding::ok(check, id))
            }),
            ("journal mode", examine_journal),
            ("synchronous", examine_synchronous),
            ("integrity", examine_integrity),
            ("locks", examine_locks),
            ("clock", examine_clock),
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

fn examine_schema(statements: &Statements, check: &str) -> Result<Finding> {
    let version = statements.number("PRAGMA user_version")?;
    Ok(if version == SCHEMA_VERSION {
        Finding::ok(check, format!("version {version}"))
    } else {
        Finding::problem(check, format!("version {version}, and this program knows {SCHEMA_VERSION}"))
            .with_advice("use the same fencepost everywhere")
    })
}

fn examine_journal(statements: &Statements, check: &str) -> Result<Finding> {
    let mode = statements.text("PRAGMA journal_mode")?;
    Ok(match mode.as_str() {
        "wal" => Finding::ok(check, mode),
        _ => Finding::problem(check, format!("{mode}, and not wal")).with_advice(SET_BACK),
    })
}

fn examine_synchronous(statements: &Statements, check: &str) -> Result<Finding> {
    Ok(match statements.number("PRAGMA synchronous")? {
        0 => Finding::problem(check, "off: a power cut can corrupt the file").with_advice(SET_BACK),
        _ => Finding::ok(check, "normal, and full when tokens are reserved"),
    })
}

fn examine_integrity(statements: &Statements, check: &str) -> Result<Finding> {
    let said = statements.text("PRAGMA quick_check(1)")?;
    Ok(match said.as_str() {
        "ok" => Finding::ok(check, "quick_check says ok"),
        _ => Finding::problem(check, format!("quick_check says {}", said.replace('\n', " ")))
            .with_advice("stop all users of the file and remove it, with everything beside it"),
    })
}

fn examine_locks(statements: &Statements, check: &str) -> Result<Finding> {
    let held = statements.number("SELECT count(DISTINCT name) FROM holders")?;
    let waiting = statements.number("SELECT count(*) FROM tickets")?;
    let cells = statements.number("SELECT count(*) FROM cells")?;
    Ok(Finding::ok(check, format!("{held} held, {waiting} waiting, {cells} cells")))
}

/// Leases of another clock are timed from when they were first seen: safe, and slower.
fn examine_clock(statements: &Statements, check: &str) -> Result<Finding> {
    if !knows_its_boot() {
        let found = "this boot has no number: what crashed processes held is free later than it could be";
        return Ok(
            Finding::warning(check, found).with_advice("let processes read /proc/sys/kernel/random/boot_id")
        );
    }
    let foreign = "SELECT (SELECT count(*) FROM holders WHERE clock <> ?1) + (SELECT count(*) FROM tickets \
                   WHERE clock <> ?1)";
    let read = statements.connection.query_row(foreign, params![statements.clock], |row| row.get(0));
    let foreign: i64 = read.map_err(|error| statements.failed(error))?;
    if foreign == 0 {
        return Ok(Finding::ok(check, "the machine's, counted from its boot"));
    }
    let found = format!("{foreign} leases of another boot or time namespace end a ttl after they are seen");
    Ok(Finding::warning(check, found)
        .with_advice("after a reboot it passes; otherwise let all containers share a time namespace"))
}
