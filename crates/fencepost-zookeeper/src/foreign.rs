//! Foreign clients at a lock's node that do not exclude Fencepost: live entries of other recipes, and contenders in a
//! dialect whose clients do not wait for this client's nodes.

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

/// The maximum number of nodes of each kind that are checked below one lock.
const MAX_NODES_CHECKED: usize = 64;

/// Whether a foreign client waits for this client's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compatibility {
    Waits,
    /// It waits if it is configured to, which cannot be detected.
    MayWait,
    Ignores,
}

impl Compatibility {
    /// Returns whether a foreign client waits for nodes of this client's dialect. Clients of Fencepost always do.
    pub(crate) fn of(foreign_dialect: Dialect, own_dialect: Dialect) -> Self {
        match (foreign_dialect, own_dialect) {
            (Dialect::Curator, Dialect::Kazoo) => Self::Ignores,
            (Dialect::Plain, Dialect::Kazoo) | (Dialect::Kazoo, Dialect::Curator | Dialect::Plain) => {
                Self::MayWait
            }
            _ => Self::Waits,
        }
    }

    /// Returns what to do so that the foreign client waits for this client's nodes.
    pub(crate) fn advice(foreign_dialect: Dialect, own_dialect: Dialect) -> &'static str {
        match (foreign_dialect, own_dialect) {
            (Dialect::Kazoo, Dialect::Curator) => {
                "set dialect=kazoo in all URLs, or pass extra_lock_patterns=[\"-lock-\"] to kazoo's Lock"
            }
            (Dialect::Kazoo, _) => {
                "set dialect=kazoo in all URLs, or pass extra_lock_patterns=[\"lock-\"] to kazoo's Lock"
            }
            _ => {
                "set dialect=curator in all URLs, or no dialect; kazoo's Lock then needs extra_lock_patterns=[\"-lock-\"]"
            }
        }
    }
}

/// Returns the library whose dialect this is.
pub(crate) fn library(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Curator => "Curator",
        Dialect::Kazoo => "kazoo",
        Dialect::Plain => "another program",
    }
}

/// Rejects an attempt at a lock with a live foreign entry that does not exclude this client, and stores a remark about
/// one that may not. Sends no request if all contenders are compatible.
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
        let own_dialect = state.ensemble.config.dialect;
        for node in incompatible_contenders(&state.ensemble, &session.client, &parent, queue).await? {
            let foreign_dialect = node.dialect();
            let (found, advice) =
                (describe(own_dialect, &parent, node), Compatibility::advice(foreign_dialect, own_dialect));
            if Compatibility::of(foreign_dialect, own_dialect) == Compatibility::Ignores {
                let message = format!("lock {:?} would not exclude foreign clients: {found}", want.name);
                return Err(Error::new(ErrorKind::Conflict, message).with_hint(advice));
            }
            state.remark(&want.name, Finding::problem("foreign nodes", found).with_advice(advice));
        }
    }
    Ok(())
}

/// Describes a contender whose client may ignore this client's nodes.
pub(crate) fn describe(own_dialect: Dialect, parent: &str, node: &Node) -> String {
    let foreign_dialect = node.dialect();
    let ignores = match (Compatibility::of(foreign_dialect, own_dialect), foreign_dialect) {
        (Compatibility::Ignores, _) => "does not wait for Fencepost's nodes",
        (_, Dialect::Kazoo) => "does not wait for Fencepost's nodes unless configured to",
        _ => "may not wait for Fencepost's nodes",
    };
    format!("{parent}/{} belongs to {}, which {ignores}", node.name, library(foreign_dialect))
}

fn recipe_conflict(name: &LockName, parent: &str, node: &str) -> Error {
    let message = format!(
        "lock {name:?} is in use by another recipe: {parent}/{node} belongs to {}, which does not exclude Fencepost",
        recipe(node)
    );
    Error::new(ErrorKind::Conflict, message).with_hint(
        "use another name for one of them; Curator's InterProcessMutex and kazoo's Lock exclude Fencepost",
    )
}

/// Returns the recipe that creates nodes of this name.
pub(crate) fn recipe(name: &str) -> &'static str {
    match name {
        "leases" | "locks" => "Curator's InterProcessSemaphoreV2 or InterProcessSemaphoreMutex",
        _ if name.contains("__READ__") || name.contains("__WRIT__") => "Curator's InterProcessReadWriteLock",
        _ if name.contains("__rlock__") => "kazoo's ReadLock",
        _ if name.contains("latch-") => "Curator's LeaderLatch",
        _ => "another program, such as kazoo's Semaphore",
    }
}

/// Returns the live entries of other recipes below a lock. Nodes that are not live may be locks of other names, or
/// orphans.
pub(crate) async fn live_other_recipes<'a>(
    ensemble: &Ensemble,
    client: &zk::Client,
    parent: &str,
    queue: &'a Queue,
) -> Result<Vec<&'a str>> {
    let mut others: Vec<&str> = queue.non_contenders().iter().map(String::as_str).collect();
    others.sort_by_key(|name| !is_likely_entry(name));
    others.truncate(MAX_NODES_CHECKED);
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

/// Returns whether a node is likely an entry of a recipe; these are checked first if there are too many.
fn is_likely_entry(name: &str) -> bool {
    let is_numbered = || name.len() > 10 && name.bytes().rev().take(10).all(|byte| byte.is_ascii_digit());
    matches!(name, "leases" | "locks") || is_numbered()
}

/// Returns whether a node is an entry of a client, or a parent of entries. Curator never removes `leases` and `locks`.
fn is_live(name: &str, session: i64, children: i32) -> bool {
    let has_entries = matches!(name, "leases" | "locks") && children > 0;
    has_entries || is_session(session)
}

/// Returns whether this is the id of a session. Containers and nodes with a ttl have special values.
fn is_session(id: i64) -> bool {
    id != 0 && id != i64::MIN && id.to_be_bytes()[0] != 0xff
}

/// Returns the contenders of foreign clients that may ignore this client's nodes.
pub(crate) async fn incompatible_contenders<'a>(
    ensemble: &Ensemble,
    client: &zk::Client,
    parent: &str,
    queue: &'a Queue,
) -> Result<Vec<&'a Node>> {
    let own_dialect = ensemble.config.dialect;
    let candidates = queue
        .nodes()
        .iter()
        .filter(|node| Compatibility::of(node.dialect(), own_dialect) != Compatibility::Waits);
    let mut foreign = Vec::new();
    for (node, read) in read_entries(client, parent, candidates.take(MAX_NODES_CHECKED)).await {
        match read {
            // Clients of Fencepost wait for nodes of all dialects.
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
    fn likely_entries_are_checked_first() {
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
    fn curator_and_kazoo_do_not_wait_for_each_other() {
        use Dialect::{Curator, Kazoo, Plain};
        assert_eq!(Compatibility::of(Curator, Kazoo), Compatibility::Ignores);
        assert_eq!(Compatibility::of(Kazoo, Curator), Compatibility::MayWait);
        for (foreign_dialect, own_dialect) in
            [(Curator, Curator), (Kazoo, Kazoo), (Plain, Curator), (Curator, Plain)]
        {
            assert_eq!(Compatibility::of(foreign_dialect, own_dialect), Compatibility::Waits);
        }
    }
}
