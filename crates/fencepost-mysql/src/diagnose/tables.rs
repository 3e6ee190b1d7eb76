//! The tables of the namespace: their engine, rights on them, unused names, and transactions that have locked rows.

use fencepost_core::{ErrorKind, Finding, Result};
use fencepost_sql::Row;

use super::rights::rights;
use crate::lease::fetch::NOW_MICROS;
use crate::lease::layout::KINDS;
use crate::lease::state::ClientState;
use crate::rights::needed;

/// More unused names than this are not removed by clients in time.
const MANY_UNUSED: i64 = 10_000;
/// A transaction that has locked rows for longer than this is reported, in seconds.
const LONG_TRANSACTION: i64 = 10;
/// How many rows are read to find out which are locked.
const MAX_ROWS: i64 = 1_000;

impl ClientState {
    pub(super) async fn tables_findings(&self) -> Vec<Finding> {
        vec![
            Finding::from_result("tables", self.tables_finding().await),
            self.rights_finding().await,
            Finding::from_result("unused names", self.unused_finding().await),
            Finding::from_result("transactions", self.transactions_finding().await),
        ]
    }

    async fn tables_finding(&self) -> Result<Finding> {
        let names = self.tables.all().map(|table| table.replace('`', "'")).join(", ");
        let sql = format!(
            "SELECT TABLE_NAME, ENGINE, CAST(COALESCE(DATA_LENGTH + INDEX_LENGTH, 0) AS SIGNED) FROM information_schema.TABLES \
             WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ({names})"
        );
        let sets = self.query(&sql).await?;
        let mut bytes = 0;
        for row in sets.iter().flatten() {
            let (table, engine) = (row.text(0)?, row.optional_text(1)?.unwrap_or_default());
            if engine != "InnoDB" {
                let found =
                    format!("{table} is stored by {engine}: locks are neither atomic nor durable there");
                let advice = format!("stop all clients, then ALTER TABLE {table} ENGINE = InnoDB");
                return Ok(Finding::problem("tables", found).with_advice(advice));
            }
            bytes += row.integer(2)?;
        }
        Ok(Finding::ok("tables", format!("InnoDB, about {} KiB", bytes / 1024)))
    }

    async fn rights_finding(&self) -> Finding {
        let tables = self.tables.all();
        let checked = KINDS.iter().zip(tables).map(|(kind, table)| {
            let column = match *kind {
                "tombstones" => "owner",
                "notices" => "client",
                "tokens" | "storage" => "id",
                _ => "name",
            };
            (table, column, needed(kind))
        });
        let checked: Vec<_> = checked.collect();
        rights(&self.sessions, &checked).await
    }

    async fn unused_finding(&self) -> Result<Finding> {
        let holders = &self.tables.holders;
        let sql = format!(
            "SELECT COUNT(*) FROM (SELECT 1 FROM {holders} WHERE until_ns < 1000 * {NOW_MICROS} - 3600000000000 \
             LIMIT {}) AS unused",
            MANY_UNUSED + 1
        );
        let count = self.first_number(&sql).await?;
        Ok(if count > MANY_UNUSED {
            Finding::warning(
                "unused names",
                format!("more than {MANY_UNUSED} were last used over an hour ago"),
            )
            .with_advice("clients remove them while they use locks; `fencepost sweep` removes them now")
        } else {
            Finding::ok("unused names", format!("{count} were last used over an hour ago"))
        })
    }

    /// Reports the oldest transaction, if it has locked rows and rows of the locks are locked. The server shows to which table the
    /// rows belong only while another transaction waits for them.
    async fn transactions_finding(&self) -> Result<Finding> {
        let none = || {
            Finding::ok(
                "transactions",
                format!("none has locked rows of the locks for over {LONG_TRANSACTION} s"),
            )
        };
        let sql = format!(
            "SELECT t.id, t.age, CONCAT_WS('@', p.USER, p.HOST) FROM (SELECT trx_mysql_thread_id AS id, \
             TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), SYSDATE()) AS age \
             FROM information_schema.INNODB_TRX WHERE trx_lock_structs > 0 AND trx_mysql_thread_id <> CONNECTION_ID()) AS t \
             LEFT JOIN information_schema.PROCESSLIST AS p ON p.ID = t.id \
             WHERE t.age > {LONG_TRANSACTION} ORDER BY t.age DESC LIMIT 1"
        );
        let found = match self.query(&sql).await {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::Denied => {
                return Ok(Finding::ok("transactions", "not visible without the right PROCESS"));
            }
            Err(error) => return Err(error),
        };
        let Some(row) = found.iter().flatten().next() else { return Ok(none()) };
        let locked = self.locked_rows().await?;
        if locked == 0 {
            return Ok(none());
        }
        let (id, seconds) = (row.integer(0)?, row.integer(1)?);
        let account = row.optional_text(2)?.unwrap_or_default();
        let found = format!(
            "{locked} rows of the locks are locked, and connection {id} ({account}) is in a transaction since {seconds} s: \
             the names of rows that it has locked cannot be granted to others"
        );
        Ok(Finding::warning("transactions", found)
            .with_advice(format!("if it is not meant to hold a lock: KILL {id}")))
    }

    /// Returns how many of the first rows are locked now, also those that are not committed yet.
    async fn locked_rows(&self) -> Result<i64> {
        let rows = format!("SELECT name FROM {} ORDER BY name LIMIT {MAX_ROWS}", self.tables.locks);
        let sql = format!(
            "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; START TRANSACTION; \
             SELECT COUNT(*) FROM ({rows}) AS r; SELECT COUNT(*) FROM ({rows} FOR UPDATE SKIP LOCKED) AS r; ROLLBACK"
        );
        let sets = self.query(&sql).await?;
        let counts = sets.iter().flatten().map(|row| row.integer(0)).collect::<Result<Vec<i64>>>()?;
        Ok(counts.first().copied().unwrap_or(0) - counts.get(1).copied().unwrap_or(0))
    }

    async fn first_number(&self, sql: &str) -> Result<i64> {
        let sets = self.query(sql).await?;
        sets.iter().flatten().next().map_or(Ok(0), |row| row.integer(0))
    }
}
