//! Where a lock is kept: the exact node, who is below it, and whether something else is there too.

use fencepost_contenders::EntryMeta;
use fencepost_core::{Finding, LockName, Result, shell_quote};
use zookeeper_client::{self as zk, Stat};

use crate::config::Dialect;
use crate::ensemble::Ensemble;
use crate::foreign::{self, Compatibility};
use crate::layout::Node;
use crate::nodes::{queue_from, read_entries};
use crate::queue::Queue;

/// How many contenders are looked at.
const MAX_CONTENDERS: usize = 20;

/// One contender's node, as it was read.
struct LocatedEntry<'a> {
    node: &'a Node,
    stat: Stat,
    entry_meta: Option<EntryMeta>,
}

/// The nodes of a lock, and what is in them.
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

/// Which peers wait for our nodes.
fn peers(dialect: Dialect, path: &str) -> Finding {
    let (same, not) = match dialect {
        Dialect::Curator => {
            ("Curator's InterProcessMutex", "kazoo's Lock only with extra_lock_patterns=[\"-lock-\"]")
        }
        Dialect::Kazoo => ("kazoo's Lock", "Curator's InterProcessMutex does not wait for ours"),
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

/// What is below the lock's node.
async fn read_lock_node(ensemble: &Ensemble, client: &zk::Client, path: &str) -> Result<Vec<Finding>> {
    let queue = queue_from(ensemble, client.list_children(path).await)?;
    let first = read_entries(client, path, queue.nodes().iter().take(MAX_CONTENDERS)).await.into_iter();
    // A node that cannot be read is gone, or not ours to see.
    let seen = first.filter_map(|(node, read)| {
        read.ok().map(|(entry_meta, stat)| LocatedEntry { node, stat, entry_meta })
    });
    let seen: Vec<LocatedEntry<'_>> = seen.collect();
    let mut findings = vec![lock_node(ensemble, path, &queue, &seen)];
    let ignoring = foreign::incompatible_contenders(ensemble, client, path, &queue).await?;
    findings.extend(foreign(ensemble.config.dialect, path, &seen, &ignoring));
    let entries = foreign::live_other_recipes(ensemble, client, path, &queue).await?;
    findings.extend(other_nodes(path, queue.non_contenders(), &entries));
    Ok(findings)
}

/// Where the lock's nodes are, and who is first.
fn lock_node(ensemble: &Ensemble, path: &str, queue: &Queue, seen: &[LocatedEntry<'_>]) -> Finding {
    let (all, first) = (queue.nodes().len(), queue.holder_count());
    let holder = seen.first().map(|holder| format!("; {} is of {}", holder.node.name, owner_of(holder)));
    let found = match all {
        0 => "nothing there now".to_owned(),
        _ => format!("{first} first in queue, {} behind{}", all - first, holder.unwrap_or_default()),
    };
    let server = ensemble.config.servers.first().map(ToString::to_string).unwrap_or_default();
    Finding::ok("lock's node", format!("{path} ({found})")).with_advice(format!(
        "to look: zkCli.sh -server {} ls {}",
        shell_quote(&server),
        shell_quote(path)
    ))
}

fn owner_of(seen: &LocatedEntry<'_>) -> String {
    let session = format!("0x{:x}", seen.stat.ephemeral_owner);
    match &seen.entry_meta {
        Some(entry_meta) => format!("{:?}, in the session {session}", &*entry_meta.label),
        None if seen.stat.ephemeral_owner == 0 => "nobody that can be known, and of no session".to_owned(),
        None if seen.node.name.starts_with("_c_") => format!("Curator, in the session {session}"),
        None if seen.node.name.contains("__lock__") => format!("kazoo, in the session {session}"),
        None => format!("another program, in the session {session}"),
    }
}

/// Contenders that are not ours: whether they never end, and whether their clients wait for ours.
fn foreign(ours: Dialect, path: &str, seen: &[LocatedEntry<'_>], ignoring: &[&Node]) -> Option<Finding> {
    if let Some(node) = ignoring.first() {
        return Some(
            Finding::problem("foreign nodes", foreign::describe(ours, path, node))
                .with_advice(Compatibility::advice(node.dialect(), ours)),
        );
    }
    let foreign: Vec<&LocatedEntry<'_>> = seen.iter().filter(|seen| seen.entry_meta.is_none()).collect();
    if let Some(permanent) = foreign.iter().find(|seen| seen.stat.ephemeral_owner == 0) {
        let name = &permanent.node.name;
        return Some(
            Finding::warning(
                "foreign nodes",
                format!("{name} is of no session: it does not end by itself, and keeps the lock"),
            )
            .with_advice(format!(
                "if it is left over: zkCli.sh delete {}",
                shell_quote(&format!("{path}/{name}"))
            )),
        );
    }
    let named = foreign.iter().map(|seen| format!("{} is of {}", seen.node.name, owner_of(seen)));
    let named = named.collect::<Vec<_>>().join("; ");
    let count = foreign.len();
    (count > 0).then(|| Finding::ok("foreign nodes", format!("{count}, in one queue with ours: {named}")))
}

/// What is at the lock's place and is no contender: another recipe may be in use there.
fn other_nodes(path: &str, others: &[String], live: &[&str]) -> Option<Finding> {
    if let Some(name) = live.first() {
        let (count, recipe) = (live.len(), foreign::recipe(name));
        let found = format!("{count} live that do not exclude ours: {path}/{name} is of {recipe}");
        return Some(
            Finding::problem("other nodes", found)
                .with_advice("use another name for one of them; until then no client can acquire this lock"),
        );
    }
    let first = others.first()?;
    Some(
        Finding::warning(
            "other nodes",
            format!("{} that contend for nothing we know, such as {first}", others.len()),
        )
        .with_advice(
            "they are not live: locks of other names, or left over; if another recipe is used there, use another name",
        ),
    )
}
