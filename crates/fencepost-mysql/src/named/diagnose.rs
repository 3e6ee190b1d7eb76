//! Diagnoses named locks: the server, its connections, the rights, and where a lock is.

use fencepost_core::{Finding, LockName, Result, StorageId, shell_quote};

use super::backend::WAIT_SLICE;
use super::schema;
use super::state::ClientState;
use crate::config::Layout;
use crate::diagnose::rights::rights;
use crate::diagnose::{Storage, crash_release, namespace, server_findings};
use crate::literal::Sql;
use crate::sessions::MAX_SESSIONS;

pub(super) async fn diagnose(state: &ClientState) -> Vec<Finding> {
    let config = &state.config;
    let per_client = match config.layout {
        Layout::Named { connections, .. } => connections + MAX_SESSIONS,
        Layout::Lease => MAX_SESSIONS,
    };
    let mut findings = server_findings(config, &state.control, Storage::Sessions { per_client }).await;
    let storage_id = storage_id(state).await.map(|id| namespace(config, "named_", id));
    findings.insert(0, Finding::from_result("namespace", storage_id));
    let (sessions, storage) = (state.table(), config.named_table("named_storage"));
    let needed = [(sessions.as_str(), "id", "SELECT, INSERT, DELETE"), (storage.as_str(), "id", "SELECT")];
    findings.push(rights(&state.control, &needed).await);
    findings.push(crash_release(WAIT_SLICE));
    findings
}

async fn storage_id(state: &ClientState) -> Result<StorageId> {
    let mut lent = state.control.take().await?;
    let id = schema::read_or_create(&state.config, &mut lent.session, true).await?;
    state.control.put(lent);
    Ok(id)
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
