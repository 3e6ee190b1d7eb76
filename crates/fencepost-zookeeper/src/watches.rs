//! Tells owners what the servers tell: waiters that a node before them has gone, holders that their own node has vanished.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::backend::Wakeup;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LockName, LostReason, Mode, Owner, Rule};
use futures_util::future::{join_all, select_all};
use zookeeper_client::{self as zk, AddWatchMode, EventType};

use crate::queue::{Position, Queue, node_name};
use crate::registry::{Nodes, Registry};
use crate::session::Session;
use crate::state::ClientState;

/// A grant that is held for less than this is not watched: that would cost more than it.
const WATCH_DELAY: Duration = Duration::from_millis(50);

/// What is watched in one session.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// The nodes that are watched, and who waits for each to go. However many come and leave again behind one that stays,
    /// it is watched once.
    blockers: HashMap<String, HashSet<Owner>>,
    /// The locks whose queues are watched as a whole.
    queues: HashSet<LockName>,
    /// The grants whose own nodes are not watched yet, and from when on they are to be.
    grants: Vec<(Owner, Moment)>,
}

impl Watches {
    /// Forgets that this owner waits for these nodes.
    pub(crate) fn stop_waiting(&mut self, owner: Owner, nodes: &[String]) {
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

/// Watches the nodes for which an attempt waits.
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
        session.watches().stop_waiting(attempt.owner, &own.entry.blockers);
        own.entry.blockers.clone_from(&blockers);
    }
    for node in blockers {
        watch_blocker(state, session, attempt.owner, node);
    }
    for (at, _) in positions.iter().filter(|(_, position)| *position == Position::BehindMany) {
        watch_queue(state, session, name(at));
    }
}

/// Returns whether an attempt certainly waits still: the nodes that it was seen to wait for, which are watched, are there, and
/// so are its own. It costs the same however long the queue is.
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

/// Waits until a node is gone that was made by this transaction, if that is known. Returns false if it cannot be told: the session
/// is over, or the connection was lost. What is written into the node does not matter.
async fn wait_until_deleted(session: &Weak<Session>, node: &str, mut made: Option<i64>) -> bool {
    loop {
        // The session itself is not held on to while nothing happens, so that dropping it ends it.
        let Some(strong) = session.upgrade() else { return false };
        let data = strong.client.get_and_watch_data(node).await;
        drop(strong);
        let watcher = match data {
            // Where names do not say whose a node is, another one may be name the same.
            Ok((_, stat, _)) if *made.get_or_insert(stat.czxid) != stat.czxid => return true,
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

/// Watches a node for which this owner waits.
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

/// Remembers that a grant is to be watched if it is held for long.
pub(crate) fn watch_grant_later(session: &Session, owner: Owner, now: Moment) {
    let mut watches = session.watches();
    if watches.grants.is_empty() {
        session.maintenance.notify_one();
    }
    watches.grants.push((owner, now + WATCH_DELAY));
}

/// Watches the nodes of the grants that are held for long.
pub(crate) fn watch_long_grants(state: &Arc<ClientState>, session: &Arc<Session>) {
    let now = state.clock.now();
    let mut lasting = Vec::new();
    {
        let registry = state.registry();
        session.watches().grants.retain(|(owner, from)| {
            let nodes = registry.entries.get(*owner).and_then(|own| own.entry.nodes.as_ref());
            let Some(nodes) = nodes else { return false };
            let lasts = *from <= now;
            if lasts {
                lasting.push((*owner, nodes.clone()));
            }
            !lasts
        });
    }
    for (owner, nodes) in lasting {
        state.spawn(watch_grant(Arc::downgrade(state), Arc::downgrade(session), owner, nodes));
    }
}

async fn watch_grant(state: Weak<ClientState>, session: Weak<Session>, owner: Owner, nodes: Nodes) {
    let made = i64::try_from(nodes.token).ok();
    let own = nodes.paths.iter().filter(|node| !node.is_empty());
    let (is_deleted, ..) =
        select_all(own.map(|node| Box::pin(wait_until_deleted(&session, node, made)))).await;
    let Some((state, session)) = state.upgrade().zip(session.upgrade()) else { return };
    // The entry may be given up by now, and the same owner may have another.
    let is_held = |registry: &Registry| {
        let own = registry.entries.get(owner).filter(|own| !own.entry.released);
        own.is_some_and(|own| own.entry.nodes.as_ref() == Some(&nodes))
    };
    if !is_held(&state.registry()) {
        return;
    }
    if !is_deleted {
        // It is watched again, but not at once: the connection was lost.
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
            // If there are others of its nodes, they go too.
            registry.make_orphan(owner, state.clock.now());
            session.maintenance.notify_one();
        }
    }
    if is_broken {
        // If it stays, it goes with the client that broke the grant.
        let _ = session.client.delete(&broken, None).await;
    }
}

/// Why a queue is followed no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchEnd {
    /// No attempt waits in it any more. It does not count as watched, so that the next one watches it again.
    NoWaiters,
    /// It cannot be read, or the watch is lost.
    Lost,
}

/// Watches a whole queue for all of this session that wait in it for any departure: one watch, however many they are.
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
        // Also before the first event: what happened before the watch was set is found by this.
        {
            let (state, session) = both()?;
            wake_admitted(&state, &session, name).await?;
        }
        loop {
            let event = watcher.changed().await;
            match event.event_type {
                EventType::NodeDeleted => break,
                // The driver does not set such watches again after a new connection: everything is checked then, and that
                // sets a new one.
                EventType::Session => return Err(WatchEnd::Lost),
                _ => {}
            }
        }
    }
}

/// Tells the waiters of this queue whose turn it may be.
async fn wake_admitted(state: &ClientState, session: &Arc<Session>, name: &LockName) -> Result<(), WatchEnd> {
    let waiting: Vec<(Owner, String)> = {
        let registry = state.registry();
        let waiting = registry.entries_in(session).filter_map(|(owner, own)| {
            let is_slot = |mode| matches!(mode, Mode::Semaphore { .. });
            let at = own.attempt.wants.iter().position(|want| want.name == *name && is_slot(want.mode))?;
            let nodes = own.entry.nodes.as_ref().filter(|_| own.entry.award.is_none())?;
            Some((owner, node_name(&nodes.paths[at]).to_owned()))
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
