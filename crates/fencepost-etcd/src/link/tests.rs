//! Tests of the link against real servers.

mod auth;
mod calls;
mod failures;
mod watches;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost_core::{ErrorKind, Result};
use fencepost_net::{Account, Address, Secret};
use fencepost_testkit::wait;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Change, Link, LinkConfig, WatchEvent, WatchId, WatchTarget};
use crate::error::Failure;
use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::request_op::Request;
use crate::proto::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};

/// The timeout of each call.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A link and its watch events.
struct TestLink {
    link: Arc<Link>,
    events: UnboundedReceiver<WatchEvent>,
}

impl TestLink {
    async fn event(&mut self) -> (WatchId, Change) {
        let event = wait::within_timeout("an event", self.events.recv()).await;
        let event = event.expect("the link is open");
        (event.id, event.change)
    }

    /// Waits until the link has no connection.
    async fn until_closed(&self) {
        wait::until("the link notices that the connection is closed", async || {
            self.link.connection.current().is_none_or(|connection| connection.is_closed())
        })
        .await;
    }

    async fn put(&self, key: &str, value: &str) -> Result<i64, Failure> {
        let put = txn(vec![], vec![Request::RequestPut(put(key, value, 0))]);
        Ok(self.link.txn(put, TIMEOUT).await?.header.expect("it has a header").revision)
    }

    async fn delete(&self, key: &str) -> Result<i64, Failure> {
        let delete = txn(vec![], vec![Request::RequestDeleteRange(delete(key))]);
        Ok(self.link.txn(delete, TIMEOUT).await?.header.expect("it has a header").revision)
    }

    async fn value(&self, key: &str) -> Result<Option<String>, Failure> {
        let response = self.link.range(range(key), TIMEOUT).await?;
        Ok(response.kvs.first().map(|kv| String::from_utf8(kv.value.clone()).expect("it is UTF-8")))
    }

    fn watch(&self, key: &str, start_revision: i64) -> WatchId {
        let key = key.as_bytes().to_vec();
        self.link.watch(WatchTarget { key, range_end: Vec::new(), start_revision, only_deletes: false })
    }
}

fn config(ports: &[u16], account: Account) -> LinkConfig {
    let members = ports.iter().map(|port| Address { host: "127.0.0.1".into(), port: *port }).collect();
    LinkConfig { members, account, encryption: None, location: "etcd://test".into() }
}

async fn open_with(config: LinkConfig) -> Result<TestLink> {
    let (sender, events) = unbounded_channel();
    Ok(TestLink { link: Link::open(config, sender).await?, events })
}

async fn open(ports: &[u16]) -> TestLink {
    open_with(config(ports, Account::default())).await.expect("the server accepts the client")
}

fn account(user: &str, password: &str) -> Account {
    Account { user: Some(user.into()), password: Some(Secret(password.into())) }
}

/// Returns a key that no other test uses.
fn new_key() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("test/{}", LAST.fetch_add(1, Ordering::Relaxed))
}

fn put(key: &str, value: &str, lease: i64) -> PutRequest {
    PutRequest { key: key.into(), value: value.into(), lease, ..PutRequest::default() }
}

fn delete(key: &str) -> DeleteRangeRequest {
    DeleteRangeRequest { key: key.into(), ..DeleteRangeRequest::default() }
}

fn range(key: &str) -> RangeRequest {
    RangeRequest { key: key.into(), ..RangeRequest::default() }
}

fn absent(key: &str) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.into(),
        target_union: Some(TargetUnion::CreateRevision(0)),
        range_end: Vec::new(),
    }
}

fn txn(compare: Vec<Compare>, success: Vec<Request>) -> TxnRequest {
    let success = success.into_iter().map(|request| RequestOp { request: Some(request) }).collect();
    TxnRequest { compare, success, failure: Vec::new() }
}

#[track_caller]
fn kind<T: std::fmt::Debug>(failed: Result<T, Failure>) -> ErrorKind {
    match failed {
        Err(Failure::Failed(error)) => error.kind(),
        other => panic!("unexpected result: {other:?}"),
    }
}
