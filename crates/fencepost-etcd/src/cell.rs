//! Cells. A cell that exists while the lock is held is stored in its holder's key, a persistent cell in a key of its own.
//! Either is written under a comparison of the holder's key.

use std::sync::Arc;
use std::time::Duration;

use fencepost_contenders::{EntryMeta, PersistentCell};
use fencepost_core::backend::Reply;
use fencepost_core::{Cell, Error, ErrorKind, Grant, Keep, LockName, Mode, Result, Want, request_timeout};

use crate::cluster::Cluster;
use crate::config::Layout;
use crate::key_ops::create_revision;
use crate::leases::whole_seconds;
use crate::proto::{RequestOp, TxnRequest};
use crate::request::{created_by, delete, nested, oldest_first, put, put_keeping_lease};
use crate::state::ClientState;

pub(crate) async fn read_cell(client: &ClientState, name: &LockName) -> Result<Reply> {
    Ok(Reply::Cell(client.cluster.lock_state(name).await?.cell))
}

pub(crate) async fn write_cell(
    client: &ClientState,
    grant: &Grant,
    name: &LockName,
    bytes: &Arc<[u8]>,
    keep: Keep,
) -> Result<Reply> {
    let cluster = &client.cluster;
    if cluster.keys.layout == Layout::Single {
        return Err(Error::new(ErrorKind::Unsupported, "layout=single does not support cells")
            .with_hint("remove layout= from the URL: Fencepost's own layout supports them"));
    }
    let Some(want) = grant.held().iter().find(|want| want.name == *name) else {
        return Ok(Reply::NotHeld);
    };
    let (mut entry_meta, key) = {
        let (owner, state) = (grant.attempt.owner, client.state());
        let known = state.own_entries.get(owner).map(|own| own.entry.meta.clone());
        (known.unwrap_or_else(|| EntryMeta::new(&grant.attempt)), state.entry_key(cluster, want, owner))
    };
    let (cell_key, timeout) = (cluster.keys.cell(name), request_timeout(grant.award.ttl));
    let (lease, write) = match keep {
        Keep::WhileHeld => {
            entry_meta.cell = Some(bytes.clone());
            (None, delete(cell_key))
        }
        Keep::For(_) | Keep::Always => {
            let ttl = if let Keep::For(ttl) = keep { Some(ttl) } else { None };
            let lease = match ttl {
                Some(ttl) => Some(cluster.cell_lease(ttl, timeout).await?),
                None => None,
            };
            let cell = Cell { token: grant.award.token, bytes: bytes.clone() };
            let stored = PersistentCell { cell, ttl }.to_bytes();
            (lease, put(cell_key, stored, lease.unwrap_or(0)))
        }
    };
    let mut success = cluster.clear_other_cells(want, &key, timeout).await?;
    success.extend([put_keeping_lease(key.clone(), entry_meta.to_bytes()), write]);
    let compare = vec![created_by(key, create_revision(grant))];
    let request = TxnRequest { compare, success, failure: Vec::new() };
    if cluster.txn(request, timeout).await?.succeeded {
        return Ok(Reply::Written);
    }
    if let Some(lease) = lease {
        // It has no keys; if the revocation fails, it expires by itself.
        let _ = cluster.link.lease_revoke(lease, timeout).await;
    }
    Ok(Reply::NotHeld)
}

impl Cluster {
    /// Returns the operations that clear the cells of other holders of a shared lock: a lock has one cell.
    async fn clear_other_cells(&self, want: &Want, own: &[u8], timeout: Duration) -> Result<Vec<RequestOp>> {
        if want.mode == Mode::Exclusive {
            return Ok(Vec::new());
        }
        let queue = self.link.range(oldest_first(self.keys.queue(&want.name)), timeout).await;
        let queue = queue.map_err(|failure| self.to_error(failure))?.kvs;
        let cleared = queue.into_iter().filter(|key| key.key != own).filter_map(|key| {
            let entry_meta =
                EntryMeta::from_bytes(&key.value).filter(|entry_meta| entry_meta.cell.is_some())?;
            let compare = vec![created_by(key.key.clone(), key.create_revision)];
            let without_cell = EntryMeta { cell: None, ..entry_meta }.to_bytes();
            let success = vec![put_keeping_lease(key.key, without_cell)];
            Some(nested(TxnRequest { compare, success, failure: Vec::new() }))
        });
        Ok(cleared.collect())
    }

    async fn cell_lease(&self, ttl: Duration, timeout: Duration) -> Result<i64> {
        let lease = self.link.lease_grant(whole_seconds(ttl), 0, timeout).await;
        Ok(lease.map_err(|failure| self.to_error(failure))?.id)
    }
}
