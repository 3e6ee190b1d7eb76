//! Those who lock, wait and look on in the tests: those of the test kit, and what they need here.

use std::time::Duration;

use fencepost_core::Client;
pub(crate) use fencepost_testkit::actions::*;

/// A lease that is short, but long enough to be kept on a busy machine. etcd counts in whole seconds.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

pub(crate) async fn connect(url: &str) -> Client {
    fencepost_etcd::connect(url).await.expect("the server lets us in")
}
