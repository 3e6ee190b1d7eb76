//! Diagnoses advisory locks: the server, the rights, whether the server notices clients that are gone, and where a lock is.

use std::time::Duration;

use fencepost_core::{Finding, LockName, Result};

use super::keys::Key;
use super::session::CONNECTION_CHECK;
use super::state::ClientState;
use super::{listing, schema};
use crate::config::Layout;
use crate::diagnose::{Server, Storage, crash_release, namespace};
use crate::link::socket::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};

pub(super) async fn diagnose(state: &ClientState) -> Vec<Finding> {
    let control = match state.control().await {
        Ok(control) => control,
        Err(error) => return vec![Finding::failed("server", &error)],
    };
    let config = state.link.config();
    // One more executes everything but holding and waiting.
    let per_client = match config.layout {
        Layout::Advisory { connections, .. } => connections + 1,
        _ => 1,
    };
    let server = Server { link: &state.link, client: &control, storage: Storage::Sessions { per_client } };
    let storage_id = schema::read_or_create(&state.link, &control, true).await;
    let storage_id = storage_id.map(|id| namespace(&config.namespace, id));
    let mut findings = vec![Finding::from_result("namespace", storage_id)];
    findings.extend(server.findings().await);
    findings.push(server.rights(&config.namespace).await);
    let noticed = keepalive(state).await;
    let crash_release = noticed.map(|noticed| crash_release(noticed, state.link.is_direct()));
    findings.push(Finding::from_result("crash release", crash_release));
    findings
}

/// Returns how long the server takes to notice that the host of a waiter is gone; `None` if its system does not let it probe
/// clients. The settings are those of sessions, and last for this statement.
async fn keepalive(state: &ClientState) -> Result<Option<Duration>> {
    let set = |name: &str, value: u64| format!("set_config('{name}', '{value}', true)::bigint");
    // What is returned is what the system says about the connection.
    let query = format!(
        "SELECT {}, {}, {}",
        set("tcp_keepalives_idle", KEEPALIVE_IDLE.as_secs()),
        set("tcp_keepalives_interval", KEEPALIVE_INTERVAL.as_secs()),
        set("tcp_keepalives_count", KEEPALIVE_PROBES.into()),
    );
    let rows = state.read(&query, &[]).await?;
    let row = listing::single(state, &rows)?;
    let [idle, interval, count] = [0, 1, 2].map(|column| row.get::<_, i64>(column).unsigned_abs());
    let noticed = Duration::from_secs(idle.saturating_add(interval.saturating_mul(count)));
    Ok((idle > 0 && interval > 0 && count > 0).then(|| noticed + CONNECTION_CHECK))
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
