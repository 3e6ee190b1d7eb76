//! What a server means for locks that live in sessions: they are in its memory, and are free when the session ends.

use std::time::Duration;

use fencepost_core::{Finding, duration_text};

use super::server::Report;

impl Report {
    /// Checks what a failover does to the locks: a standby has none of them, whatever commits wait for.
    pub(super) fn session_replicas(&self) -> Finding {
        let names = &self.synchronous_standby_names;
        let found = match (self.standbys, names.is_empty()) {
            (0, true) => return Finding::ok("replicas", "none, and so no failover"),
            (0, false) => format!("none is connected, of {names}"),
            (count, _) => count.to_string(),
        };
        let found = format!(
            "{found}: a failover ends all locks, and a holder that still reaches the old primary, or none, believes that it \
             holds its lock for up to its ttl"
        );
        Finding::warning("replicas", found).with_advice(
            "check fencing tokens; or use mode=lease, whose grants a failover to a synchronous standby keeps",
        )
    }
}

/// Describes when the lock of a client that is gone is free. `keepalive` is how long the server takes to notice, on this
/// connection, that the other side does not answer; `None` if it does not probe. With `is_direct` the other side is the client.
pub(crate) fn crash_release(keepalive: Option<Duration>, is_direct: bool) -> Finding {
    let check = "crash release";
    let holder = "a holder that is gone loses its lock one ttl after its last heartbeat";
    let Some(keepalive) = keepalive else {
        let found = format!(
            "{holder}, but a waiter whose host is gone stays in the queue: the server does not probe it"
        );
        return Finding::warning(check, found).with_advice(
            "lower the keepalive time of the server's system, or use mode=lease, where tickets expire",
        );
    };
    let noticed = duration_text(keepalive);
    if is_direct {
        let found = format!("{holder}, a waiter whose host is gone leaves the queue within {noticed}");
        return Finding::ok(check, found);
    }
    let found =
        format!("{holder}; a pooler, a proxy or NAT is in between, and notices waiters whose host is gone");
    Finding::ok(check, found).with_advice(format!(
        "a pooler or proxy needs a TCP keepalive of its own (PgBouncer: tcp_keepidle, tcp_keepintvl); through NAT it is {noticed}"
    ))
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity::{Ok as Fine, Warning};

    use super::*;

    #[test]
    fn no_standby_keeps_locks_of_sessions() {
        let names = || "ANY 1 (a, b)".to_owned();
        for (standbys, names, severity, found) in [
            (0, String::new(), Fine, "no failover"),
            (1, String::new(), Warning, "1: a failover ends all locks"),
            (2, names(), Warning, "2: a failover ends all locks"),
            (0, names(), Warning, "none is connected, of ANY 1 (a, b): a failover ends all locks"),
        ] {
            let mut report = Report::healthy();
            (report.standbys, report.synchronous_standby_names) = (standbys, names);
            let finding = report.session_replicas();
            assert_eq!(finding.severity, severity, "{finding}");
            assert!(finding.found.contains(found), "{finding}");
            assert!(!finding.found.contains("grants"), "{finding}");
        }
    }

    #[test]
    fn a_server_that_does_not_probe_clients_is_a_warning() {
        let noticed = Some(Duration::from_secs(13));
        for (keepalive, is_direct, severity, found) in [
            (noticed, true, Fine, "leaves the queue within 13s"),
            (noticed, false, Fine, "NAT is in between"),
            (None, true, Warning, "does not probe"),
        ] {
            let finding = crash_release(keepalive, is_direct);
            assert_eq!(finding.severity, severity, "{finding}");
            assert!(finding.found.contains(found), "{finding}");
        }
    }
}
