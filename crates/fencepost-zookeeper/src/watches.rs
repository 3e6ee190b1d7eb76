//! Watches nodes: wakes a waiter when a node ahead of it is deleted, and tells a holder when its own node is.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::backend::Wakeup;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LockName, LostReason, Mode, Owner, Rule};
use futures_util::future::{join_all, select_all};
use zookeeper_client::{self as zk, AddWatchMode, EventType};

use crate::queue::{Position, Queue, last_segment};
use crate::registry::{Nodes, Registry};
use crate::session::Session;
use crate::state::ClientState;

/// A grant that is held for less than this is not watched: the watch would cost more than the grant.
const WATCH_DELAY: Duration = Duration::from_millis(50);

/// The watches of one session.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// The watched nodes, each with the owners that wait for its deletion. A node has one watch, however many waiters
    /// enter and leave the queue behind it.
    blockers: HashMap<String, HashSet<Owner>>,
    /// The locks whose whole queues are watched.
    queues: HashSet<LockName>,
    /// The grants whose own nodes are not watched yet, each with the time from which they are to be.
    grants: Vec<(Owner, Moment)>,
}

impl Watches {
    /// Removes an owner from the waiters for these nodes.
    pub(crate) fn remove_waiter(&mut self, owner: Owner, nodes: &[String]) {
        for node in nodes {
            if let Some(waiting) = self.blockers.get_mut(node) {
                waiting.remove(&owner);
            }
        }
    }

    /// Returns when the next grant is to be watched.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.grants.iter().map(|(_, from)| *from).min()
    }
}

/// Watches the nodes that an attempt waits for.
pub(crate) fn watch_blockers(
    state: &Arc<ClientState>,
    session: &Arc<Session>,
    attempt: &Attempt,
    positions: &[(usize, Position)],
) {
    let name = |at: &usize| &attempt.wants[*at].name;
    let blockers: Vec<String> = positions
        .iter()
        .filter_map(|(at, position)| match position {
            Position::Behind(node) => Some(format!("{}/{node}", state.lock_path(name(at)))),
            _ => None,
        })
        .collect();
    {
        let mut registry = state.registry();
        let Some(own) = registry.entries.get_mut(attempt.owner) else { return };
        session.watches().remove_waiter(attempt.owner, &own.entry.blockers);
        own.entry.blockers.clone_from(&blockers);
    }
    for node in blockers {
        watch_blocker(state, session, attempt.owner, node);
    }
    for (at, _) in positions.iter().filter(|(_, position)| *position == Position::BehindMany) {
        watch_queue(state, session, name(at));
    }
}

/// Returns whether an attempt is certainly still blocked: the watched nodes that it waits for exist, and so do its own.
/// The cost does not depend on the length of the queue.
pub(crate) async fn is_still_blocked(
    state: &ClientState,
    session: &Session,
    attempt: &Attempt,
    own: &[String],
) -> bool {
    let owner = attempt.owner;
    let blockers = {
        let registry = state.registry();
        registry.entries.get(owner).map(|own| own.entry.blockers.clone()).unwrap_or_default()
    };
    let is_watched =
        |node: &String| session.watches().blockers.get(node).is_some_and(|waiting| waiting.contains(&owner));
    let blockers: Vec<String> = blockers.into_iter().filter(is_watched).collect();
    if blockers.is_empty() {
        return false;
    }
    let is_there = async |node: &String| matches!(session.client.check_stat(node).await, Ok(Some(_)));
    let own = own.iter().filter(|node| !node.is_empty());
    let (blockers, own) =
        futures_util::join!(join_all(blockers.iter().map(is_there)), join_all(own.map(is_there)));
    let waits = match attempt.rule {
        Rule::All => blockers.contains(&true),
        Rule::Any => blockers.len() == attempt.wants.len() && !blockers.contains(&false),
    };
    waits && !own.contains(&false)
}

/// Waits until the node that this zxid created is deleted, or, without a zxid, the node that has this path now. Returns
/// false if that cannot be known: the session is over, or the connection was lost. Writes to the node are ignored.
async fn wait_until_deleted(session: &Weak<Session>, node: &str, mut czxid: Option<i64>) -> bool {
    loop {
        // No strong reference is held while waiting, so that dropping the session ends it.
        let Some(strong) = session.upgrade() else { return false };
        let data = strong.client.get_and_watch_data(node).await;
        drop(strong);
        let watcher = match data {
            // In a dialect without owners in node names another node may have the same path.
            Ok((_, stat, _)) if *czxid.get_or_insert(stat.czxid) != stat.czxid => return true,
            Ok((_, _, watcher)) => watcher,
            Err(zk::Error::NoNode) => return true,
            Err(_) => return false,
        };
        match watcher.changed().await.event_type {
            EventType::NodeDeleted => return true,
            EventType::Session => return false,
            _ => {}
        }
    }
}

/// Watches a node that this owner waits for.
fn watch_blocker(state: &Arc<ClientState>, session: &Arc<Session>, owner: Owner, node: String) {
    {
        let mut watches = session.watches();
        let is_watched = watches.blockers.contains_key(&node);
        watches.blockers.entry(node.clone()).or_default().insert(owner);
        if is_watched {
            return;
        }
    }
    let (weak, session) = (Arc::downgrade(state), Arc::downgrade(session));
    state.spawn(async move {
        let is_deleted = wait_until_deleted(&session, &node, None).await;
        let Some((state, session)) = weak.upgrade().zip(session.upgrade()) else { return };
        let waiting = session.watches().blockers.remove(&node).unwrap_or_default();
        for owner in waiting.into_iter().filter(|_| is_deleted) {
            state.push(Wakeup::Check { owner });
        }
    });
}

/// Schedules a watch of a grant, in case it is held for long.
pub(crate) fn watch_grant_later(session: &Session, owner: Owner, now: Moment) {
    let mut watches = session.watches();
    if watches.grants.is_empty() {
        session.maintenance.notify_one();
    }
    watches.grants.push((owner, now + WATCH_DELAY));
}

/// Watches the nodes of the grants whose watch is due.
pub(crate) fn watch_due_grants(state: &Arc<ClientState>, session: &Arc<Session>) {
    let now = state.clock.now();
    let mut due = Vec::new();
    {
        let registry = state.registry();
        session.watches().grants.retain(|(owner, from)| {
            let nodes = registry.entries.get(*owner).and_then(|own| own.entry.nodes.as_ref());
            let Some(nodes) = nodes else { return false };
            let is_due = *from <= now;
            if is_due {
                due.push((*owner, nodes.clone()));
            }
            !is_due
        });
    }
    for (owner, nodes) in due {
        state.spawn(watch_grant(Arc::downgrade(state), Arc::downgrade(session), owner, nodes));
    }
}

async fn watch_grant(state: Weak<ClientState>, session: Weak<Session>, owner: Owner, nodes: Nodes) {
    let czxid = i64::try_from(nodes.token).ok();
    let own = nodes.paths.iter().filter(|node| !node.is_empty());
    let (is_deleted, ..) =
        select_all(own.map(|node| Box::pin(wait_until_deleted(&session, node, czxid)))).await;
    let Some((state, session)) = state.upgrade().zip(session.upgrade()) else { return };
    // The entry may be an orphan by now, and the same owner may have a new one.
    let is_held = |registry: &Registry| {
        let own = registry.entries.get(owner).filter(|own| !own.entry.released);
        own.is_some_and(|own| own.entry.nodes.as_ref() == Some(&nodes))
    };
    if !is_held(&state.registry()) {
        return;
    }
    if !is_deleted {
        // The connection was lost. The watch is set again, but not immediately.
        let soon = state.clock.now() + session.ttl / 12;
        session.watches().grants.push((owner, soon));
        return;
    }
    let broken = state.ensemble.layout.break_notice(owner);
    let is_broken = matches!(session.client.check_stat(&broken).await, Ok(Some(_)));
    let reason = if is_broken { LostReason::Broken } else { LostReason::NotHeld };
    {
        let mut registry = state.registry();
        if is_held(&registry) {
            state.push(Wakeup::Lost { owner, reason });
            // The remaining nodes of the grant are deleted too.
            registry.make_orphan(owner, state.clock.now());
            session.maintenance.notify_one();
        }
    }
    if is_broken {
        // If this fails, the notice ends with the session of the client that broke the grant.
        let _ = session.client.delete(&broken, None).await;
    }
}

/// The reason why a queue is not followed any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchEnd {
    /// No attempt waits in the queue. It no longer counts as watched, so that the next waiter watches it again.
    NoWaiters,
    /// The queue cannot be read, or the watch is lost.
    Lost,
}

/// Watches the whole queue for all attempts of this session that any deletion in it may make holders: one watch,
/// however many attempts.
fn watch_queue(state: &Arc<ClientState>, session: &Arc<Session>, name: &LockName) {
    if session.watches().queues.insert(name.clone()) {
        let (weak, session, name) = (Arc::downgrade(state), Arc::downgrade(session), name.clone());
        state.spawn(async move {
            if let Err(WatchEnd::Lost) = follow_queue(&weak, &session, &name).await
                && let Some(session) = session.upgrade()
            {
                session.watches().queues.remove(&name);
            }
        });
    }
}

async fn follow_queue(
    state: &Weak<ClientState>,
    session: &Weak<Session>,
    name: &LockName,
) -> Result<Infallible, WatchEnd> {
    let both = || state.upgrade().zip(session.upgrade()).ok_or(WatchEnd::Lost);
    let mut watcher = {
        let (state, session) = both()?;
        let queue = state.lock_path(name);
        let watcher = session.client.watch(&queue, AddWatchMode::PersistentRecursive).await;
        watcher.map_err(|_| WatchEnd::Lost)?
    };
    loop {
        // This also runs before the first event, for deletions that happened before the watch was set.
        {
            let (state, session) = both()?;
            wake_admitted(&state, &session, name).await?;
        }
        loop {
            let event = watcher.changed().await;
            match event.event_type {
                EventType::NodeDeleted => break,
                // The driver does not restore such watches after a reconnect. All attempts are checked then, which sets
                // a new watch.
                EventType::Session => return Err(WatchEnd::Lost),
                _ => {}
            }
        }
    }
}

/// Wakes the waiters of this queue that may hold the lock now.
async fn wake_admitted(state: &ClientState, session: &Arc<Session>, name: &LockName) -> Result<(), WatchEnd> {
    let waiting: Vec<(Owner, String)> = {
        let registry = state.registry();
        let waiting = registry.entries_in(session).filter_map(|(owner, own)| {
            let is_semaphore = |mode| matches!(mode, Mode::Semaphore { .. });
            let at =
                own.attempt.wants.iter().position(|want| want.name == *name && is_semaphore(want.mode))?;
            let nodes = own.entry.nodes.as_ref().filter(|_| own.entry.award.is_none())?;
            Some((owner, last_segment(&nodes.paths[at]).to_owned()))
        });
        let waiting: Vec<(Owner, String)> = waiting.collect();
        if waiting.is_empty() {
            session.watches().queues.remove(name);
            return Err(WatchEnd::NoWaiters);
        }
        waiting
    };
    let children = session.client.list_children(&state.lock_path(name)).await.map_err(|_| WatchEnd::Lost)?;
    let queue = Queue::from_children(&children);
    for (owner, name) in waiting {
        if matches!(queue.position(&name), Position::Holds | Position::Missing) {
            state.push(Wakeup::Check { owner });
        }
    }
    Ok(())
}
