//! Diagnoses advisory locks: whether the server notices clients that are gone, and where a lock is.

use fencepost_core::{Finding, LockName, Result};
use fencepost_net::encryption_finding;

use super::keys::Key;
use super::listing;
use super::state::ClientState;

pub(super) async fn diagnose(state: &ClientState) -> Vec<Finding> {
    let config = state.link.config();
    let advice = "add ?sslmode=require to the URL";
    vec![
        Finding::from_result("server", server(state).await),
        Finding::from_result("connections", connections(state).await),
        Finding::ok("pooler", "none in transaction mode"),
        encryption_finding(config.tls.as_ref(), &config.hosts, advice),
    ]
}

async fn server(state: &ClientState) -> Result<Finding> {
    let rows = state.read("SHOW server_version", &[]).await?;
    let row = listing::single(state, &rows)?;
    Ok(Finding::ok("server", format!("PostgreSQL {}, the primary", row.get::<_, &str>(0))))
}

/// Each lock that is held or awaited has a connection.
async fn connections(state: &ClientState) -> Result<Finding> {
    let query = "SELECT count(*), current_setting('max_connections')::bigint FROM pg_stat_activity \
        WHERE backend_type = 'client backend'";
    let rows = state.read(query, &[]).await?;
    let row = listing::single(state, &rows)?;
    let (used, limit): (i64, i64) = (row.get(0), row.get(1));
    let found = format!("{used} of {limit} in use; each lock that is held or waited for has one");
    if used * 10 < limit * 8 {
        return Ok(Finding::ok("connections", found));
    }
    Ok(Finding::warning("connections", found).with_advice("raise max_connections, or use mode=lease"))
}

pub(super) async fn locate(state: &ClientState, name: &LockName) -> Vec<Finding> {
    let found = async {
        let key = listing::key(state, name).await?;
        let (class, object, sub) = key.columns();
        let call = match key {
            Key::Single(key) => format!("pg_advisory_lock({key})"),
            Key::Pair(first, second) => format!("pg_advisory_lock({first}, {second})"),
        };
        let columns = format!("classid = {class}, objid = {object}, objsubid = {sub}");
        Ok(Finding::ok("advisory lock", format!("{call}; in pg_locks: {columns}")))
    };
    vec![Finding::from_result("advisory lock", found.await)]
}
