//! The transactions of acquires and releases, and which attempts are not supported.

use fencepost_contenders::EntryMeta;
use fencepost_core::backend::OnBusy;
use fencepost_core::{Attempt, Error, ErrorKind, Grant, Mode, Result, Want};

use crate::cluster::{Cluster, MAX_TXN_OPS};
use crate::config::Layout;
use crate::key_ops::create_revision;
use crate::proto::{RangeRequest, TxnRequest};
use crate::request::{
    delete_if_created_by, get, key_absent, keys_only, nested, newest_first, oldest_first, put, range_empty,
    single_key, unconditional,
};
use crate::successor::Successor;

impl Cluster {
    /// Creates the keys of an attempt if all of its queues are empty: then it holds, and nothing else has to be read.
    pub(crate) fn uncontended_acquire(&self, attempt: &Attempt, suffix: &str, lease_id: i64) -> TxnRequest {
        let entry_meta = EntryMeta::new(attempt).to_bytes();
        let mut request = TxnRequest::default();
        request.compare.push(key_absent(self.keys.tombstone(attempt.owner, lease_id)));
        for want in &attempt.wants {
            request.compare.push(range_empty(self.keys.queue(&want.name)));
            request.success.push(put(self.keys.entry(want, suffix), entry_meta.clone(), lease_id));
        }
        request
    }

    /// Creates the keys of an attempt in its queues, unless it has left, has keys already, or finds the lock in incompatible
    /// use; and reads what is ahead of it. An attempt that does not wait also requires that nothing blocks it.
    pub(crate) fn full_acquire(
        &self,
        attempt: &Attempt,
        suffix: &str,
        on_busy: OnBusy,
        lease_id: i64,
    ) -> TxnRequest {
        let keys = &self.keys;
        let entry_meta = EntryMeta::new(attempt).to_bytes();
        let mut request = TxnRequest::default();
        request.compare.push(key_absent(keys.tombstone(attempt.owner, lease_id)));
        request.failure.push(get(keys_only(keys.tombstone(attempt.owner, lease_id))));
        for want in &attempt.wants {
            let key = keys.entry(want, suffix);
            request.compare.push(key_absent(key.clone()));
            request.failure.push(get(single_key(key.clone())));
            request.success.push(put(key, entry_meta.clone(), lease_id));
        }
        for want in &attempt.wants {
            for range in keys.incompatible(want) {
                request.compare.push(range_empty(range.clone()));
                request.failure.push(get(newest_first(range, 1)));
            }
            match keys.blocking(want).filter(|_| self.needs_free_lock(on_busy)) {
                Some(range) => request.compare.push(range_empty(range)),
                None => request.success.push(get(self.ahead_of_newest(want))),
            }
        }
        request
    }

    /// Returns the read that tells an attempt whose key was just created whether it holds.
    fn ahead_of_newest(&self, want: &Want) -> RangeRequest {
        let range = self.keys.ahead(want);
        match want.mode {
            // Its own key is not in this range.
            Mode::Shared => newest_first(range, 1),
            Mode::Semaphore { .. } => RangeRequest { keys_only: true, ..oldest_first(range) },
            // The range may contain other locks, and keys created by the same transaction sort before the key ahead.
            _ if self.keys.layout == Layout::Raw => newest_first(range, 0),
            _ => newest_first(range, 2),
        }
    }

    /// Deletes the keys of a grant. With a successor, also reads whether it holds now.
    pub(crate) fn release(
        &self,
        grant: &Grant,
        suffix: &str,
        successor: Option<&Successor<'_>>,
    ) -> TxnRequest {
        let create_revision = create_revision(grant);
        let release = |want: &Want| {
            let mut request = delete_if_created_by(self.keys.entry(want, suffix), create_revision);
            request.success.extend(successor.into_iter().flat_map(Successor::reads));
            request
        };
        match grant.held() {
            [one] => release(one),
            // Another client may have deleted some of the keys; the others are deleted nevertheless.
            several => unconditional(several.iter().map(|want| nested(release(want))).collect()),
        }
    }

    /// Returns whether an attempt creates its keys only if the lock is free. With `layout=single` waiters have no keys.
    pub(crate) fn needs_free_lock(&self, on_busy: OnBusy) -> bool {
        on_busy == OnBusy::Return || self.keys.layout == Layout::Single
    }

    /// Rejects an attempt that does not fit into a transaction, or that this layout does not support.
    pub(crate) fn check_supported(&self, attempt: &Attempt) -> Result<()> {
        let (layout, names) = (self.keys.layout, attempt.wants.len());
        if acquire_op_count(attempt) > MAX_TXN_OPS {
            let message = format!("{names} locks at once do not fit into one etcd transaction");
            let hint = "acquire at most 31 locks together";
            return Err(Error::new(ErrorKind::Unsupported, message).with_hint(hint));
        }
        let Some(word) = layout.word() else { return Ok(()) };
        let unsupported = |what: &str| {
            let hint = "remove layout= from the URL: Fencepost's own layout supports it";
            Err(Error::new(ErrorKind::Unsupported, format!("layout={word} {what}")).with_hint(hint))
        };
        if attempt.wants.iter().any(|want| want.mode != Mode::Exclusive) {
            return unsupported("supports exclusive locks only");
        }
        if layout == Layout::Single && attempt.wants.len() > 1 {
            return unsupported("does not support several locks at once");
        }
        match attempt.wants.iter().find(|want| self.keys.is_reserved(&want.name)) {
            None => Ok(()),
            Some(want) => {
                let name = &want.name;
                let message =
                    format!("with layout={word}, lock {name:?} would overlap with Fencepost's own keys");
                let hint =
                    "use another lock name, or another namespace for Fencepost's keys: ?namespace=NAME";
                Err(Error::new(ErrorKind::BadName, message).with_hint(hint))
            }
        }
    }
}

/// Returns the maximum number of comparisons or operations in a transaction that acquires for this attempt.
pub(crate) fn acquire_op_count(attempt: &Attempt) -> usize {
    attempt.wants.len() * 4 + 1
}
