//! Builders for comparisons and operations of transactions, and accessors for their responses.

use crate::layout::KeyRange;
use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::range_request::{SortOrder, SortTarget};
use crate::proto::request_op::Request;
use crate::proto::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, ResponseOp, TxnRequest,
    TxnResponse, response_op::Response,
};

fn equal(key: Vec<u8>, target: CompareTarget, value: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key,
        range_end: Vec::new(),
        target_union: Some(value),
    }
}

/// Compares the revision that created the key; 0 means that the key does not exist.
pub(crate) fn created_by(key: Vec<u8>, create_revision: i64) -> Compare {
    equal(key, CompareTarget::Create, TargetUnion::CreateRevision(create_revision))
}

/// Requires that the key has another value.
pub(crate) fn value_differs(key: Vec<u8>, value: &[u8]) -> Compare {
    let equal = equal(key, CompareTarget::Value, TargetUnion::Value(value.to_vec()));
    Compare { result: CompareResult::NotEqual.into(), ..equal }
}

/// Requires that the key does not exist.
pub(crate) fn key_absent(key: Vec<u8>) -> Compare {
    created_by(key, 0)
}

/// Requires that no key of the range exists.
pub(crate) fn range_empty(range: KeyRange) -> Compare {
    Compare { range_end: range.end, ..key_absent(range.start) }
}

/// Requires that the key was last modified by this revision.
fn modified_by(key: Vec<u8>, revision: i64) -> Compare {
    equal(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

/// Requires that no key of the range was modified after this revision.
pub(crate) fn unmodified_since(range: KeyRange, revision: i64) -> Compare {
    let before = modified_by(range.start, revision + 1);
    Compare { result: CompareResult::Less.into(), range_end: range.end, ..before }
}

/// Puts a key with a value on a lease; lease 0 means none.
pub(crate) fn put(key: Vec<u8>, value: Vec<u8>, lease_id: i64) -> RequestOp {
    op(Request::RequestPut(PutRequest { key, value, lease: lease_id, ..PutRequest::default() }))
}

/// Puts a value and keeps the lease of the key.
pub(crate) fn put_keeping_lease(key: Vec<u8>, value: Vec<u8>) -> RequestOp {
    op(Request::RequestPut(PutRequest { key, value, ignore_lease: true, ..PutRequest::default() }))
}

/// Attaches a key to another lease and keeps its value, if the key is unmodified since it was read. A move that is applied
/// after a later one does nothing.
pub(crate) fn move_to_lease(read: &KeyValue, lease_id: i64) -> TxnRequest {
    let key = || read.key.clone();
    let put = PutRequest { key: key(), lease: lease_id, ignore_value: true, ..PutRequest::default() };
    let compare = vec![created_by(key(), read.create_revision), modified_by(key(), read.mod_revision)];
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

/// Reads one key.
pub(crate) fn single_key(key: Vec<u8>) -> RangeRequest {
    RangeRequest { key, ..RangeRequest::default() }
}

/// Reads one key without its value.
pub(crate) fn keys_only(key: Vec<u8>) -> RangeRequest {
    RangeRequest { keys_only: true, ..single_key(key) }
}

/// Reads all keys of a range, in order of creation.
pub(crate) fn oldest_first(range: KeyRange) -> RangeRequest {
    RangeRequest {
        key: range.start,
        range_end: range.end,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// Reads the keys of a range that were created last, without their values; a limit of 0 means all.
pub(crate) fn newest_first(range: KeyRange, limit: i64) -> RangeRequest {
    RangeRequest { sort_order: SortOrder::Descend.into(), limit, keys_only: true, ..oldest_first(range) }
}

/// Deletes a key if it was created by this revision.
pub(crate) fn delete_if_created_by(key: Vec<u8>, create_revision: i64) -> TxnRequest {
    let success = vec![delete(key.clone())];
    TxnRequest { compare: vec![created_by(key, create_revision)], success, failure: Vec::new() }
}

/// Deletes each of these keys that was created by its revision, independently of the others.
pub(crate) fn delete_each(keys: impl IntoIterator<Item = (Vec<u8>, i64)>) -> TxnRequest {
    let deletes = keys.into_iter().map(|(key, create_revision)| delete_if_created_by(key, create_revision));
    let mut deletes: Vec<TxnRequest> = deletes.collect();
    match (deletes.len(), deletes.pop()) {
        (1, Some(only)) => only,
        (_, last) => unconditional(deletes.into_iter().chain(last).map(nested).collect()),
    }
}

/// Executes all of these operations in one transaction without comparisons.
pub(crate) fn unconditional(success: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { compare: Vec::new(), success, failure: Vec::new() }
}

/// Returns the keys that a read returned.
pub(crate) fn kvs(response: &ResponseOp) -> &[KeyValue] {
    match &response.response {
        Some(Response::ResponseRange(range)) => &range.kvs,
        _ => &[],
    }
}

/// Returns the keys that the next read of a transaction returned.
pub(crate) fn next_kvs<'a>(reads: &mut impl Iterator<Item = &'a ResponseOp>) -> &'a [KeyValue] {
    reads.next().map_or(&[], kvs)
}

/// Returns the response to a nested transaction.
pub(crate) fn nested_response(response: ResponseOp) -> Option<TxnResponse> {
    match response.response {
        Some(Response::ResponseTxn(txn)) => Some(txn),
        _ => None,
    }
}

/// Returns the revision at which a transaction was executed.
pub(crate) fn revision(response: &TxnResponse) -> i64 {
    response.header.map_or(0, |header| header.revision)
}

/// Returns the Raft term in which a transaction was executed.
pub(crate) fn raft_term(response: &TxnResponse) -> u64 {
    response.header.map_or(0, |header| header.raft_term)
}
