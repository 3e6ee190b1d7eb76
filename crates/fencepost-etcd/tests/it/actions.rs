//! The actions of the test kit, and what they need here.

use std::time::Duration;

use fencepost_core::Client;
pub(crate) use fencepost_testkit::actions::*;

/// A ttl that is short, but long enough to be renewed on a busy machine. etcd counts in whole seconds.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

pub(crate) async fn connect(url: &str) -> Client {
    fencepost_etcd::connect(url).await.expect("the server accepts the client")
}
