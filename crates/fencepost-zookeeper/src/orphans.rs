//! Entries that were given up and whose nodes are to be deleted: by the operation that gave them up, and by the task that
//! looks after the session if that does not succeed.

use std::sync::Arc;

use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Owner, Result};

use crate::nodes::{delete_all, find};
use crate::session::Session;
use crate::shared::Shared;

/// An entry that was given up.
#[derive(Debug)]
pub(crate) struct Orphan {
    pub(crate) session: Arc<Session>,
    pub(crate) attempt: Arc<Attempt>,
    /// `None` while it is not known whether they were made.
    pub(crate) nodes: Option<Vec<String>>,
    pub(crate) since: Moment,
}

/// Gives up the live entry of this owner and deletes its nodes.
pub(crate) async fn discard(shared: &Shared, owner: Owner) -> Result<()> {
    let orphan = shared.registry().orphan(owner, shared.clock.now());
    delete_now_or_later(shared, orphan).await
}

/// Deletes what a former entry of this owner has left.
pub(crate) async fn clear(shared: &Shared, owner: Owner) -> Result<()> {
    let orphan = {
        let mut registry = shared.registry();
        registry.live(owner, shared.clock.now());
        registry.orphan_of(owner)
    };
    delete_now_or_later(shared, orphan).await
}

/// Deletes an orphan. If that fails, the task that looks after the session does it.
pub(crate) async fn delete_now_or_later(shared: &Shared, orphan: Option<Arc<Orphan>>) -> Result<()> {
    let Some(orphan) = orphan else { return Ok(()) };
    delete(shared, &orphan).await.inspect_err(|_| orphan.session.chores.notify_one())
}

/// Deletes the nodes of an orphan, wherever they are, and forgets it.
pub(crate) async fn delete(shared: &Shared, orphan: &Arc<Orphan>) -> Result<()> {
    let Orphan { session, attempt, nodes, .. } = &**orphan;
    if !session.is_over() {
        let nodes = match nodes {
            Some(nodes) => nodes.clone(),
            _ => find(shared, session, attempt).await?.paths,
        };
        // Otherwise it was deleted meanwhile, and what was found may belong to a new entry of the same owner.
        if !shared.registry().has_orphan(orphan) {
            return Ok(());
        }
        delete_all(session, &nodes).await.map_err(|error| shared.setup.failed(&error))?;
    }
    shared.registry().remove_orphan(orphan);
    Ok(())
}
