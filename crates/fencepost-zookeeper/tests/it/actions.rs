//! The actions of the test kit, and the ones for this backend.

use std::time::Duration;

use fencepost_core::Client;
pub(crate) use fencepost_testkit::actions::*;

/// A short ttl, but long enough to be renewed on a busy machine.
pub(crate) const SHORT_TTL: Duration = Duration::from_millis(1200);

pub(crate) async fn connect(url: &str) -> Client {
    fencepost_zookeeper::connect(url).await.expect("the server accepts the client")
}
