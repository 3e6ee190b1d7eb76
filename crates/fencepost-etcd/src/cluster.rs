//! The cluster with the locks, and the names of their keys: requests that do not depend on the attempts of this client.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Attempt, Error, ErrorKind, Result, StorageId};
use futures_util::future::join_all;

use crate::error::Failure;
use crate::layout::Keys;
use crate::link::Link;
use crate::proto::{TxnRequest, TxnResponse};

/// The timeout of requests that do not depend on a lease.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of operations in a transaction: the default of `--max-txn-ops`.
pub(crate) const MAX_TXN_OPS: usize = 128;
/// The maximum number of transactions nested in another. A server adds this number to the operations of each of them.
pub(crate) const MAX_NESTED_TXNS: usize = 64;

/// The cluster, and the names of the keys in it.
pub(crate) struct Cluster {
    pub(crate) keys: Keys,
    pub(crate) location: String,
    pub(crate) storage_id: StorageId,
    pub(crate) link: Arc<Link>,
}

impl Cluster {
    /// Sends a transaction. A missing lease is an error like any other.
    pub(crate) async fn txn(&self, request: TxnRequest, timeout: Duration) -> Result<TxnResponse> {
        self.link.txn(request, timeout).await.map_err(|failure| self.to_error(failure))
    }

    pub(crate) fn to_error(&self, failure: Failure) -> Error {
        failure.into_error(&self.location)
    }

    /// Returns the error of an operation of which only the first request was applied.
    pub(crate) fn partially_applied(&self, failure: Failure) -> Error {
        let message = format!("the request to {} was applied only in part", self.location);
        Error::new(ErrorKind::OutcomeUnknown, message).with_source(self.to_error(failure))
    }

    /// Returns the error of an acquire that was undone by a cleanup. It may be retried.
    pub(crate) fn undone_by_cleanup(&self, attempt: &Attempt) -> Error {
        let (what, location) = (attempt.describe(), &self.location);
        let message =
            format!("the acquire of {what} in {location} was undone by a cleanup; its outcome is unknown");
        Error::new(ErrorKind::OutcomeUnknown, message)
    }

    /// Returns the error of a renewal that may or may not have reached the leader.
    pub(crate) fn leader_changed(&self) -> Error {
        let message = format!("the leader of {} changed while a lease was being renewed", self.location);
        Error::new(ErrorKind::Unreachable, message)
    }

    /// Sends one transaction per batch, concurrently, and returns the results in order. An item that the server rejects
    /// fails its whole transaction without effect; then the items of that batch are sent one by one.
    pub(crate) async fn send_batches<T, R>(
        &self,
        batches: Vec<&[T]>,
        request: impl Fn(&[T]) -> (TxnRequest, Duration),
        interpret: impl Fn(&[T], TxnResponse) -> Vec<R>,
    ) -> Vec<Result<R, Failure>> {
        let send = |batch: &[T]| {
            let (request, timeout) = request(batch);
            self.link.txn(request, timeout)
        };
        let requests: Vec<_> = batches.iter().map(|batch| send(batch)).collect();
        let mut results = Vec::new();
        for (batch, response) in batches.into_iter().zip(join_all(requests).await) {
            match response {
                Ok(response) => results.extend(interpret(batch, response).into_iter().map(Ok)),
                Err(failure) if failure.is_definite() && batch.len() > 1 => {
                    for one in batch.chunks(1) {
                        match send(one).await {
                            Ok(response) => results.extend(interpret(one, response).into_iter().map(Ok)),
                            Err(failure) => results.push(Err(failure)),
                        }
                    }
                }
                Err(failure) => results.extend(batch.iter().map(|_| Err(failure.clone()))),
            }
        }
        results
    }
}

/// Splits these items, in order, into batches of at most this weight. A single item may have more.
pub(crate) fn batches<T>(items: &[T], max_weight: usize, weight: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut batches = Vec::new();
    let (mut start, mut sum) = (0, 0);
    for (index, item) in items.iter().enumerate() {
        sum += weight(item);
        if index > start && sum > max_weight {
            batches.push(&items[start..index]);
            (start, sum) = (index, weight(item));
        }
    }
    if start < items.len() {
        batches.push(&items[start..]);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_as_many_items_as_fit_in_order() {
        let split = |weights: &[usize]| -> Vec<Vec<usize>> {
            batches(weights, 4, |weight| *weight).into_iter().map(<[usize]>::to_vec).collect()
        };
        assert!(split(&[]).is_empty());
        assert_eq!(split(&[1, 1, 2]), [vec![1, 1, 2]]);
        assert_eq!(split(&[3, 2, 2, 1]), [vec![3], vec![2, 2], vec![1]]);
        assert_eq!(
            split(&[1, 9, 1]),
            [vec![1], vec![9], vec![1]],
            "an item that is too large has its own batch"
        );
    }
}
