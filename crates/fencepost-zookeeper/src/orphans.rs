//! Entries that no operation owns any more and whose nodes are to be deleted: by the operation that orphaned them, and
//! by the maintenance task of the session if that fails.

use std::sync::Arc;

use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Owner, Result};

use crate::nodes::{delete_all, find_nodes};
use crate::session::Session;
use crate::state::ClientState;

/// An entry whose nodes are to be deleted.
#[derive(Debug)]
pub(crate) struct Orphan {
    pub(crate) session: Arc<Session>,
    pub(crate) attempt: Arc<Attempt>,
    /// `None` while the outcome of creating them is unknown.
    pub(crate) nodes: Option<Vec<String>>,
    pub(crate) since: Moment,
}

/// Turns the live entry of this owner into an orphan and deletes its nodes.
pub(crate) async fn discard_entry(state: &ClientState, owner: Owner) -> Result<()> {
    let orphan = state.registry().make_orphan(owner, state.clock.now());
    delete_or_defer(state, orphan).await
}

/// Deletes the nodes of an orphan of this owner, if there is one.
pub(crate) async fn delete_orphan_of(state: &ClientState, owner: Owner) -> Result<()> {
    let orphan = {
        let mut registry = state.registry();
        registry.live_entry(owner, state.clock.now());
        registry.orphan_of(owner)
    };
    delete_or_defer(state, orphan).await
}

/// Deletes the nodes of an orphan. If that fails, wakes the maintenance task, which retries.
pub(crate) async fn delete_or_defer(state: &ClientState, orphan: Option<Arc<Orphan>>) -> Result<()> {
    let Some(orphan) = orphan else { return Ok(()) };
    delete_orphan(state, &orphan).await.inspect_err(|_| orphan.session.maintenance.notify_one())
}

/// Deletes the nodes of an orphan and removes it from the registry. Nodes that are not known are found first.
pub(crate) async fn delete_orphan(state: &ClientState, orphan: &Arc<Orphan>) -> Result<()> {
    let Orphan { session, attempt, nodes, .. } = &**orphan;
    if !session.is_over() {
        let nodes = match nodes {
            Some(nodes) => nodes.clone(),
            _ => find_nodes(state, session, attempt).await?.paths,
        };
        // If it was deleted in the meantime, the nodes that were found may belong to a new entry of the same owner.
        if !state.registry().has_orphan(orphan) {
            return Ok(());
        }
        delete_all(session, &nodes).await.map_err(|error| state.ensemble.failed(&error))?;
    }
    state.registry().remove_orphan(orphan);
    Ok(())
}
