//! Checks the table: rights, and whether the times in it are those of the server's clock.

use std::time::Duration;

use fencepost_core::{Finding, LockName, Result};
use fencepost_sql::table_lock::Expiry;
use tokio_postgres::types::Type;

use super::rows::PostgresRows;
use crate::config::quoted;
use crate::error::call_failed;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the findings about the table.
pub(super) async fn findings(rows: &PostgresRows) -> Vec<Finding> {
    let mut findings = vec![
        Finding::ok("table", format!("{} has the columns and the unique key", rows.found.table)),
        Finding::from_result("rights on the table", rights(rows).await),
    ];
    if rows.table.is_shedlock {
        findings.push(Finding::from_result("clocks of other clients", clocks(rows).await));
    } else if matches!(rows.found.shape.expires, Some(Expiry::Timestamp { zoned: false, .. })) {
        findings.push(Finding::from_result("time zone", time_zone(rows).await));
    }
    findings
}

/// Returns the privileges that locks need on the table.
pub(crate) fn privileges(is_shedlock: bool) -> &'static [&'static str] {
    if is_shedlock { &["SELECT", "INSERT", "UPDATE"] } else { &["SELECT", "INSERT", "UPDATE", "DELETE"] }
}

async fn rights(rows: &PostgresRows) -> Result<Finding> {
    const CHECK: &str = "SELECT p FROM unnest($2) AS p WHERE NOT has_table_privilege($1::bigint::oid, p)";
    let wanted = privileges(rows.table.is_shedlock);
    let parameters: [super::rows::Parameter<'_>; 2] =
        [(&rows.found.oid, Type::INT8), (&wanted, Type::TEXT_ARRAY)];
    let missing = rows.query(CHECK, &parameters, TIMEOUT).await?;
    let missing: std::result::Result<Vec<String>, _> = missing.iter().map(|row| row.try_get(0)).collect();
    let missing = missing.map_err(|error| call_failed(&rows.info.location, &error))?;
    let check = "rights on the table";
    if missing.is_empty() {
        return Ok(Finding::ok(check, wanted.join(", ")));
    }
    let advice = format!("GRANT {} ON {} TO …", missing.join(", "), rows.found.table);
    Ok(Finding::problem(check, format!("{} not granted", missing.join(", "))).with_advice(advice))
}

/// A client whose clock or time zone differs writes times that begin in the future, as far as they are later.
async fn clocks(rows: &PostgresRows) -> Result<Finding> {
    let check = "clocks of other clients";
    let now = match rows.found.shape.since {
        Some(Expiry::Timestamp { zoned: false, .. }) => "timezone('UTC', clock_timestamp())",
        Some(Expiry::Timestamp { zoned: true, .. }) => "clock_timestamp()",
        _ => return Ok(Finding::ok(check, "times are in seconds")),
    };
    let since = quoted(rows.table.since.as_deref().unwrap_or_default());
    let sql = format!(
        "SELECT count(*) FROM {} WHERE isfinite({since}) AND {since} > {now} + interval '1 minute'",
        rows.found.table
    );
    let found = rows.query(&sql, &[], TIMEOUT).await?;
    let count: i64 = found.first().and_then(|row| row.try_get(0).ok()).unwrap_or_default();
    if count == 0 {
        return Ok(Finding::ok(check, "no lock was acquired in the future"));
    }
    Ok(Finding::warning(check, format!("{count} locks were acquired in the future, by the server's clock"))
        .with_advice("a client writes its own time or time zone: configure ShedLock with usingDbTime()"))
}

async fn time_zone(rows: &PostgresRows) -> Result<Finding> {
    let check = "time zone";
    let found = rows.query("SELECT current_setting('TimeZone')", &[], TIMEOUT).await?;
    let zone: String = found.first().and_then(|row| row.try_get(0).ok()).unwrap_or_default();
    if ["UTC", "Etc/UTC", "GMT"].contains(&zone.as_str()) {
        return Ok(Finding::ok(check, zone));
    }
    let message = format!("the end of leases has no time zone, and the sessions of this account have {zone}");
    Ok(Finding::warning(check, message)
        .with_advice("use timestamptz, or let all clients have the same zone without summer time: ALTER ROLE … SET timezone = 'UTC'"))
}

/// Returns the statement that reads the row of a lock.
pub(super) fn statement(rows: &PostgresRows, name: &LockName) -> String {
    let text = name.as_str().replace('\'', "''");
    format!("SELECT * FROM {} WHERE {} = '{text}'", rows.found.table, quoted(&rows.table.name))
}
