//! What `fencepost doctor` finds out about an ensemble: whatever can weaken a promise.

mod access;
mod locate;
mod servers;
mod srvr;

use std::time::Duration;

use fencepost_core::{Finding, Result, StorageId};
use zookeeper_client as zk;

use crate::config::Dialect;
use crate::ensemble::Ensemble;
use servers::ServerReports;

pub(crate) use locate::locate;

/// The ttl that locks have if nobody says otherwise.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// Examines the ensemble, and every server of it that the URL names. The session in which it looks makes no node.
pub(crate) async fn diagnose(ensemble: &Ensemble, storage_id: StorageId) -> Vec<Finding> {
    let config = &ensemble.config;
    let mut findings = vec![
        Finding::ok("chroot", format!("{}, storage id {storage_id}", ensemble.layout.locks())),
        dialect(config.dialect),
        leases(ensemble),
        Finding::ok(
            "clocks",
            "sessions are timed by the leader alone, and by no wall clock: none has to be right",
        ),
    ];
    let looking = ensemble.connect_control().await;
    let (members, acls) = match &looking {
        Ok(client) => {
            let (members, acls) =
                futures_util::join!(client.get_config(), client.get_acl(ensemble.layout.locks()));
            let failed = |error: zk::Error| ensemble.failed(&error);
            (members.map(|(bytes, _)| bytes).map_err(failed), acls.map(|(acls, _)| acls).map_err(failed))
        }
        Err(error) => (Err(error.clone()), Err(error.clone())),
    };
    let reports = ServerReports { asked: srvr::query_all(config, &ensemble.location).await, members };
    findings.extend(reports.findings());
    findings.push(access::encryption(config));
    findings.push(access::authentication(config));
    findings.push(Finding::from_result("rights", acls.map(|acls| access::rights(&acls))));
    findings
}

/// How nodes are named, and what follows from that.
fn dialect(dialect: Dialect) -> Finding {
    let (like, peers) = match dialect {
        Dialect::Curator => ("as Curator does", "Curator waits for them, kazoo only if it is told to"),
        Dialect::Kazoo => ("as kazoo does", "kazoo waits for them, Curator does not"),
        Dialect::Plain => ("`lock-` and a number", "Curator waits for them, kazoo only if it is told to"),
    };
    let word = dialect.word();
    Finding::ok(
        "dialect",
        format!("{word}: our nodes are named {like}, and wait for those of all dialects; {peers}"),
    )
}

/// How long leases can be.
fn leases(ensemble: &Ensemble) -> Finding {
    let (shortest, longest) = (ensemble.range.shortest_ttl(), ensemble.range.longest_ttl());
    let found = format!("a ttl can be {shortest:?} to {longest:?}");
    if (shortest..=longest).contains(&DEFAULT_TTL) {
        return Finding::ok("leases", found);
    }
    Finding::warning("leases", format!("{found}, and locks have {DEFAULT_TTL:?} if nobody says otherwise"))
        .with_advice("give a ttl, or let the servers allow more: minSessionTimeout, maxSessionTimeout")
}

/// What nobody could find out.
fn nothing(check: &str, why: Result<()>) -> Finding {
    Finding::from_result(check, why.map(|()| Finding::ok(check, "nothing was asked")))
}
