//! The location of a lock: the exact keys, their owners, and whether another program uses a lock of the same name.

use fencepost_contenders::{EntryMeta, holder_count};
use fencepost_core::{Finding, LockName, Result, shell_quote};

use crate::cluster::{Cluster, READ_TIMEOUT};
use crate::config::Layout;
use crate::layout::{KeyRange, Keys};
use crate::proto::{KeyValue, RangeRequest};
use crate::request::{keys_only, oldest_first};

/// The maximum number of foreign keys in a finding.
const MAX_FOREIGN: usize = 5;

/// Returns the keys of a lock and their owners.
pub(crate) async fn locate(cluster: &Cluster, name: &LockName) -> Vec<Finding> {
    let mut findings = Vec::new();
    match read(cluster, oldest_first(cluster.keys.queue(name))).await {
        Ok(queue) => {
            findings.push(queue_finding(cluster, name, &queue));
            findings.extend(cluster.keys.layout.word().and_then(|_| foreign_in_queue(&queue)));
        }
        Err(error) => findings.push(Finding::from_result("lock's keys", Err(error))),
    }
    if cluster.keys.layout != Layout::Single {
        findings.push(Finding::from_result("cell's key", cell_finding(cluster, name).await));
    }
    for (layout, range) in other_layouts(cluster.keys.layout, name) {
        match read(cluster, oldest_first(range)).await {
            Ok(keys) => findings.extend(foreign_lock(layout, &keys)),
            Err(error) => findings.push(Finding::not_checked("foreign key", &error)),
        }
    }
    findings.dedup();
    findings
}

async fn read(cluster: &Cluster, request: RangeRequest) -> Result<Vec<KeyValue>> {
    let response = cluster.link.range(request, READ_TIMEOUT).await;
    Ok(response.map_err(|failure| cluster.to_error(failure))?.kvs)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns where the keys of the lock are, and their owners.
fn queue_finding(cluster: &Cluster, name: &LockName, queue: &[KeyValue]) -> Finding {
    let start = text(&cluster.keys.queue(name).start);
    let options = if cluster.keys.layout == Layout::Single { "" } else { "--prefix --sort-by=CREATE " };
    let modes = queue.iter().map(|key| cluster.keys.mode_of(key));
    let found = match (holder_count(modes), queue) {
        (_, []) => "nothing there now".to_owned(),
        (first, [holder, ..]) => format!(
            "{first} first in the queue, {} behind; {} belongs to {}",
            queue.len() - first,
            text(&holder.key),
            owner_of(holder)
        ),
    };
    Finding::ok("lock's keys", format!("{start} ({found})"))
        .with_advice(format!("to read them: etcdctl get {options}{}", shell_quote(&start)))
}

async fn cell_finding(cluster: &Cluster, name: &LockName) -> Result<Finding> {
    let key = cluster.keys.cell(name);
    let keys = read(cluster, keys_only(key.clone())).await?;
    let what = if keys.is_empty() { "nothing there now" } else { "a value" };
    Ok(Finding::ok("cell's key", format!("{} ({what})", text(&key))))
}

/// Describes the owner of a key.
fn owner_of(key: &KeyValue) -> String {
    let lease = format!("{:x}", key.lease);
    match EntryMeta::from_bytes(&key.value) {
        Some(entry_meta) => format!("{:?}, with lease {lease}", &*entry_meta.label),
        None if key.lease == 0 => "an unknown program, without a lease".to_owned(),
        // The official recipe uses the lease id as the last part of the key.
        None if text(&key.key)
            .rsplit('/')
            .next()
            .is_some_and(|last| i64::from_str_radix(last, 16) == Ok(key.lease)) =>
        {
            format!("etcdctl or Go's client, with lease {lease}")
        }
        None => format!("another program, with lease {lease}"),
    }
}

/// Returns the foreign keys in a queue that is shared with other programs. Foreign clients and Fencepost exclude each other.
fn foreign_in_queue(queue: &[KeyValue]) -> Option<Finding> {
    let foreign: Vec<&KeyValue> =
        queue.iter().filter(|key| EntryMeta::from_bytes(&key.value).is_none()).collect();
    if let Some(without_lease) = foreign.iter().find(|key| key.lease == 0) {
        let found =
            format!("{} has no lease: it does not expire, and blocks the lock", text(&without_lease.key));
        let advice = format!(
            "if it is an orphan: etcdctl del {}; if it is not a lock, use another lock name",
            shell_quote(&text(&without_lease.key))
        );
        return Some(Finding::warning("foreign keys", found).with_advice(advice));
    }
    let named = foreign
        .iter()
        .take(MAX_FOREIGN)
        .map(|key| format!("{} belongs to {}", text(&key.key), owner_of(key)));
    let named = named.collect::<Vec<_>>().join("; ");
    let count = foreign.len();
    (count > 0).then(|| Finding::ok("foreign keys", format!("{count} in the same queue: {named}")))
}

/// Returns the other layouts in which a foreign client may use a lock of this name, and the range of its keys.
fn other_layouts(layout: Layout, name: &LockName) -> Vec<(&'static str, KeyRange)> {
    let layouts = [("raw", Layout::Raw), ("single", Layout::Single)];
    let others = layouts.into_iter().filter(|(_, other)| *other != layout);
    others.map(|(word, other)| (word, Keys::new("", other).queue(name))).collect()
}

/// Returns a warning if one of these keys belongs to a lock in another layout.
fn foreign_lock(layout: &str, keys: &[KeyValue]) -> Option<Finding> {
    let leased = keys.iter().find(|key| key.lease != 0)?;
    let found = format!("{} belongs to {}", text(&leased.key), owner_of(leased));
    let advice = format!(
        "it does not exclude Fencepost's lock of this name; to share it, use layout={layout} in the URL"
    );
    Some(Finding::warning("foreign key", found).with_advice(advice))
}
