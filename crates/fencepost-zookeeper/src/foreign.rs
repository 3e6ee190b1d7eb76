//! Live entries at a lock's place that do not exclude ours: those of other recipes, and contenders in a form whose clients do
//! not wait for ours.

use fencepost_core::{Attempt, Error, ErrorKind, Finding, LockName, Result};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::config::Dialect;
use crate::ensemble::Ensemble;
use crate::layout::Node;
use crate::nodes::read_entries;
use crate::queue::Queue;
use crate::session::Session;
use crate::state::ClientState;

/// How many nodes of each kind are looked at below one lock.
const MAX_NODES_READ: usize = 64;

/// Whether a client waits for our nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compatibility {
    Waits,
    /// It does if it was told to, which cannot be seen.
    MayWait,
    Ignores,
}

impl Compatibility {
    /// Whether clients whose nodes have the one dialect wait for nodes in the other. Ours always do.
    pub(crate) fn of(theirs: Dialect, ours: Dialect) -> Self {
        match (theirs, ours) {
            (Dialect::Curator, Dialect::Kazoo) => Self::Ignores,
            (Dialect::Plain, Dialect::Kazoo) | (Dialect::Kazoo, Dialect::Curator | Dialect::Plain) => {
                Self::MayWait
            }
            _ => Self::Waits,
        }
    }

    /// What is to be done so that the clients of such a node wait for ours.
    pub(crate) fn advice(theirs: Dialect, ours: Dialect) -> &'static str {
        match (theirs, ours) {
            (Dialect::Kazoo, Dialect::Curator) => {
                "write ?dialect=kazoo in all URLs, or give kazoo's locks extra_lock_patterns=[\"-lock-\"]"
            }
            (Dialect::Kazoo, _) => {
                "write ?dialect=kazoo in all URLs, or give kazoo's locks extra_lock_patterns=[\"lock-\"]"
            }
            _ => {
                "write ?dialect=curator in all URLs, or none; kazoo's locks then need extra_lock_patterns=[\"-lock-\"]"
            }
        }
    }
}

/// What a dialect's clients are name.
pub(crate) fn library(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Curator => "Curator",
        Dialect::Kazoo => "kazoo",
        Dialect::Plain => "another program",
    }
}

/// Refuses an attempt at a lock where a live entry does not exclude ours, and remembers what may not. Costs nothing where there
/// are only contenders that do.
pub(crate) async fn reject_incompatible(
    state: &ClientState,
    session: &Session,
    attempt: &Attempt,
    queues: &[Queue],
) -> Result<()> {
    for (want, queue) in attempt.wants.iter().zip(queues) {
        let parent = state.lock_path(&want.name);
        let others = live_other_recipes(&state.ensemble, &session.client, &parent, queue).await?;
        if let Some(other) = others.first() {
            return Err(recipe_conflict(&want.name, &parent, other));
        }
        let ours = state.ensemble.config.dialect;
        for node in incompatible_contenders(&state.ensemble, &session.client, &parent, queue).await? {
            let theirs = node.dialect();
            let (found, advice) = (describe(ours, &parent, node), Compatibility::advice(theirs, ours));
            if Compatibility::of(theirs, ours) == Compatibility::Ignores {
                let message = format!("lock {:?} would not exclude others: {found}", want.name);
                return Err(Error::new(ErrorKind::Conflict, message).with_hint(advice));
            }
            state.remark(&want.name, Finding::problem("foreign nodes", found).with_advice(advice));
        }
    }
    Ok(())
}

/// What is wrong with a contender whose clients may ignore ours.
pub(crate) fn describe(ours: Dialect, parent: &str, node: &Node) -> String {
    let theirs = node.dialect();
    let ignores = match (Compatibility::of(theirs, ours), theirs) {
        (Compatibility::Ignores, _) => "does not wait for our nodes",
        (_, Dialect::Kazoo) => "does not wait for our nodes unless it is told to",
        _ => "may not wait for our nodes",
    };
    format!("{parent}/{} is of {}, which {ignores}", node.name, library(theirs))
}

fn recipe_conflict(name: &LockName, parent: &str, node: &str) -> Error {
    let message = format!(
        "lock {name:?} is in use as something else: {parent}/{node} is of {}, which does not exclude ours",
        recipe(node)
    );
    Error::new(ErrorKind::Conflict, message).with_hint(
        "use another name for one of them; Curator's InterProcessMutex and kazoo's Lock exclude ours",
    )
}

/// What makes nodes of this name.
pub(crate) fn recipe(name: &str) -> &'static str {
    match name {
        "leases" | "locks" => "Curator's InterProcessSemaphoreV2 or InterProcessSemaphoreMutex",
        _ if name.contains("__READ__") || name.contains("__WRIT__") => "Curator's InterProcessReadWriteLock",
        _ if name.contains("__rlock__") => "kazoo's ReadLock",
        _ if name.contains("latch-") => "Curator's LeaderLatch",
        _ => "another program, such as kazoo's Semaphore",
    }
}

/// Returns the live entries of other recipes below a lock. What is not live may be another lock's node, or a leftover.
pub(crate) async fn live_other_recipes<'a>(
    ensemble: &Ensemble,
    client: &zk::Client,
    parent: &str,
    queue: &'a Queue,
) -> Result<Vec<&'a str>> {
    let mut others: Vec<&str> = queue.non_contenders().iter().map(String::as_str).collect();
    others.sort_by_key(|name| !is_likely_entry(name));
    others.truncate(MAX_NODES_READ);
    let stats: Vec<_> = others.iter().map(|name| client.check_stat(&format!("{parent}/{name}"))).collect();
    let mut found = Vec::new();
    for (name, stat) in others.into_iter().zip(join_all(stats).await) {
        let stat = stat.map_err(|error| ensemble.failed(&error))?;
        if stat.is_some_and(|stat| is_live(name, stat.ephemeral_owner, stat.num_children)) {
            found.push(name);
        }
    }
    Ok(found)
}

/// Whether a node is likely one of a recipe, if there are too many to look at all.
fn is_likely_entry(name: &str) -> bool {
    let is_numbered = || name.len() > 10 && name.bytes().rev().take(10).all(|byte| byte.is_ascii_digit());
    matches!(name, "leases" | "locks") || is_numbered()
}

/// Whether a node is an entry of a client, or has such. Curator leaves `leases` and `locks` behind.
fn is_live(name: &str, session: i64, children: i32) -> bool {
    let has_entries = matches!(name, "leases" | "locks") && children > 0;
    has_entries || is_session(session)
}

/// Whether this is a session's id. Containers and nodes with a ttl have special ones.
fn is_session(id: i64) -> bool {
    id != 0 && id != i64::MIN && id.to_be_bytes()[0] != 0xff
}

/// Returns the contenders of other clients that may ignore ours.
pub(crate) async fn incompatible_contenders<'a>(
    ensemble: &Ensemble,
    client: &zk::Client,
    parent: &str,
    queue: &'a Queue,
) -> Result<Vec<&'a Node>> {
    let ours = ensemble.config.dialect;
    let suspects =
        queue.nodes().iter().filter(|node| Compatibility::of(node.dialect(), ours) != Compatibility::Waits);
    let mut foreign = Vec::new();
    for (node, read) in read_entries(client, parent, suspects.take(MAX_NODES_READ)).await {
        match read {
            // Ours with another dialect wait for all.
            Ok((Some(_), _)) | Err(zk::Error::NoNode) => {}
            Ok((None, _)) | Err(zk::Error::NoAuth) => foreign.push(node),
            Err(error) => return Err(ensemble.failed(&error)),
        }
    }
    Ok(foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entries_of_clients_are_live() {
        for (name, owner, children, expected) in [
            ("_c_0f-__WRIT__0000000001", 0x1000_0000_0000, 0, true),
            ("0f1e2d", -0x7f00_0000_0000_0000, 0, true),
            ("leases", 0, 1, true),
            ("leases", 0, 0, false),
            ("leases", i64::MIN, 0, false),
            ("nested", 0, 7, false),
            ("nested", i64::MIN, 7, false),
            ("with a ttl", -0x00ff_ffff_ffff_ff00, 0, false),
        ] {
            assert_eq!(is_live(name, owner, children), expected, "{name} {owner:x}");
        }
    }

    #[test]
    fn entries_are_looked_at_first() {
        for (name, expected) in [
            ("_c_0f-__READ__0000000001", true),
            ("0f__rlock__0000000012", true),
            ("locks", true),
            ("nested", false),
            ("1234567890", false),
            ("ä-000000000", false),
        ] {
            assert_eq!(is_likely_entry(name), expected, "{name}");
        }
    }

    #[test]
    fn curator_and_kazoo_do_not_see_each_other() {
        use Dialect::{Curator, Kazoo, Plain};
        assert_eq!(Compatibility::of(Curator, Kazoo), Compatibility::Ignores);
        assert_eq!(Compatibility::of(Kazoo, Curator), Compatibility::MayWait);
        for (theirs, ours) in [(Curator, Curator), (Kazoo, Kazoo), (Plain, Curator), (Curator, Plain)] {
            assert_eq!(Compatibility::of(theirs, ours), Compatibility::Waits);
        }
    }
}
