//! Requests in fewer words: comparisons and the parts of a transaction.

use crate::keys::Stretch;
use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::range_request::{SortOrder, SortTarget};
use crate::proto::request_op::Request;
use crate::proto::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, ResponseOp, TxnRequest,
    TxnResponse, response_op::Response,
};

fn equal(key: Vec<u8>, target: CompareTarget, revision: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key,
        range_end: Vec::new(),
        target_union: Some(revision),
    }
}

/// The key was created by this revision; 0 stands for a key that is not there.
pub(crate) fn created(key: Vec<u8>, revision: i64) -> Compare {
    equal(key, CompareTarget::Create, TargetUnion::CreateRevision(revision))
}

/// The key has another value.
pub(crate) fn differs(key: Vec<u8>, value: &[u8]) -> Compare {
    let equal = equal(key, CompareTarget::Value, TargetUnion::Value(value.to_vec()));
    Compare { result: CompareResult::NotEqual.into(), ..equal }
}

/// There is no such key.
pub(crate) fn absent(key: Vec<u8>) -> Compare {
    created(key, 0)
}

/// There is no key in this stretch.
pub(crate) fn empty(stretch: Stretch) -> Compare {
    Compare { range_end: stretch.to, ..absent(stretch.from) }
}

pub(crate) fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> RequestOp {
    op(Request::RequestPut(PutRequest { key, value, lease, ..PutRequest::default() }))
}

/// Puts a value and leaves the key's lease as it is.
pub(crate) fn replace(key: Vec<u8>, value: Vec<u8>) -> RequestOp {
    op(Request::RequestPut(PutRequest { key, value, ignore_lease: true, ..PutRequest::default() }))
}

/// The key was changed for the last time by this revision.
fn changed(key: Vec<u8>, revision: i64) -> Compare {
    equal(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

/// No key of this stretch was changed after this revision.
pub(crate) fn unchanged_since(stretch: Stretch, revision: i64) -> Compare {
    let before = changed(stretch.from, revision + 1);
    Compare { result: CompareResult::Less.into(), range_end: stretch.to, ..before }
}

/// This key, if it is as it was found, hangs on another lease, with the value that it has. A move that arrives after a later
/// one does nothing.
pub(crate) fn moved(found: &KeyValue, lease: i64) -> TxnRequest {
    let key = || found.key.clone();
    let put = PutRequest { key: key(), lease, ignore_value: true, ..PutRequest::default() };
    let compare = vec![created(key(), found.create_revision), changed(key(), found.mod_revision)];
    TxnRequest { compare, success: vec![op(Request::RequestPut(put))], failure: Vec::new() }
}

pub(crate) fn delete(key: Vec<u8>) -> RequestOp {
    op(Request::RequestDeleteRange(DeleteRangeRequest { key, ..DeleteRangeRequest::default() }))
}

pub(crate) fn get(request: RangeRequest) -> RequestOp {
    op(Request::RequestRange(request))
}

pub(crate) fn nested(request: TxnRequest) -> RequestOp {
    op(Request::RequestTxn(request))
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// One key.
pub(crate) fn one(key: Vec<u8>) -> RangeRequest {
    RangeRequest { key, ..RangeRequest::default() }
}

/// One key, without its value.
pub(crate) fn mere(key: Vec<u8>) -> RangeRequest {
    RangeRequest { keys_only: true, ..one(key) }
}

/// All keys of a stretch, the earliest first.
pub(crate) fn in_order(stretch: Stretch) -> RangeRequest {
    RangeRequest {
        key: stretch.from,
        range_end: stretch.to,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// The latest keys of a stretch, the latest first, without their values.
pub(crate) fn latest(stretch: Stretch, limit: i64) -> RangeRequest {
    RangeRequest { sort_order: SortOrder::Descend.into(), limit, keys_only: true, ..in_order(stretch) }
}

/// The key that was created by this revision is taken away.
pub(crate) fn gone(key: Vec<u8>, revision: i64) -> TxnRequest {
    let success = vec![delete(key.clone())];
    TxnRequest { compare: vec![created(key, revision)], success, failure: Vec::new() }
}

/// Each of these keys is taken away that was created by this revision, whatever became of the others.
pub(crate) fn all_gone(keys: impl IntoIterator<Item = (Vec<u8>, i64)>) -> TxnRequest {
    let mut ends: Vec<TxnRequest> = keys.into_iter().map(|(key, revision)| gone(key, revision)).collect();
    match (ends.len(), ends.pop()) {
        (1, Some(only)) => only,
        (_, last) => all(ends.into_iter().chain(last).map(nested).collect()),
    }
}

/// Everything at once, without a condition.
pub(crate) fn all(success: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { compare: Vec::new(), success, failure: Vec::new() }
}

/// What was found by the part of a transaction that looked.
pub(crate) fn found(response: &ResponseOp) -> &[KeyValue] {
    match &response.response {
        Some(Response::ResponseRange(range)) => &range.kvs,
        _ => &[],
    }
}

/// The answers to a nested transaction.
pub(crate) fn inner(response: ResponseOp) -> Option<TxnResponse> {
    match response.response {
        Some(Response::ResponseTxn(txn)) => Some(txn),
        _ => None,
    }
}
