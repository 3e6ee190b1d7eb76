//! The cluster that the locks are in, and which keys of it they are: what is asked of it without knowing any attempt of this
//! client.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Attempt, Error, ErrorKind, Result, StorageId};
use futures_util::future::join_all;

use crate::error::Failure;
use crate::keys::Keys;
use crate::link::Link;
use crate::proto::{TxnRequest, TxnResponse};

/// How long the answer to a request is waited for that is about no lease.
pub(crate) const LOOKING: Duration = Duration::from_secs(5);
/// The largest number of parts of a transaction, as servers have it by default.
pub(crate) const MOST_PARTS: usize = 128;
/// The largest number of transactions inside another. A server counts those to the parts of each of them.
pub(crate) const TOGETHER: usize = 64;

/// The storage behind one client.
pub(crate) struct Store {
    pub(crate) keys: Keys,
    pub(crate) location: String,
    pub(crate) storage_id: StorageId,
    pub(crate) link: Arc<Link>,
}

impl Store {
    /// Sends a transaction. A missing lease is a failure like any other.
    pub(crate) async fn txn(&self, request: TxnRequest, timeout: Duration) -> Result<TxnResponse> {
        self.link.txn(request, timeout).await.map_err(|failure| self.failed(failure))
    }

    pub(crate) fn failed(&self, failure: Failure) -> Error {
        failure.into_error(&self.location)
    }

    /// Returns the error of an operation of which only the first step was done.
    pub(crate) fn half_done(&self, failure: Failure) -> Error {
        let message = format!("{} has done only a part of it", self.location);
        Error::new(ErrorKind::OutcomeUnknown, message).with_source(self.failed(failure))
    }

    /// Returns the error of an acquire that was undone by a cleanup. It may come again.
    pub(crate) fn undone(&self, attempt: &Attempt) -> Error {
        let (what, location) = (attempt.describe(), &self.location);
        let message = format!("the acquire of {what} in {location} was undone by a cleanup");
        Error::new(ErrorKind::OutcomeUnknown, message)
    }

    /// Returns the error of a renewal that may or may not have reached the leader.
    pub(crate) fn new_leader(&self) -> Error {
        let message = format!("{} has changed its leader while a lease was being renewed", self.location);
        Error::new(ErrorKind::Unreachable, message)
    }

    /// Asks about these items, a transaction for each batch, all at once, and answers in order. One item that the server refuses
    /// fails its whole transaction, of which nothing is done; then the items of that batch are sent one by one.
    pub(crate) async fn ask_all<T, R>(
        &self,
        batches: Vec<&[T]>,
        ask: impl Fn(&[T]) -> (TxnRequest, Duration),
        read: impl Fn(&[T], TxnResponse) -> Vec<R>,
    ) -> Vec<Result<R, Failure>> {
        let send = |batch: &[T]| {
            let (request, timeout) = ask(batch);
            self.link.txn(request, timeout)
        };
        let requests: Vec<_> = batches.iter().map(|batch| send(batch)).collect();
        let mut results = Vec::new();
        for (batch, answer) in batches.into_iter().zip(join_all(requests).await) {
            match answer {
                Ok(answer) => results.extend(read(batch, answer).into_iter().map(Ok)),
                Err(failure) if failure.is_definite() && batch.len() > 1 => {
                    for one in batch.chunks(1) {
                        match send(one).await {
                            Ok(answer) => results.extend(read(one, answer).into_iter().map(Ok)),
                            Err(failure) => results.push(Err(failure)),
                        }
                    }
                }
                Err(failure) => results.extend(batch.iter().map(|_| Err(duplicate(&failure)))),
            }
        }
        results
    }
}

fn duplicate(failure: &Failure) -> Failure {
    match failure {
        Failure::NoLease => Failure::NoLease,
        Failure::Failed(error) => Failure::Failed(error.clone()),
    }
}

/// Splits these items, in order, so that no batch has more parts than this; but a single item may.
pub(crate) fn batches<T>(items: &[T], most: usize, parts: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut batches = Vec::new();
    let (mut from, mut sum) = (0, 0);
    for (at, item) in items.iter().enumerate() {
        sum += parts(item);
        if at > from && sum > most {
            batches.push(&items[from..at]);
            (from, sum) = (at, parts(item));
        }
    }
    if from < items.len() {
        batches.push(&items[from..]);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_as_many_parts_as_fit_and_keeps_the_order() {
        let split = |parts: &[usize]| -> Vec<Vec<usize>> {
            batches(parts, 4, |parts| *parts).into_iter().map(<[usize]>::to_vec).collect()
        };
        assert!(split(&[]).is_empty());
        assert_eq!(split(&[1, 1, 2]), [vec![1, 1, 2]]);
        assert_eq!(split(&[3, 2, 2, 1]), [vec![3], vec![2, 2], vec![1]]);
        assert_eq!(
            split(&[1, 9, 1]),
            [vec![1], vec![9], vec![1]],
            "one that is too large has a batch of its own"
        );
    }
}
