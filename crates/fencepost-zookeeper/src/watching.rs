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

use crate::queue::{Queue, Standing, last_of};
use crate::registry::{Nodes, Registry};
use crate::session::Session;
use crate::shared::Shared;

/// A grant that is held for less than this is not watched: that would cost more than it.
const SHORT: Duration = Duration::from_millis(50);

/// What is watched in one session.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// The nodes that are watched, and who waits for each to go. However many come and leave again behind one that stays,
    /// it is watched once.
    blockers: HashMap<String, HashSet<Owner>>,
    /// The locks whose lines are watched as a whole.
    lines: HashSet<LockName>,
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
pub(crate) fn wait_for(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    attempt: &Attempt,
    standings: &[(usize, Standing)],
) {
    let name = |at: &usize| &attempt.wants[*at].name;
    let blockers: Vec<String> = standings
        .iter()
        .filter_map(|(at, standing)| match standing {
            Standing::Behind(called) => Some(format!("{}/{called}", shared.line(name(at)))),
            _ => None,
        })
        .collect();
    {
        let mut registry = shared.registry();
        let Some(place) = registry.places.get_mut(attempt.owner) else { return };
        session.watches().stop_waiting(attempt.owner, &place.entry.blockers);
        place.entry.blockers.clone_from(&blockers);
    }
    for node in blockers {
        watch_blocker(shared, session, attempt.owner, node);
    }
    for (at, _) in standings.iter().filter(|(_, standing)| *standing == Standing::BehindMany) {
        watch_line(shared, session, name(at));
    }
}

/// Returns whether an attempt certainly waits still: the nodes that it was seen to wait for, which are watched, are there, and
/// so are its own. It costs the same however long the line is.
pub(crate) async fn still_waits(
    shared: &Shared,
    session: &Session,
    attempt: &Attempt,
    own: &[String],
) -> bool {
    let owner = attempt.owner;
    let blockers = {
        let registry = shared.registry();
        registry.places.get(owner).map(|place| place.entry.blockers.clone()).unwrap_or_default()
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
async fn is_gone(session: &Weak<Session>, node: &str, mut made: Option<i64>) -> bool {
    loop {
        // The session itself is not held on to while nothing happens, so that dropping it ends it.
        let Some(strong) = session.upgrade() else { return false };
        let data = strong.client.get_and_watch_data(node).await;
        drop(strong);
        let watcher = match data {
            // Where names do not say whose a node is, another one may be called the same.
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
fn watch_blocker(shared: &Arc<Shared>, session: &Arc<Session>, owner: Owner, node: String) {
    {
        let mut watches = session.watches();
        let is_watched = watches.blockers.contains_key(&node);
        watches.blockers.entry(node.clone()).or_default().insert(owner);
        if is_watched {
            return;
        }
    }
    let (weak, session) = (Arc::downgrade(shared), Arc::downgrade(session));
    shared.spawn(async move {
        let is_gone = is_gone(&session, &node, None).await;
        let Some((shared, session)) = weak.upgrade().zip(session.upgrade()) else { return };
        let waiting = session.watches().blockers.remove(&node).unwrap_or_default();
        for owner in waiting.into_iter().filter(|_| is_gone) {
            shared.push(Wakeup::Check { owner });
        }
    });
}

/// Remembers that a grant is to be watched if it is held for long.
pub(crate) fn watch_if_it_lasts(session: &Session, owner: Owner, now: Moment) {
    let mut watches = session.watches();
    if watches.grants.is_empty() {
        session.chores.notify_one();
    }
    watches.grants.push((owner, now + SHORT));
}

/// Watches the nodes of the grants that are held for long.
pub(crate) fn watch_those_that_last(shared: &Arc<Shared>, session: &Arc<Session>) {
    let now = shared.clock.now();
    let mut lasting = Vec::new();
    {
        let registry = shared.registry();
        session.watches().grants.retain(|(owner, from)| {
            let nodes = registry.places.get(*owner).and_then(|place| place.entry.nodes.as_ref());
            let Some(nodes) = nodes else { return false };
            let lasts = *from <= now;
            if lasts {
                lasting.push((*owner, nodes.clone()));
            }
            !lasts
        });
    }
    for (owner, nodes) in lasting {
        shared.spawn(watch_grant(Arc::downgrade(shared), Arc::downgrade(session), owner, nodes));
    }
}

async fn watch_grant(shared: Weak<Shared>, session: Weak<Session>, owner: Owner, nodes: Nodes) {
    let made = i64::try_from(nodes.token).ok();
    let own = nodes.paths.iter().filter(|node| !node.is_empty());
    let (is_gone, ..) = select_all(own.map(|node| Box::pin(is_gone(&session, node, made)))).await;
    let Some((shared, session)) = shared.upgrade().zip(session.upgrade()) else { return };
    // The entry may be given up by now, and the same owner may have another.
    let is_held = |registry: &Registry| {
        let place = registry.places.get(owner).filter(|place| !place.entry.released);
        place.is_some_and(|place| place.entry.nodes.as_ref() == Some(&nodes))
    };
    if !is_held(&shared.registry()) {
        return;
    }
    if !is_gone {
        // It is watched again, but not at once: the connection was lost.
        let soon = shared.clock.now() + session.ttl / 12;
        session.watches().grants.push((owner, soon));
        return;
    }
    let broken = shared.setup.paths.broken_grant(owner);
    let is_broken = matches!(session.client.check_stat(&broken).await, Ok(Some(_)));
    let why = if is_broken { LostReason::Broken } else { LostReason::NotHeld };
    {
        let mut registry = shared.registry();
        if is_held(&registry) {
            shared.push(Wakeup::Lost { owner, reason: why });
            // If there are others of its nodes, they go too.
            registry.orphan(owner, shared.clock.now());
            session.chores.notify_one();
        }
    }
    if is_broken {
        // If it stays, it goes with the client that broke the grant.
        let _ = session.client.delete(&broken, None).await;
    }
}

/// Why a line is followed no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// No attempt waits in it any more. It does not count as watched, so that the next one watches it again.
    Deserted,
    /// It cannot be read, or the watch is lost.
    Unknown,
}

/// Watches a whole line for all of this session that wait in it for any departure: one watch, however many they are.
fn watch_line(shared: &Arc<Shared>, session: &Arc<Session>, name: &LockName) {
    if session.watches().lines.insert(name.clone()) {
        let (weak, session, name) = (Arc::downgrade(shared), Arc::downgrade(session), name.clone());
        shared.spawn(async move {
            if let Err(End::Unknown) = follow_line(&weak, &session, &name).await
                && let Some(session) = session.upgrade()
            {
                session.watches().lines.remove(&name);
            }
        });
    }
}

async fn follow_line(
    shared: &Weak<Shared>,
    session: &Weak<Session>,
    name: &LockName,
) -> Result<Infallible, End> {
    let both = || shared.upgrade().zip(session.upgrade()).ok_or(End::Unknown);
    let mut watcher = {
        let (shared, session) = both()?;
        let line = shared.line(name);
        let watcher = session.client.watch(&line, AddWatchMode::PersistentRecursive).await;
        watcher.map_err(|_| End::Unknown)?
    };
    loop {
        // Also before the first event: what happened before the watch was set is found by this.
        {
            let (shared, session) = both()?;
            tell_those_admitted(&shared, &session, name).await?;
        }
        loop {
            let event = watcher.changed().await;
            match event.event_type {
                EventType::NodeDeleted => break,
                // The driver does not set such watches again after a new connection: everything is checked then, and that
                // sets a new one.
                EventType::Session => return Err(End::Unknown),
                _ => {}
            }
        }
    }
}

/// Tells the waiters of this line whose turn it may be.
async fn tell_those_admitted(shared: &Shared, session: &Arc<Session>, name: &LockName) -> Result<(), End> {
    let waiting: Vec<(Owner, String)> = {
        let registry = shared.registry();
        let waiting = registry.places_in(session).filter_map(|(owner, place)| {
            let is_slot = |mode| matches!(mode, Mode::Semaphore { .. });
            let at = place.attempt.wants.iter().position(|want| want.name == *name && is_slot(want.mode))?;
            let nodes = place.entry.nodes.as_ref().filter(|_| place.entry.award.is_none())?;
            Some((owner, last_of(&nodes.paths[at]).to_owned()))
        });
        let waiting: Vec<(Owner, String)> = waiting.collect();
        if waiting.is_empty() {
            session.watches().lines.remove(name);
            return Err(End::Deserted);
        }
        waiting
    };
    let children = session.client.list_children(&shared.line(name)).await.map_err(|_| End::Unknown)?;
    let line = Queue::of(&children);
    for (owner, called) in waiting {
        if matches!(line.standing(&called), Standing::Holds | Standing::Gone) {
            shared.push(Wakeup::Check { owner });
        }
    }
    Ok(())
}
