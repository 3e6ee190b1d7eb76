//! Cells: one that stays while the lock is held is in its holder's own key, one that stays longer has a key elsewhere.
//! Either is written under a condition on the holder's key.

use std::sync::Arc;
use std::time::Duration;

use fencepost_contenders::{EntryMeta, PersistentCell};
use fencepost_core::backend::Reply;
use fencepost_core::{Cell, Error, ErrorKind, Grant, Keep, LockName, Mode, Result, Want, request_timeout};

use crate::client_state::ClientState;
use crate::config::Layout;
use crate::enter::revision_of;
use crate::leases::seconds;
use crate::proto::{RequestOp, TxnRequest};
use crate::request::{created, delete, in_order, nested, put, replace};
use crate::store::Store;

pub(crate) async fn read_cell(client: &ClientState, name: &LockName) -> Result<Reply> {
    Ok(Reply::Cell(client.store.lock_state(name).await?.cell))
}

pub(crate) async fn write_cell(
    client: &ClientState,
    grant: &Grant,
    name: &LockName,
    bytes: &Arc<[u8]>,
    keep: Keep,
) -> Result<Reply> {
    let store = &client.store;
    if store.keys.layout == Layout::Single {
        return Err(Error::new(ErrorKind::Unsupported, "locks with layout=single have no cell")
            .with_hint("leave out layout=, and Fencepost keeps locks in its own form, which has"));
    }
    let Some(want) = grant.held().iter().find(|want| want.name == *name) else {
        return Ok(Reply::NotHeld);
    };
    let (mut entry_meta, seat) = {
        let (owner, state) = (grant.attempt.owner, client.state());
        let known = state.places.get(owner).map(|place| place.entry.entry_meta.clone());
        (known.unwrap_or_else(|| EntryMeta::new(&grant.attempt)), state.seat(store, want, owner))
    };
    let (cell, timeout) = (store.keys.cell(name), request_timeout(grant.award.ttl));
    let (lease, writes) = match keep {
        Keep::WhileHeld => {
            entry_meta.cell = Some(bytes.clone());
            (None, delete(cell))
        }
        Keep::For(_) | Keep::Always => {
            let lasts = if let Keep::For(lasts) = keep { Some(lasts) } else { None };
            let lease = match lasts {
                Some(lasts) => Some(store.cell_lease(lasts, timeout).await?),
                None => None,
            };
            let kept =
                PersistentCell { cell: Cell { token: grant.award.token, bytes: bytes.clone() }, ttl: lasts };
            (lease, put(cell, kept.to_bytes(), lease.unwrap_or(0)))
        }
    };
    let mut success = store.without_cells_of_others(want, &seat, timeout).await?;
    success.extend([replace(seat.clone(), entry_meta.to_bytes()), writes]);
    let compare = vec![created(seat, revision_of(grant))];
    let request = TxnRequest { compare, success, failure: Vec::new() };
    if store.txn(request, timeout).await?.succeeded {
        return Ok(Reply::Written);
    }
    if let Some(lease) = lease {
        // Nothing hangs on it; if this fails it ends by itself.
        let _ = store.link.lease_revoke(lease, timeout).await;
    }
    Ok(Reply::NotHeld)
}

impl Store {
    /// Returns what removes the cells in the keys of others that share a lock: it has one cell.
    async fn without_cells_of_others(
        &self,
        want: &Want,
        own: &[u8],
        timeout: Duration,
    ) -> Result<Vec<RequestOp>> {
        if want.mode == Mode::Exclusive {
            return Ok(Vec::new());
        }
        let line = self.link.range(in_order(self.keys.line(&want.name)), timeout).await;
        let line = line.map_err(|failure| self.failed(failure))?.kvs;
        let emptied = line.into_iter().filter(|key| key.key != own).filter_map(|key| {
            let entry_meta =
                EntryMeta::from_bytes(&key.value).filter(|entry_meta| entry_meta.cell.is_some())?;
            let compare = vec![created(key.key.clone(), key.create_revision)];
            let success = vec![replace(key.key, EntryMeta { cell: None, ..entry_meta }.to_bytes())];
            Some(nested(TxnRequest { compare, success, failure: Vec::new() }))
        });
        Ok(emptied.collect())
    }

    async fn cell_lease(&self, lasts: Duration, timeout: Duration) -> Result<i64> {
        let lease = self.link.lease_grant(seconds(lasts), 0, timeout).await;
        Ok(lease.map_err(|failure| self.failed(failure))?.id)
    }
}
