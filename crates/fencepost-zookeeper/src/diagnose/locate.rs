//! Locates a lock: its exact node, the contenders below it, and foreign nodes.

use fencepost_contenders::EntryMeta;
use fencepost_core::{Finding, LockName, Result, shell_quote};
use zookeeper_client::{self as zk, Stat};

use crate::config::Dialect;
use crate::ensemble::Ensemble;
use crate::foreign::{self, Compatibility};
use crate::layout::Node;
use crate::nodes::{queue_from, read_entries};
use crate::queue::Queue;

/// The maximum number of contenders that are read.
const MAX_CONTENDERS: usize = 20;

/// A contender's node as it was read.
struct LocatedEntry<'a> {
    node: &'a Node,
    stat: Stat,
    meta: Option<EntryMeta>,
}

/// Returns the nodes of a lock, and findings about them.
pub(crate) async fn locate(ensemble: &Ensemble, name: &LockName) -> Vec<Finding> {
    let client = match ensemble.connect_control().await {
        Ok(client) => client,
        Err(error) => return vec![Finding::from_result("lock's node", Err(error))],
    };
    let path = ensemble.layout.lock(name);
    let mut findings = match read_lock_node(ensemble, &client, &path).await {
        Ok(found) => found,
        Err(error) => vec![Finding::from_result("lock's node", Err(error))],
    };
    findings.push(Finding::from_result("cell's node", cell(ensemble, &client, name).await));
    findings.push(peers(ensemble.config.dialect, &path));
    findings
}

/// Describes which other libraries share the lock.
fn peers(dialect: Dialect, path: &str) -> Finding {
    let (same, not) = match dialect {
        Dialect::Curator => {
            ("Curator's InterProcessMutex", "kazoo's Lock only with extra_lock_patterns=[\"-lock-\"]")
        }
        Dialect::Kazoo => ("kazoo's Lock", "Curator's InterProcessMutex does not wait for Fencepost's nodes"),
        Dialect::Plain => (
            "Curator's InterProcessMutex and programs whose nodes are `lock-` and a number",
            "kazoo's Lock only with extra_lock_patterns=[\"lock-\"]",
        ),
    };
    let word = dialect.word();
    Finding::ok("peers", format!("dialect {word}: {same} on {path} is the same lock; {not}"))
}

async fn cell(ensemble: &Ensemble, client: &zk::Client, name: &LockName) -> Result<Finding> {
    let path = ensemble.layout.cell(name);
    let stat = client.check_stat(&path).await.map_err(|error| ensemble.failed(&error))?;
    let what = if stat.is_some() { "a value" } else { "nothing there now" };
    Ok(Finding::ok("cell's node", format!("{path} ({what})")))
}

/// Checks the children of the lock's node.
async fn read_lock_node(ensemble: &Ensemble, client: &zk::Client, path: &str) -> Result<Vec<Finding>> {
    let queue = queue_from(ensemble, client.list_children(path).await)?;
    let first = read_entries(client, path, queue.nodes().iter().take(MAX_CONTENDERS)).await.into_iter();
    // A node that cannot be read is deleted, or not readable for this account.
    let entries =
        first.filter_map(|(node, read)| read.ok().map(|(meta, stat)| LocatedEntry { node, stat, meta }));
    let entries: Vec<LocatedEntry<'_>> = entries.collect();
    let mut findings = vec![lock_node(ensemble, path, &queue, &entries)];
    let incompatible = foreign::incompatible_contenders(ensemble, client, path, &queue).await?;
    findings.extend(foreign_nodes(ensemble.config.dialect, path, &entries, &incompatible));
    let live = foreign::live_other_recipes(ensemble, client, path, &queue).await?;
    findings.extend(other_nodes(path, queue.non_contenders(), &live));
    Ok(findings)
}

/// Describes the lock's node and its first contender.
fn lock_node(ensemble: &Ensemble, path: &str, queue: &Queue, entries: &[LocatedEntry<'_>]) -> Finding {
    let (all, first) = (queue.nodes().len(), queue.holder_count());
    let holder =
        entries.first().map(|holder| format!("; {} belongs to {}", holder.node.name, owner_of(holder)));
    let found = match all {
        0 => "nothing there now".to_owned(),
        _ => format!("{first} first in the queue, {} behind{}", all - first, holder.unwrap_or_default()),
    };
    let server = ensemble.config.servers.first().map(ToString::to_string).unwrap_or_default();
    Finding::ok("lock's node", format!("{path} ({found})")).with_advice(format!(
        "to list it: zkCli.sh -server {} ls {}",
        shell_quote(&server),
        shell_quote(path)
    ))
}

fn owner_of(entry: &LocatedEntry<'_>) -> String {
    let session = format!("0x{:x}", entry.stat.ephemeral_owner);
    match &entry.meta {
        Some(meta) => format!("{:?}, in session {session}", &*meta.label),
        None if entry.stat.ephemeral_owner == 0 => "an unknown client, without a session".to_owned(),
        None if entry.node.name.starts_with("_c_") => format!("Curator, in session {session}"),
        None if entry.node.name.contains("__lock__") => format!("kazoo, in session {session}"),
        None => format!("another program, in session {session}"),
    }
}

/// Checks contenders of foreign clients: whether they never expire, and whether their clients wait for Fencepost's
/// nodes.
fn foreign_nodes(
    own_dialect: Dialect,
    path: &str,
    entries: &[LocatedEntry<'_>],
    incompatible: &[&Node],
) -> Option<Finding> {
    if let Some(node) = incompatible.first() {
        return Some(
            Finding::problem("foreign nodes", foreign::describe(own_dialect, path, node))
                .with_advice(Compatibility::advice(node.dialect(), own_dialect)),
        );
    }
    let foreign_entries: Vec<&LocatedEntry<'_>> =
        entries.iter().filter(|entry| entry.meta.is_none()).collect();
    if let Some(permanent) = foreign_entries.iter().find(|entry| entry.stat.ephemeral_owner == 0) {
        let name = &permanent.node.name;
        return Some(
            Finding::warning(
                "foreign nodes",
                format!("{name} is not ephemeral: it does not expire, and blocks the lock"),
            )
            .with_advice(format!(
                "if it is an orphan, delete it: zkCli.sh delete {}",
                shell_quote(&format!("{path}/{name}"))
            )),
        );
    }
    let named =
        foreign_entries.iter().map(|entry| format!("{} belongs to {}", entry.node.name, owner_of(entry)));
    let named = named.collect::<Vec<_>>().join("; ");
    let count = foreign_entries.len();
    (count > 0).then(|| Finding::ok("foreign nodes", format!("{count} in the same queue: {named}")))
}

/// Checks the children that are not contenders: another recipe may be in use there.
fn other_nodes(path: &str, others: &[String], live: &[&str]) -> Option<Finding> {
    if let Some(name) = live.first() {
        let (count, recipe) = (live.len(), foreign::recipe(name));
        let found =
            format!("{count} live entries that do not exclude Fencepost: {path}/{name} belongs to {recipe}");
        return Some(
            Finding::problem("other nodes", found)
                .with_advice("use another name for one of them; until then no client can acquire this lock"),
        );
    }
    let first = others.first()?;
    Some(
        Finding::warning(
            "other nodes",
            format!("{} that are not contenders, such as {first}", others.len()),
        )
        .with_advice(
            "they are not live: locks of other names, or orphans; if another recipe is used there, use another name",
        ),
    )
}
