//! The tables of the namespace: their size, and transactions that have locked rows.

use fencepost_core::{Finding, Result};

use super::Server;
use crate::config::{literal, quoted};

/// More dead rows than this, and than live ones, are not removed by vacuum in time.
const MANY_DEAD_ROWS: i64 = 100_000;
/// More unused names than this are not removed by clients in time.
const MANY_UNUSED: i64 = 10_000;
/// A transaction that has locked rows for longer than this is reported, in seconds.
const LONG_TRANSACTION: i64 = 10;

/// The size of the tables. Statistics are estimates.
const SIZE: &str = "
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint, coalesce(sum(pg_stat_get_live_tuples(c.oid)), 0)::bigint,
    coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint,
    coalesce(bool_or(c.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off']), false)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = @literal AND c.relkind = 'r'";

/// Names that were last used an hour ago, as far as it matters how many.
const UNUSED: &str = "
SELECT count(*) FROM (
    SELECT FROM @.locks AS l WHERE l.expires_at < clock_timestamp() - interval '1 h'
        AND NOT EXISTS (SELECT FROM @.cells AS c WHERE c.name = l.name AND c.keep = 2) LIMIT 10001
) AS unused";

/// Transactions that write, or have locked rows or the table, and for how long they have been open: a prepared one has no
/// process. What other accounts do is visible to members of `pg_read_all_stats`.
const TRANSACTIONS: &str = "
SELECT l.pid, a.application_name, a.state, floor(extract(epoch FROM clock_timestamp() - a.xact_start))::bigint,
    (SELECT p.gid FROM pg_locks AS t JOIN pg_prepared_xacts AS p ON p.transaction = t.transactionid
        WHERE t.locktype = 'transactionid' AND t.pid IS NULL AND t.virtualtransaction = l.virtualtransaction LIMIT 1)
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.relation = to_regclass(@locks)
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock') AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND (l.pid IS NULL OR a.xact_start < clock_timestamp() - @long * interval '1 s')
ORDER BY a.xact_start NULLS FIRST LIMIT 1";

pub(super) async fn findings(server: &Server<'_>, namespace: &str) -> Vec<Finding> {
    let locks = format!("{}.locks", quoted(namespace));
    let sql = |text: &str| {
        text.replace("@literal", &literal(namespace))
            .replace("@locks", &literal(&locks))
            .replace("@long", &LONG_TRANSACTION.to_string())
            .replace("@.", &format!("{}.", quoted(namespace)))
    };
    vec![
        Finding::from_result("tables", tables(server, &sql(SIZE)).await),
        Finding::from_result("unused names", unused(server, &sql(UNUSED)).await),
        Finding::from_result("transactions", transactions(server, &sql(TRANSACTIONS)).await),
    ]
}

async fn tables(server: &Server<'_>, sql: &str) -> Result<Finding> {
    let rows = server.rows(sql).await?;
    let Some(row) = rows.first() else { return Ok(Finding::ok("tables", "none")) };
    Ok(size_finding(row.get(0), row.get(1), row.get(2), row.get(3)))
}

fn size_finding(bytes: i64, live: i64, dead: i64, is_without_vacuum: bool) -> Finding {
    let found = format!("{} KiB, about {live} rows and {dead} dead ones", bytes.max(0) / 1024);
    if is_without_vacuum {
        return Finding::warning("tables", format!("{found}; autovacuum is off for one of them"))
            .with_advice("ALTER TABLE … RESET (autovacuum_enabled)");
    }
    if dead > MANY_DEAD_ROWS && dead > live {
        return Finding::warning("tables", found).with_advice(
            "vacuum does not keep up: look for old transactions, replication slots and prepared transactions, which keep it from removing rows",
        );
    }
    Finding::ok("tables", found)
}

async fn unused(server: &Server<'_>, sql: &str) -> Result<Finding> {
    let rows = server.rows(sql).await?;
    let count: i64 = rows.first().map(|row| row.get(0)).unwrap_or_default();
    Ok(if count > MANY_UNUSED {
        Finding::warning("unused names", format!("more than {MANY_UNUSED} were last used over an hour ago"))
            .with_advice("clients remove them while they use locks; `fencepost sweep` removes them now")
    } else {
        Finding::ok("unused names", format!("{count} were last used over an hour ago"))
    })
}

async fn transactions(server: &Server<'_>, sql: &str) -> Result<Finding> {
    let rows = server.rows(sql).await?;
    let Some(row) = rows.first() else {
        let found = format!("none has locked rows of the locks for over {LONG_TRANSACTION} s");
        return Ok(Finding::ok("transactions", found));
    };
    let (pid, prepared): (Option<i32>, Option<String>) = (row.get(0), row.get(4));
    let text = |at: usize| row.get::<_, Option<String>>(at).unwrap_or_default();
    let (found, advice) = match pid {
        None => {
            let name = literal(&prepared.unwrap_or_default());
            (
                format!("the prepared transaction {name}"),
                format!("COMMIT PREPARED {name} or ROLLBACK PREPARED {name}"),
            )
        }
        Some(pid) => {
            let (program, state, seconds) =
                (text(1), text(2), row.get::<_, Option<i64>>(3).unwrap_or_default());
            let found = format!("process {pid} ({program:?}, {state}), in a transaction since {seconds} s,");
            (found, format!("SELECT pg_terminate_backend({pid})"))
        }
    };
    let found = format!("{found} has locked rows of the locks: their names cannot be granted to others");
    Ok(Finding::warning("transactions", found)
        .with_advice(format!("if it is not meant to hold a lock: {advice}")))
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    #[test]
    fn many_dead_rows_are_a_warning() {
        for (live, dead, is_without_vacuum, severity) in [
            (10, 99_000, false, Severity::Ok),
            (10, 100_001, false, Severity::Warning),
            (200_000, 100_001, false, Severity::Ok),
            (10, 10, true, Severity::Warning),
        ] {
            let finding = size_finding(8192, live, dead, is_without_vacuum);
            assert_eq!(finding.severity, severity, "{finding}");
            assert!(finding.found.starts_with("8 KiB, about"), "{finding}");
        }
    }
}
