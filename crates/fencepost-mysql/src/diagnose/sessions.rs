//! What a server means for locks that live on connections: they are in its memory, and are free when the connection ends.

use std::time::Duration;

use fencepost_core::{Finding, duration_text};

use super::server::Report;

impl Report {
    /// Checks what a failover does to the locks: a replica has none of them, whatever commits wait for.
    pub(super) fn session_replicas(&self) -> Finding {
        let count = self.number("Slaves_connected");
        if count == 0 {
            return self.replicas();
        }
        let found = format!(
            "{count}: a failover ends all locks, and a holder that still reaches the old primary, or none, believes that it \
             holds its lock for up to its ttl"
        );
        Finding::warning("replicas", found).with_advice(
            "check fencing tokens; or use mode=lease, whose grants are replicated, with semi-synchronous replication",
        )
    }

    /// A client of a node is not opened; the node may have joined a cluster since.
    pub(super) fn session_cluster(&self) -> Finding {
        if !self.is_on("wsrep_on") {
            return self.cluster();
        }
        let found = "a node of a Galera cluster: each node has named locks of its own, which do not exclude each other";
        Finding::problem("cluster", found).with_advice("use mode=lease, the default of mysql:// URLs")
    }
}

/// Describes when the lock of a client that is gone is free. A waiter joins the queue again after `wait_slice`.
pub(crate) fn crash_release(wait_slice: Duration) -> Finding {
    let found = format!(
        "a holder that is gone loses its lock one ttl after its last heartbeat, a waiter whose host is gone leaves the queue \
         within {}",
        duration_text(wait_slice)
    );
    Finding::ok("crash release", found)
}
