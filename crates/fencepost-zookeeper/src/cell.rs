//! The cell of a lock: in the node of its holder if it ends with the grant, in a node of its own otherwise.

use std::sync::Arc;
use std::time::Duration;

use fencepost_contenders::{EntryMeta, PersistentCell};
use fencepost_core::backend::Reply;
use fencepost_core::{Cell, Grant, Keep, LockName, Result};
use zookeeper_client::{self as zk, CreateMode, MultiWriteError, Stat};

use crate::session::Session;
use crate::state::ClientState;

/// How often a write is tried that conflicts with other clients.
const MAX_TRIES: usize = 5;

/// Returns the persistent cell that was read, unless it has expired; an expired one is deleted.
pub(crate) async fn drop_expired(
    session: &Session,
    path: &str,
    read: Result<(Vec<u8>, Stat), zk::Error>,
) -> Result<Option<Cell>, zk::Error> {
    let (bytes, stat) = match read {
        Ok(read) => read,
        Err(zk::Error::NoNode) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(persistent) = PersistentCell::from_bytes(&bytes) else {
        return Ok(None);
    };
    let age = Duration::from_millis(u64::try_from(session.server_time() - stat.mtime).unwrap_or(0));
    if persistent.ttl.is_some_and(|ttl| age >= ttl) {
        // A concurrent write has changed the version: the new cell is not deleted.
        let _ = session.client.delete(path, Some(stat.version)).await;
        return Ok(None);
    }
    Ok(Some(persistent.cell))
}

/// Writes a cell, in one transaction with the check that the grant is held.
pub(crate) async fn write(
    state: &Arc<ClientState>,
    grant: &Grant,
    name: &LockName,
    bytes: &Arc<[u8]>,
    keep: Keep,
) -> Result<Reply> {
    let Some((session, node)) = holder_node(state, grant, name) else {
        return Ok(Reply::NotHeld);
    };
    session.wait_connected(&state.ensemble, &state.clock).await?;
    let path = state.ensemble.layout.cell(name);
    for _ in 0..MAX_TRIES {
        match write_once(state, &session, &node, &path, grant, bytes, keep).await {
            Ok(()) => return Ok(Reply::Written),
            Err(MultiWriteError::OperationFailed { index: 0, source: zk::Error::NoNode }) => {
                return Ok(Reply::NotHeld);
            }
            // Another client has created or deleted the persistent cell in the meantime.
            Err(MultiWriteError::OperationFailed {
                source: zk::Error::NoNode | zk::Error::NodeExists,
                ..
            }) => {}
            Err(error) => return Err(state.ensemble.failed(&error.into())),
        }
    }
    Err(state.node_removed())
}

/// Returns the node with which a grant holds this name.
fn holder_node(state: &ClientState, grant: &Grant, name: &LockName) -> Option<(Arc<Session>, String)> {
    if !grant.held().iter().any(|want| want.name == *name) {
        return None;
    }
    let at = grant.attempt.wants.iter().position(|want| want.name == *name)?;
    let registry = state.registry();
    let entry = &registry.entries.get(grant.attempt.owner)?.entry;
    let nodes = entry.nodes.as_ref().filter(|nodes| nodes.token == grant.award.token.get())?;
    let node = nodes.paths.get(at).filter(|node| !node.is_empty())?;
    Some((entry.session.clone(), node.clone()))
}

async fn write_once(
    state: &ClientState,
    session: &Session,
    node: &str,
    path: &str,
    grant: &Grant,
    bytes: &Arc<[u8]>,
    keep: Keep,
) -> Result<(), MultiWriteError> {
    let failed = |source| MultiWriteError::RequestFailed { source };
    let (own, persistent) = (session.client.get_data(node), session.client.check_stat(path));
    let (own, persistent) = futures_util::join!(own, persistent);
    let own = match own {
        Ok((own, _)) => own,
        Err(source @ zk::Error::NoNode) => return Err(MultiWriteError::OperationFailed { index: 0, source }),
        Err(source) => return Err(failed(source)),
    };
    let has_persistent = persistent.map_err(failed)?.is_some();
    let mut entry_meta = EntryMeta::from_bytes(&own).unwrap_or_else(|| EntryMeta::new(&grant.attempt));
    let had_cell = entry_meta.cell.is_some();
    entry_meta.cell = (keep == Keep::WhileHeld).then(|| bytes.clone());
    let ttl = if let Keep::For(ttl) = keep { Some(ttl) } else { None };
    let cell = Cell { token: grant.award.token, bytes: bytes.clone() };
    let stored = PersistentCell { cell, ttl }.to_bytes();
    let written = session.transact(|writer| {
        if had_cell || entry_meta.cell.is_some() {
            writer.add_set_data(node, &entry_meta.to_bytes(), None)?;
        } else {
            writer.add_check_version(node, -1)?;
        }
        match (entry_meta.cell.is_some(), has_persistent) {
            (true, true) => writer.add_delete(path, None),
            (true, false) => Ok(()),
            (false, true) => writer.add_set_data(path, &stored, None),
            (false, false) => {
                writer.add_create(path, &stored, &state.ensemble.create_options(CreateMode::Persistent))
            }
        }
    });
    written.await
}
