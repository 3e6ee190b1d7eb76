//! The lock nodes that this client created: bounds how many of them it leaves empty. The servers remove empty
//! containers too, but check once a minute and remove at most 10,000.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use fencepost_core::LockName;
use futures_util::future::join_all;

use crate::registry::Registry;
use crate::session::Session;
use crate::state::ClientState;

/// How many empty nodes are left to the servers.
const MAX_KEPT: usize = 256;
/// How many nodes are removed in one go.
const REMOVE_BATCH: usize = 64;

/// The locks whose nodes this client created, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Containers(VecDeque<LockName>);

impl Containers {
    /// Records a created lock node. If there are too many, returns the oldest locks that are not in use, whose nodes
    /// are to be removed.
    fn add(&mut self, name: LockName, is_used: impl Fn(&LockName) -> bool) -> Vec<LockName> {
        self.0.push_back(name);
        if self.0.len() < MAX_KEPT + REMOVE_BATCH {
            return Vec::new();
        }
        let oldest: Vec<LockName> = self.0.drain(..REMOVE_BATCH).collect();
        let (used, idle): (Vec<_>, Vec<_>) = oldest.into_iter().partition(is_used);
        self.0.extend(used);
        idle
    }
}

/// Records that this client created a lock's node, and removes nodes that it created long ago. The servers reject the
/// deletion of a node that is not empty; a client that needs a removed node creates it again.
pub(crate) fn on_created(state: &Arc<ClientState>, session: &Arc<Session>, name: &LockName) {
    let idle = {
        let mut registry = state.registry();
        let Registry { containers, entries, .. } = &mut *registry;
        containers.add(name.clone(), |name| entries.has_attempt_for(name))
    };
    if !idle.is_empty() {
        state.spawn(remove(Arc::downgrade(state), Arc::downgrade(session), idle));
    }
}

async fn remove(state: Weak<ClientState>, session: Weak<Session>, names: Vec<LockName>) {
    let Some((state, session)) = state.upgrade().zip(session.upgrade()) else { return };
    let deletes: Vec<_> =
        names.iter().map(|name| session.client.delete(&state.lock_path(name), None)).collect();
    drop(state);
    // A failed deletion means that the node is in use or already gone; the servers remove what remains.
    join_all(deletes).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> LockName {
        LockName::new(number.to_string()).unwrap()
    }

    /// Scenario 67
    #[test]
    fn kept_nodes_are_bounded_and_no_node_in_use_is_removed() {
        let mut containers = Containers::default();
        let is_used = |name: &LockName| name.as_str().ends_with("00");
        let mut removed = Vec::new();
        for number in 0..10_000 {
            removed.extend(containers.add(name(number), is_used));
            assert!(containers.0.len() < MAX_KEPT + REMOVE_BATCH + 100);
        }
        assert!(!removed.iter().any(is_used));
        assert_eq!(removed.len() + containers.0.len(), 10_000);
        assert!(removed.contains(&name(1)) && !removed.contains(&name(9_999)));
    }
}
