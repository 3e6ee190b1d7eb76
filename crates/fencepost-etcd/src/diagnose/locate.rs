//! Where a lock is kept: the exact keys, who is in them, and whether another program keeps a lock of the same name.

use fencepost_contenders::{EntryMeta, holder_count};
use fencepost_core::{Finding, LockName, Result, shell_quote};

use crate::config::Layout;
use crate::keys::{Keys, Stretch};
use crate::proto::{KeyValue, RangeRequest};
use crate::request::{in_order, mere};
use crate::store::{LOOKING, Store};

/// How many foreign keys are named.
const MOST_STRANGERS: usize = 5;

/// The keys of a lock, and what is in them.
pub(crate) async fn locate(store: &Store, name: &LockName) -> Vec<Finding> {
    let mut findings = Vec::new();
    match read(store, in_order(store.keys.line(name))).await {
        Ok(line) => {
            findings.push(place(store, name, &line));
            findings.extend(store.keys.layout.word().and_then(|_| strangers_among(&line)));
        }
        Err(error) => findings.push(Finding::from_result("lock's keys", Err(error))),
    }
    if store.keys.layout != Layout::Single {
        findings.push(Finding::from_result("cell's key", cell(store, name).await));
    }
    for (layout, stretch) in elsewhere(store.keys.layout, name) {
        match read(store, in_order(stretch)).await {
            Ok(keys) => findings.extend(stranger(layout, &keys)),
            Err(error) => findings.push(Finding::not_checked("foreign key", &error)),
        }
    }
    findings.dedup();
    findings
}

async fn read(store: &Store, request: RangeRequest) -> Result<Vec<KeyValue>> {
    let answer = store.link.range(request, LOOKING).await;
    Ok(answer.map_err(|failure| store.failed(failure))?.kvs)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Where the lock's keys are, and who is in them.
fn place(store: &Store, name: &LockName, line: &[KeyValue]) -> Finding {
    let from = text(&store.keys.line(name).from);
    let below = if store.keys.layout == Layout::Single { "" } else { "--prefix --sort-by=CREATE " };
    let modes = line.iter().map(|key| store.keys.mode_of(key));
    let found = match (holder_count(modes), line) {
        (_, []) => "nothing there now".to_owned(),
        (first, [holder, ..]) => format!(
            "{first} first in line, {} behind; {} is of {}",
            line.len() - first,
            text(&holder.key),
            whose(holder)
        ),
    };
    Finding::ok("lock's keys", format!("{from} ({found})"))
        .with_advice(format!("to look: etcdctl get {below}{}", shell_quote(&from)))
}

async fn cell(store: &Store, name: &LockName) -> Result<Finding> {
    let key = store.keys.cell(name);
    let there = read(store, mere(key.clone())).await?;
    let what = if there.is_empty() { "nothing there now" } else { "a value" };
    Ok(Finding::ok("cell's key", format!("{} ({what})", text(&key))))
}

/// Who has made a key that stands for a lock.
fn whose(key: &KeyValue) -> String {
    let lease = format!("{:x}", key.lease);
    match EntryMeta::from_bytes(&key.value) {
        Some(entry_meta) => format!("{:?}, with the lease {lease}", &*entry_meta.label),
        None if key.lease == 0 => "nobody that can be known, and has no lease".to_owned(),
        // The recipe calls a key as its lease.
        None if text(&key.key)
            .rsplit('/')
            .next()
            .is_some_and(|last| i64::from_str_radix(last, 16) == Ok(key.lease)) =>
        {
            format!("etcdctl or Go's client, with the lease {lease}")
        }
        None => format!("another program, with the lease {lease}"),
    }
}

/// Of a line that is shared with others: those who are not ours. They exclude ours, and ours exclude them.
fn strangers_among(line: &[KeyValue]) -> Option<Finding> {
    let strangers: Vec<&KeyValue> =
        line.iter().filter(|key| EntryMeta::from_bytes(&key.value).is_none()).collect();
    if let Some(eternal) = strangers.iter().find(|key| key.lease == 0) {
        let found =
            format!("{} has no lease: it does not end by itself, and keeps the lock", text(&eternal.key));
        let advice = format!(
            "if it is left over: etcdctl del {}; if it is no lock, use another name",
            shell_quote(&text(&eternal.key))
        );
        return Some(Finding::warning("foreign keys", found).with_advice(advice));
    }
    let named =
        strangers.iter().take(MOST_STRANGERS).map(|key| format!("{} is of {}", text(&key.key), whose(key)));
    let named = named.collect::<Vec<_>>().join("; ");
    let count = strangers.len();
    (count > 0).then(|| Finding::ok("foreign keys", format!("{count}, in one line with ours: {named}")))
}

/// Where other programs keep a lock of this name, which is not where ours is; and the layout in which it would be.
fn elsewhere(layout: Layout, name: &LockName) -> Vec<(&'static str, Stretch)> {
    let places = [("raw", Layout::Raw), ("single", Layout::Single)];
    let others = places.into_iter().filter(|(_, other)| *other != layout);
    others.map(|(word, other)| (word, Keys::new("", other).line(name))).collect()
}

/// Whether what is there is a lock.
fn stranger(layout: &str, keys: &[KeyValue]) -> Option<Finding> {
    let leased = keys.iter().find(|key| key.lease != 0)?;
    let found = format!("{} is of {}", text(&leased.key), whose(leased));
    let advice = format!("it does not exclude the lock of this name unless the URL says layout={layout}");
    Some(Finding::warning("foreign key", found).with_advice(advice))
}
