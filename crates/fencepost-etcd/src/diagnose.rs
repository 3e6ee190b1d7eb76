//! What `fencepost doctor` finds out about a cluster: whatever can weaken a promise.

mod access;
mod cluster;
mod locate;

use fencepost_core::{Finding, Result};
use futures_util::future::join4;

use crate::config::{Config, Layout};
use crate::request::one;
use crate::store::{LOOKING, Store};
use cluster::Cluster;

pub(crate) use locate::locate;

/// Examines the cluster, and every member of it that the URL names.
pub(crate) async fn diagnose(store: &Store, config: &Config) -> Vec<Finding> {
    let link = &store.link;
    let (namespace, asked, members, alarms) =
        join4(namespace(store, config), link.each(), link.members(LOOKING), link.alarms(LOOKING)).await;
    let failed = |failure| store.failed(failure);
    let cluster = Cluster {
        asked,
        members: members.map(|answer| answer.members).map_err(failed),
        alarms: alarms.map(|answer| answer.alarms).map_err(failed),
    };
    let mut findings = vec![Finding::from_result("namespace", namespace), layout(config), clocks()];
    findings.extend(cluster.judge(config.tls.is_some()));
    findings.push(access::encryption(config));
    findings.push(access::authentication(config, link.is_logged_in()));
    findings
}

async fn namespace(store: &Store, config: &Config) -> Result<Finding> {
    let name = &config.namespace;
    let about = store.link.range(one(store.keys.about()), LOOKING).await;
    let about = about.map_err(|failure| store.failed(failure))?;
    Ok(match about.kvs.first() {
        Some(_) => Finding::ok("namespace", format!("{name}, storage id {}", store.storage_id)),
        None => Finding::ok("namespace", format!("{name}, where no lock has been taken yet")),
    })
}

/// Where the locks are, and what follows from that.
fn layout(config: &Config) -> Finding {
    Finding::ok(
        "layout",
        match config.layout {
            Layout::Own => format!("Fencepost's own, below {}/lock/", config.namespace),
            Layout::Raw => "raw: the very locks of `etcdctl lock` and of Go's concurrency.Mutex, \
                            one holder at a time"
                .to_owned(),
            Layout::Single => "single: one key for each lock, one holder at a time, and whoever comes first \
                               when it is free"
                .to_owned(),
        },
    )
}

fn clocks() -> Finding {
    Finding::ok("clocks", "leases are timed by the leader alone, and by no wall clock: none has to be right")
}
