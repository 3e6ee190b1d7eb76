//! The checks of `fencepost doctor`: everything about an ensemble that can weaken a guarantee.

mod access;
mod locate;
mod servers;
mod srvr;

use fencepost_core::{Finding, Lock, Result, StorageId, duration_text};
use zookeeper_client as zk;

use crate::config::Dialect;
use crate::ensemble::Ensemble;
use servers::ServerReports;

pub(crate) use locate::locate;

/// Checks the ensemble, and every server of it that the URL names. Its session creates no node.
pub(crate) async fn diagnose(ensemble: &Ensemble, storage_id: StorageId) -> Vec<Finding> {
    let config = &ensemble.config;
    let mut findings = vec![
        Finding::ok("chroot", format!("{}, storage id {storage_id}", ensemble.layout.locks())),
        dialect(config.dialect),
        leases(ensemble),
        Finding::ok(
            "clocks",
            "the leader alone measures session timeouts, and not with the wall clock: no clock has to be correct",
        ),
    ];
    let control = ensemble.connect_control().await;
    let (members, acls) = match &control {
        Ok(client) => {
            let (members, acls) =
                futures_util::join!(client.get_config(), client.get_acl(ensemble.layout.locks()));
            let failed = |error: zk::Error| ensemble.failed(&error);
            (members.map(|(bytes, _)| bytes).map_err(failed), acls.map(|(acls, _)| acls).map_err(failed))
        }
        Err(error) => (Err(error.clone()), Err(error.clone())),
    };
    let reports = ServerReports { reports: srvr::query_all(config, &ensemble.location).await, members };
    findings.extend(reports.findings());
    findings.push(access::encryption(config));
    findings.push(access::authentication(config));
    findings.push(Finding::from_result("rights", acls.map(|acls| access::rights(&acls))));
    findings
}

/// Describes the dialect and its consequences for other libraries.
fn dialect(dialect: Dialect) -> Finding {
    let (like, peers) = match dialect {
        Dialect::Curator => ("like Curator's", "Curator waits for them, kazoo only if configured to"),
        Dialect::Kazoo => ("like kazoo's", "kazoo waits for them, Curator does not"),
        Dialect::Plain => ("`lock-` and a number", "Curator waits for them, kazoo only if configured to"),
    };
    let word = dialect.word();
    Finding::ok(
        "dialect",
        format!("{word}: nodes are named {like}; Fencepost waits for those of all dialects; {peers}"),
    )
}

/// Checks whether the servers allow the default ttl.
fn leases(ensemble: &Ensemble) -> Finding {
    let (min, max) = (ensemble.range.shortest_ttl(), ensemble.range.longest_ttl());
    let used = Lock::DEFAULT_TTL.clamp(min, max);
    let [default, used_text, min, max] = [Lock::DEFAULT_TTL, used, min, max].map(duration_text);
    let found = format!("ttl from {min} to {max}");
    if used == Lock::DEFAULT_TTL {
        return Finding::ok("leases", found);
    }
    Finding::warning("leases", format!("{found}; locks without a ttl get {used_text} instead of {default}"))
        .with_advice("set a ttl, or let the servers allow more: minSessionTimeout, maxSessionTimeout")
}

/// Returns the finding of a check whose facts could not be read.
fn not_known(check: &str, why: Result<()>) -> Finding {
    Finding::from_result(check, why.map(|()| Finding::ok(check, "nothing was queried")))
}
