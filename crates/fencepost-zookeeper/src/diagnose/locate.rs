//! Where a lock is kept: the exact node, who is below it, and whether something else is there too.

use fencepost_contenders::EntryMeta;
use fencepost_core::{Finding, LockName, Result, shell_quote};
use zookeeper_client::{self as zk, Stat};

use crate::config::Dialect;
use crate::nodes::{line_of, read};
use crate::paths::Node;
use crate::queue::Queue;
use crate::setup::Setup;
use crate::strangers::{self, Sight};

/// How many contenders are looked at.
const MOST: usize = 20;

/// One contender's node, as it was read.
struct Seen<'a> {
    node: &'a Node,
    stat: Stat,
    entry_meta: Option<EntryMeta>,
}

/// The nodes of a lock, and what is in them.
pub(crate) async fn locate(setup: &Setup, name: &LockName) -> Vec<Finding> {
    let client = match setup.connect_to_look().await {
        Ok(client) => client,
        Err(error) => return vec![Finding::from_result("lock's node", Err(error))],
    };
    let path = setup.paths.lock(name);
    let mut findings = match below(setup, &client, &path).await {
        Ok(found) => found,
        Err(error) => vec![Finding::from_result("lock's node", Err(error))],
    };
    findings.push(Finding::from_result("cell's node", cell(setup, &client, name).await));
    findings.push(peers(setup.config.dialect, &path));
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

async fn cell(setup: &Setup, client: &zk::Client, name: &LockName) -> Result<Finding> {
    let path = setup.paths.cell(name);
    let stat = client.check_stat(&path).await.map_err(|error| setup.failed(&error))?;
    let what = if stat.is_some() { "a value" } else { "nothing there now" };
    Ok(Finding::ok("cell's node", format!("{path} ({what})")))
}

/// What is below the lock's node.
async fn below(setup: &Setup, client: &zk::Client, path: &str) -> Result<Vec<Finding>> {
    let line = line_of(setup, client.list_children(path).await)?;
    let first = read(client, path, line.nodes().iter().take(MOST)).await.into_iter();
    // A node that cannot be read is gone, or not ours to see.
    let seen =
        first.filter_map(|(node, read)| read.ok().map(|(entry_meta, stat)| Seen { node, stat, entry_meta }));
    let seen: Vec<Seen<'_>> = seen.collect();
    let mut findings = vec![place(setup, path, &line, &seen)];
    let ignoring = strangers::other_forms(setup, client, path, &line).await?;
    findings.extend(foreign(setup.config.dialect, path, &seen, &ignoring));
    let entries = strangers::other_recipes(setup, client, path, &line).await?;
    findings.extend(no_contenders(path, line.others(), &entries));
    Ok(findings)
}

/// Where the lock's nodes are, and who is first.
fn place(setup: &Setup, path: &str, line: &Queue, seen: &[Seen<'_>]) -> Finding {
    let (all, first) = (line.nodes().len(), line.holding());
    let holder = seen.first().map(|holder| format!("; {} is of {}", holder.node.called, whose(holder)));
    let found = match all {
        0 => "nothing there now".to_owned(),
        _ => format!("{first} first in line, {} behind{}", all - first, holder.unwrap_or_default()),
    };
    let server = setup.config.servers.first().map(ToString::to_string).unwrap_or_default();
    Finding::ok("lock's node", format!("{path} ({found})")).with_advice(format!(
        "to look: zkCli.sh -server {} ls {}",
        shell_quote(&server),
        shell_quote(path)
    ))
}

fn whose(seen: &Seen<'_>) -> String {
    let session = format!("0x{:x}", seen.stat.ephemeral_owner);
    match &seen.entry_meta {
        Some(entry_meta) => format!("{:?}, in the session {session}", &*entry_meta.label),
        None if seen.stat.ephemeral_owner == 0 => "nobody that can be known, and of no session".to_owned(),
        None if seen.node.called.starts_with("_c_") => format!("Curator, in the session {session}"),
        None if seen.node.called.contains("__lock__") => format!("kazoo, in the session {session}"),
        None => format!("another program, in the session {session}"),
    }
}

/// Contenders that are not ours: whether they never end, and whether their clients wait for ours.
fn foreign(ours: Dialect, path: &str, seen: &[Seen<'_>], ignoring: &[&Node]) -> Option<Finding> {
    if let Some(node) = ignoring.first() {
        return Some(
            Finding::problem("foreign nodes", strangers::ignored(ours, path, node))
                .with_advice(Sight::advice(node.dialect(), ours)),
        );
    }
    let strangers: Vec<&Seen<'_>> = seen.iter().filter(|seen| seen.entry_meta.is_none()).collect();
    if let Some(eternal) = strangers.iter().find(|seen| seen.stat.ephemeral_owner == 0) {
        let called = &eternal.node.called;
        return Some(
            Finding::warning(
                "foreign nodes",
                format!("{called} is of no session: it does not end by itself, and keeps the lock"),
            )
            .with_advice(format!(
                "if it is left over: zkCli.sh delete {}",
                shell_quote(&format!("{path}/{called}"))
            )),
        );
    }
    let named = strangers.iter().map(|seen| format!("{} is of {}", seen.node.called, whose(seen)));
    let named = named.collect::<Vec<_>>().join("; ");
    let count = strangers.len();
    (count > 0).then(|| Finding::ok("foreign nodes", format!("{count}, in one line with ours: {named}")))
}

/// What is at the lock's place and is no contender: another recipe may be in use there.
fn no_contenders(path: &str, others: &[String], live: &[&str]) -> Option<Finding> {
    if let Some(called) = live.first() {
        let (count, recipe) = (live.len(), strangers::recipe(called));
        let found = format!("{count} live that do not exclude ours: {path}/{called} is of {recipe}");
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
