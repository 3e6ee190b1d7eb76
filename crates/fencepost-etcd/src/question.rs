//! The transactions of acquires and releases, and which attempts there are none for.

use fencepost_contenders::EntryMeta;
use fencepost_core::backend::OnBusy;
use fencepost_core::{Attempt, Error, ErrorKind, Grant, Mode, Result, Want};

use crate::config::Layout;
use crate::enter::revision_of;
use crate::proto::{RangeRequest, TxnRequest};
use crate::request::{absent, all, empty, get, gone, in_order, latest, mere, nested, one, put};
use crate::store::{MOST_PARTS, Store};
use crate::successor::Successor;

impl Store {
    /// If nobody is in any of the lines, nothing else needs to be looked at.
    pub(crate) fn coming_alone(&self, attempt: &Attempt, called: &str, lease: i64) -> TxnRequest {
        let entry_meta = EntryMeta::new(attempt).to_bytes();
        let mut request = TxnRequest::default();
        request.compare.push(absent(self.keys.left(attempt.owner, lease)));
        for want in &attempt.wants {
            request.compare.push(empty(self.keys.line(&want.name)));
            request.success.push(put(self.keys.seat(want, called), entry_meta.clone(), lease));
        }
        request
    }

    pub(crate) fn coming_among_others(
        &self,
        attempt: &Attempt,
        called: &str,
        on_busy: OnBusy,
        lease: i64,
    ) -> TxnRequest {
        let keys = &self.keys;
        let entry_meta = EntryMeta::new(attempt).to_bytes();
        let mut request = TxnRequest::default();
        request.compare.push(absent(keys.left(attempt.owner, lease)));
        request.failure.push(get(mere(keys.left(attempt.owner, lease))));
        for want in &attempt.wants {
            let seat = keys.seat(want, called);
            request.compare.push(absent(seat.clone()));
            request.failure.push(get(one(seat.clone())));
            request.success.push(put(seat, entry_meta.clone(), lease));
        }
        for want in &attempt.wants {
            for stretch in keys.contradicting(want) {
                request.compare.push(empty(stretch.clone()));
                request.failure.push(get(latest(stretch, 1)));
            }
            match keys.in_the_way(want).filter(|_| self.is_try(on_busy)) {
                Some(stretch) => request.compare.push(empty(stretch)),
                None => request.success.push(get(self.ahead_of_the_last(want))),
            }
        }
        request
    }

    /// Returns what tells an attempt that has just come whether it holds.
    fn ahead_of_the_last(&self, want: &Want) -> RangeRequest {
        let line = self.keys.ahead_of(want);
        match want.mode {
            // Its own key is not among them.
            Mode::Shared => latest(line, 1),
            Mode::Semaphore { .. } => RangeRequest { keys_only: true, ..in_order(line) },
            // Below a name there may be others, and keys that were made by the same transaction hide the key before them.
            _ if self.keys.layout == Layout::Raw => latest(line, 0),
            _ => latest(line, 2),
        }
    }

    pub(crate) fn going(&self, grant: &Grant, called: &str, successor: Option<&Successor<'_>>) -> TxnRequest {
        let revision = revision_of(grant);
        let going = |want: &Want| {
            let mut request = gone(self.keys.seat(want, called), revision);
            request.success.extend(successor.into_iter().flat_map(Successor::questions));
            request
        };
        match grant.held() {
            [one] => going(one),
            // Some may have been taken away behind our back; the others go all the same.
            several => all(several.iter().map(|want| nested(going(want))).collect()),
        }
    }

    /// Returns whether an attempt comes only if the lock is free. Where one key is the whole line, none waits in it.
    pub(crate) fn is_try(&self, on_busy: OnBusy) -> bool {
        on_busy == OnBusy::Return || self.keys.layout == Layout::Single
    }

    /// Refuses an attempt for which there is no transaction, or no lock in this layout.
    pub(crate) fn can_be_taken(&self, attempt: &Attempt) -> Result<()> {
        let (layout, names) = (self.keys.layout, attempt.wants.len());
        if most_parts(attempt) > MOST_PARTS {
            let message = format!("{names} names at once are more than etcd takes in one transaction");
            let hint = "take fewer locks together: at most 31";
            return Err(Error::new(ErrorKind::Unsupported, message).with_hint(hint));
        }
        let Some(word) = layout.word() else { return Ok(()) };
        let unsupported = |what: &str| {
            let hint = "leave out layout=, and Fencepost keeps locks in its own form, which can";
            Err(Error::new(ErrorKind::Unsupported, format!("locks with layout={word} {what}"))
                .with_hint(hint))
        };
        if attempt.wants.iter().any(|want| want.mode != Mode::Exclusive) {
            return unsupported("are exclusive");
        }
        if layout == Layout::Single && attempt.wants.len() > 1 {
            return unsupported("are taken one by one");
        }
        match attempt.wants.iter().find(|want| self.keys.is_ours(&want.name)) {
            None => Ok(()),
            Some(want) => {
                let name = &want.name;
                let message =
                    format!("a lock {name:?} with layout={word} would be among Fencepost's own keys");
                let hint = "?namespace= says where Fencepost's own keys are";
                Err(Error::new(ErrorKind::BadName, message).with_hint(hint))
            }
        }
    }
}

/// Returns how many parts a transaction has by which this attempt comes, with those inside it.
pub(crate) fn most_parts(attempt: &Attempt) -> usize {
    attempt.wants.len() * 4 + 1
}
