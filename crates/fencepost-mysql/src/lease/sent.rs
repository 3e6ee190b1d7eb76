//! The owners of which the server may know something: an acquire of an owner that was never sent before needs not ask for it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fencepost_core::backend::{Op, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::{Owner, Result};

/// How many owners are kept before those whose leases have ended are dropped.
const MAX_OWNERS: usize = 16_384;

/// The owners, and when the leases and tombstones of the last operation have ended.
#[derive(Debug, Default)]
pub(crate) struct SentOwners(Mutex<HashMap<Owner, Moment>>);

impl SentOwners {
    pub(crate) fn contains(&self, owner: Owner) -> bool {
        self.owners().contains_key(&owner)
    }

    /// Records that these operations are about to be sent.
    pub(crate) fn send(&self, ops: &[Op], now: Moment) {
        let mut owners = self.owners();
        for op in ops {
            if let (Op::Acquire { .. } | Op::Leave(_), Some(attempt)) = (op, op.attempt()) {
                // The lease may be granted at the end of the call, and a tombstone be written after it.
                owners.insert(attempt.owner, now + attempt.ttl * 4);
            }
        }
        if owners.len() > MAX_OWNERS {
            owners.retain(|_, ended| *ended > now);
        }
    }

    /// Records the replies: an owner with a definite one is not acquired again.
    pub(crate) fn on_replies(&self, ops: &[Op], replies: &[Result<Reply>]) {
        let mut owners = self.owners();
        for (op, reply) in ops.iter().zip(replies) {
            if let (Op::Release(grant), Ok(Reply::Released)) = (op, reply) {
                owners.remove(&grant.attempt.owner);
            }
        }
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<Owner, Moment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
