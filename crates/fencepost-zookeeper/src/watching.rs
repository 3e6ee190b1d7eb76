//! Whom the servers tell: waiters that somebody before them has left, holders that their own node has vanished.

use std::sync::{Arc, Weak};

use fencepost_core::backend::Wakeup;
use fencepost_core::{Attempt, LockName, LostReason, Mode, Owner};
use zookeeper_client::{self as zk, AddWatchMode, EventType};

use crate::queue::{Queue, Standing, last_of};
use crate::session::Session;
use crate::shared::Shared;

/// What became of a node that was watched.
enum News {
    /// It is not there.
    Gone,
    /// Nothing is known: the session is over, or the connection was lost before the watch was set.
    Nothing,
}

/// Watches those for whom an attempt waits.
pub(crate) fn wait_for(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    standings: &[(usize, Standing)],
) {
    for (at, standing) in standings {
        let name = &attempt.wants[*at].name;
        match standing {
            Standing::Behind(called) => {
                let node = format!("{}/{called}", shared.line(name));
                if begin_to_watch(shared, attempt.owner, &node) {
                    let (shared_by, session) = (Arc::downgrade(shared), Arc::downgrade(session));
                    shared.spawn(watch_blocker(shared_by, session, attempt.owner, node));
                }
            }
            Standing::BehindMany => watch_line(shared, session, name),
            Standing::Gone | Standing::Holds => {}
        }
    }
}

/// Watches the nodes of a grant itself.
pub(crate) fn watch_own(shared: &Arc<Shared>, session: &Arc<Session>, owner: Owner, nodes: &[String]) {
    for node in nodes.iter().filter(|node| !node.is_empty()) {
        if begin_to_watch(shared, owner, node) {
            let (shared_by, session) = (Arc::downgrade(shared), Arc::downgrade(session));
            shared.spawn(watch_grant(shared_by, session, owner, node.clone()));
        }
    }
}

/// Whether this node is not watched yet for this owner; from now on it is.
fn begin_to_watch(shared: &Shared, owner: Owner, node: &str) -> bool {
    let mut book = shared.book();
    let Some(place) = book.places.get_mut(owner) else {
        return false;
    };
    let is_new = !place.entry.watched.iter().any(|there| there == node);
    if is_new {
        place.entry.watched.push(node.to_owned());
    }
    is_new
}

fn end_watching(shared: &Shared, owner: Owner, node: &str) {
    if let Some(place) = shared.book().places.get_mut(owner) {
        place.entry.watched.retain(|there| there != node);
    }
}

/// Waits until a node is gone. What is written into it is nobody's business here.
async fn until_gone(session: &Weak<Session>, node: &str) -> News {
    loop {
        // The session itself is not held on to while nothing happens, so that dropping it ends it.
        let Some(strong) = session.upgrade() else {
            return News::Nothing;
        };
        let data = strong.client.get_and_watch_data(node).await;
        drop(strong);
        let watcher = match data {
            Ok((_, _, watcher)) => watcher,
            Err(zk::Error::NoNode) => return News::Gone,
            Err(_) => return News::Nothing,
        };
        match watcher.changed().await.event_type {
            EventType::NodeDeleted => return News::Gone,
            EventType::Session => return News::Nothing,
            _ => {}
        }
    }
}

async fn watch_blocker(shared: Weak<Shared>, session: Weak<Session>, owner: Owner, node: String) {
    let news = until_gone(&session, &node).await;
    let Some(shared) = shared.upgrade() else { return };
    end_watching(&shared, owner, &node);
    if matches!(news, News::Gone) && shared.book().places.get(owner).is_some() {
        shared.push(Wakeup::Turn { owner });
    }
}

async fn watch_grant(shared: Weak<Shared>, session: Weak<Session>, owner: Owner, node: String) {
    let news = until_gone(&session, &node).await;
    let (Some(shared), Some(session)) = (shared.upgrade(), session.upgrade()) else { return };
    end_watching(&shared, owner, &node);
    // The same owner may have other nodes by now.
    let is_its_own = || {
        let book = shared.book();
        let place = book.places.get(owner).filter(|place| place.entry.unwanted.is_none());
        place.is_some_and(|place| place.entry.nodes.contains(&node))
    };
    if !is_its_own() || matches!(news, News::Nothing) {
        return;
    }
    let broken = shared.setup.paths.broken_grant(owner);
    let is_broken = matches!(session.client.check_stat(&broken).await, Ok(Some(_)));
    let why = if is_broken { LostReason::Broken } else { LostReason::NotHeld };
    if is_its_own() {
        shared.push(Wakeup::Gone { owner, why });
        // If there are others of its nodes, they go too.
        shared.unwant(owner);
    }
    if is_broken {
        // If it stays, it goes with whoever broke it.
        let _ = session.client.delete(&broken, None).await;
    }
}

/// Watches a whole line for all of this session who wait in it for any departure: one watch, however many they are.
fn watch_line(shared: &Arc<Shared>, session: &Arc<Session>, name: &LockName) {
    let line = (session.id, name.clone());
    if shared.book().lines_watched.insert(line.clone()) {
        let (weak, session) = (Arc::downgrade(shared), Arc::downgrade(session));
        shared.spawn(async move {
            follow_line(&weak, &session, &line.1).await;
            if let Some(shared) = weak.upgrade() {
                shared.book().lines_watched.remove(&line);
            }
        });
    }
}

async fn follow_line(shared: &Weak<Shared>, session: &Weak<Session>, name: &LockName) {
    let Some(mut watcher) = ({
        let (Some(shared), Some(session)) = (shared.upgrade(), session.upgrade()) else { return };
        session.client.watch(&shared.line(name), AddWatchMode::PersistentRecursive).await.ok()
    }) else {
        return;
    };
    loop {
        // Also before the first event: what happened before the watch was set is found by this.
        if !tell_those_admitted(shared, session, name).await {
            return;
        }
        loop {
            let event = watcher.changed().await;
            match event.event_type {
                EventType::NodeDeleted => break,
                // The driver does not set such watches again after a new connection: everything is checked then, and that
                // sets a new one.
                EventType::Session => return,
                _ => {}
            }
        }
    }
}

/// Tells those in this line whose turn it may be; false if nobody waits any more.
async fn tell_those_admitted(shared: &Weak<Shared>, session: &Weak<Session>, name: &LockName) -> bool {
    let (Some(shared), Some(session)) = (shared.upgrade(), session.upgrade()) else { return false };
    let waiting: Vec<(Owner, String)> = {
        let book = shared.book();
        let places = book
            .places
            .iter()
            .filter(|(_, place)| place.entry.award.is_none() && Arc::ptr_eq(&place.entry.session, &session));
        let wanted = places.filter_map(|(owner, place)| {
            let is_slot = |mode| matches!(mode, Mode::Slots { .. });
            let at = place.attempt.wants.iter().position(|want| want.name == *name && is_slot(want.mode))?;
            Some((owner, last_of(place.entry.nodes.get(at)?).to_owned()))
        });
        wanted.collect()
    };
    if waiting.is_empty() {
        return false;
    }
    let Ok(children) = session.client.list_children(&shared.line(name)).await else {
        return false;
    };
    let line = Queue::of(&children);
    for (owner, called) in waiting {
        if matches!(line.standing(&called), Standing::Holds | Standing::Gone) {
            shared.push(Wakeup::Turn { owner });
        }
    }
    true
}
