//! Diagnoses named locks: the server, its connections, the tables, and where a lock is.

use fencepost_core::{Finding, LockName, Result, shell_quote};
use fencepost_net::encryption_finding;
use fencepost_sql::Row;

use super::state::ClientState;
use crate::literal::Sql;

pub(super) async fn diagnose(state: &ClientState) -> Vec<Finding> {
    let config = &state.config;
    let advice = "add tls=true to the URL, and tls_ca=FILE if the CA is your own";
    vec![
        Finding::from_result("server", server(state).await),
        // A client is not opened otherwise.
        Finding::ok("cluster", "none"),
        Finding::ok("proxy", "none that shares connections"),
        Finding::from_result("connections", connections(state).await),
        Finding::from_result("rights", rights(state).await),
        encryption_finding(config.tls.as_ref(), std::slice::from_ref(&config.server), advice),
    ]
}

async fn server(state: &ClientState) -> Result<Finding> {
    let sets = state.query("SELECT VERSION(), @@GLOBAL.read_only").await?;
    let Some(row) = sets.iter().flatten().next() else { return Ok(Finding::ok("server", "unknown")) };
    let version = row.text(0)?;
    if row.integer(1)? == 0 {
        return Ok(Finding::ok("server", version));
    }
    Ok(Finding::problem("server", format!("{version}, read-only"))
        .with_advice("connect to the primary: locks on a replica do not exclude anything"))
}

/// Each lock that is held or awaited has a connection.
async fn connections(state: &ClientState) -> Result<Finding> {
    let sql = "SHOW GLOBAL STATUS LIKE 'Threads_connected'; SHOW GLOBAL VARIABLES LIKE 'max_connections'";
    let sets = state.query(sql).await?;
    let mut numbers = sets.iter().flatten().map(|row| row.integer(1));
    let (used, limit) = (numbers.next().transpose()?.unwrap_or(0), numbers.next().transpose()?.unwrap_or(0));
    let found = format!("{used} of {limit} in use; each lock that is held or waited for has one");
    if used * 10 < limit * 8 {
        return Ok(Finding::ok("connections", found));
    }
    Ok(Finding::warning("connections", found).with_advice("raise max_connections, or use mode=lease"))
}

/// Checks the rights without using them: to explain a statement takes the rights of executing it.
async fn rights(state: &ClientState) -> Result<Finding> {
    let table = state.table();
    let sql = format!("EXPLAIN INSERT INTO {table} (id) VALUES (NULL); EXPLAIN DELETE FROM {table}");
    state.query(&sql).await?;
    Ok(Finding::ok("rights", "all that are needed"))
}

/// Tells the server's name of a lock, for use with the server's own tools.
pub(super) fn locate(state: &ClientState, name: &LockName) -> Finding {
    let key = match state.key(name) {
        Ok(key) => key,
        Err(error) => return Finding::failed("named lock", &error),
    };
    let mut literal = Sql::default();
    literal.lock(&key);
    let (host, port) = (&state.config.server.host, state.config.server.port);
    let query = shell_quote(&format!("SELECT IS_USED_LOCK({})", literal.as_str()));
    Finding::ok("named lock", format!("GET_LOCK({key:?}) of {}", state.location())).with_advice(format!(
        "to read the connection that holds it: mariadb -h {} -P {port} -e {query}",
        shell_quote(host)
    ))
}
