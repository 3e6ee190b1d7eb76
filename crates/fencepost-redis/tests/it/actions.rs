//! The test kit's helpers that hold, wait and observe, and what they need here.

use std::time::Duration;

use fencepost_core::Client;
pub(crate) use fencepost_testkit::actions::*;

/// A short ttl, but long enough for renewals on a busy machine.
pub(crate) const SHORT: Duration = Duration::from_millis(1200);

pub(crate) async fn connect(url: &str) -> Client {
    fencepost_redis::connect(url).await.expect("the client connects")
}
