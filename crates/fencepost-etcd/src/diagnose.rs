//! The checks of `fencepost doctor` on a cluster: everything that can weaken a guarantee.

mod access;
mod cluster_report;
mod locate;

use fencepost_core::{Finding, Result};
use futures_util::future::join4;

use crate::cluster::{Cluster, READ_TIMEOUT};
use crate::config::{Config, Layout};
use crate::request::single_key;
use cluster_report::ClusterReport;

pub(crate) use locate::locate;

/// Checks the cluster, and every member that the URL names.
pub(crate) async fn diagnose(cluster: &Cluster, config: &Config) -> Vec<Finding> {
    let link = &cluster.link;
    let (namespace, statuses, members, alarms) = join4(
        namespace(cluster, config),
        link.member_statuses(),
        link.members(READ_TIMEOUT),
        link.alarms(READ_TIMEOUT),
    )
    .await;
    let to_error = |failure| cluster.to_error(failure);
    let report = ClusterReport {
        statuses,
        members: members.map(|response| response.members).map_err(to_error),
        alarms: alarms.map(|response| response.alarms).map_err(to_error),
    };
    let mut findings = vec![Finding::from_result("namespace", namespace), layout(config), clocks()];
    findings.extend(report.findings(config.tls.is_some()));
    findings.push(access::encryption(config));
    findings.push(access::authentication(config, link.is_logged_in()));
    findings
}

async fn namespace(cluster: &Cluster, config: &Config) -> Result<Finding> {
    let name = &config.namespace;
    let about = cluster.link.range(single_key(cluster.keys.about()), READ_TIMEOUT).await;
    let about = about.map_err(|failure| cluster.to_error(failure))?;
    Ok(match about.kvs.first() {
        Some(_) => Finding::ok("namespace", format!("{name}, storage id {}", cluster.storage_id)),
        None => Finding::ok("namespace", format!("{name}, where no lock has been acquired yet")),
    })
}

/// Describes the layout, and what it implies.
fn layout(config: &Config) -> Finding {
    Finding::ok(
        "layout",
        match config.layout {
            Layout::Own => format!("Fencepost's own, below {}/lock/", config.namespace),
            Layout::Raw => "raw: the locks of `etcdctl lock` and of Go's concurrency.Mutex, \
                            exclusive only"
                .to_owned(),
            Layout::Single => "single: one key for each lock, exclusive only; waiters of different \
                               clients are not queued"
                .to_owned(),
        },
    )
}

fn clocks() -> Finding {
    Finding::ok("clocks", "leases are timed by the leader's monotonic clock: wall clocks may differ")
}
