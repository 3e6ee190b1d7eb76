//! Whom the servers tell: waiters that somebody before them has left, holders that their own node has vanished.

use std::convert::Infallible;
use std::sync::{Arc, Weak};

use fencepost_core::backend::Wakeup;
use fencepost_core::{Attempt, LockName, LostReason, Mode, Owner, Rule};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, AddWatchMode, EventType};

use crate::queue::{Queue, Standing, last_of};
use crate::session::Session;
use crate::shared::{Book, Shared};

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
                watch_blocker(shared, session, attempt.owner, node);
            }
            Standing::BehindMany => watch_line(shared, session, name),
            Standing::Gone | Standing::Holds => {}
        }
    }
}

/// Whether an attempt certainly waits still: those that it was seen to wait for, which are watched, are there, and so are its own
/// nodes. It costs the same however long the line is.
pub(crate) async fn still_waits(
    shared: &Shared,
    session: &Session,
    attempt: &Attempt,
    own: &[String],
) -> bool {
    let blockers = blockers_of(shared, session, attempt.owner);
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

/// The nodes that are watched because this owner waits for them.
fn blockers_of(shared: &Shared, session: &Session, owner: Owner) -> Vec<String> {
    let book = shared.book();
    let place = book.places.get(owner).filter(|place| place.entry.award.is_none());
    let watched = place.into_iter().flat_map(|place| place.entry.watched.iter().cloned());
    let waits_for = |key: &(i64, String)| book.blockers.get(key).is_some_and(|all| all.contains(&owner));
    watched.map(|node| (session.id, node)).filter(waits_for).map(|(_, node)| node).collect()
}

/// Watches the nodes of a grant itself.
pub(crate) fn watch_own(shared: &Arc<Shared>, session: &Arc<Session>, owner: Owner, nodes: &[String]) {
    for node in nodes.iter().filter(|node| !node.is_empty()) {
        if begin_to_watch(shared, owner, node) {
            let (weak, session) = (Arc::downgrade(shared), Arc::downgrade(session));
            shared.spawn(watch_grant(weak, session, owner, node.clone()));
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

/// Waits until a node is gone that was made by this transaction, if that is known. What is written into it is nobody's
/// business here.
async fn until_gone(session: &Weak<Session>, node: &str, mut made: Option<i64>) -> News {
    loop {
        // The session itself is not held on to while nothing happens, so that dropping it ends it.
        let Some(strong) = session.upgrade() else {
            return News::Nothing;
        };
        let data = strong.client.get_and_watch_data(node).await;
        drop(strong);
        let watcher = match data {
            // Where names do not say whose a node is, another one may be called the same.
            Ok((_, stat, _)) if *made.get_or_insert(stat.czxid) != stat.czxid => return News::Gone,
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

/// Watches a node for which this owner waits.
fn watch_blocker(shared: &Arc<Shared>, session: &Arc<Session>, owner: Owner, node: String) {
    let key = (session.id, node);
    {
        let mut book = shared.book();
        let Book { places, blockers, .. } = &mut *book;
        let Some(place) = places.get_mut(owner) else { return };
        let is_watched = blockers.contains_key(&key);
        let is_new = blockers.entry(key.clone()).or_default().insert(owner);
        // A watch that was lost has left it there.
        if is_new && !place.entry.watched.contains(&key.1) {
            place.entry.watched.push(key.1.clone());
        }
        if is_watched {
            return;
        }
    }
    let (weak, session) = (Arc::downgrade(shared), Arc::downgrade(session));
    shared.spawn(async move {
        let news = until_gone(&session, &key.1, None).await;
        let Some(shared) = weak.upgrade() else { return };
        let waiting = shared.book().blockers.remove(&key).unwrap_or_default();
        for owner in waiting.into_iter().filter(|_| matches!(news, News::Gone)) {
            shared.push(Wakeup::Turn { owner });
        }
    });
}

async fn watch_grant(shared: Weak<Shared>, session: Weak<Session>, owner: Owner, node: String) {
    let made = |shared: Arc<Shared>| shared.book().places.get(owner).and_then(|place| place.entry.token);
    let made = shared.upgrade().and_then(made).and_then(|token| i64::try_from(token).ok());
    let news = until_gone(&session, &node, made).await;
    let (Some(shared), Some(session)) = (shared.upgrade(), session.upgrade()) else { return };
    end_watching(&shared, owner, &node);
    // The same owner may have other nodes by now.
    let is_its_own = || {
        let book = shared.book();
        let place = book.places.get(owner).filter(|place| place.entry.unwanted.is_none());
        place.is_some_and(|place| place.entry.nodes.contains(&node))
    };
    if !is_its_own() {
        return;
    }
    if matches!(news, News::Nothing) {
        // It is watched again, but not at once: the connection was lost.
        let soon = shared.clock.now() + session.ttl / 12;
        shared.book().unwatched.entry(session.id).or_default().push((owner, soon));
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

/// Why a line is followed no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Nobody waits in it any more. It is not in the book any more, so that one who comes now watches it anew.
    Deserted,
    /// It cannot be read, or the watch is lost.
    Unknown,
}

/// Watches a whole line for all of this session who wait in it for any departure: one watch, however many they are.
fn watch_line(shared: &Arc<Shared>, session: &Arc<Session>, name: &LockName) {
    let line = (session.id, name.clone());
    if shared.book().lines_watched.insert(line.clone()) {
        let (weak, session) = (Arc::downgrade(shared), Arc::downgrade(session));
        shared.spawn(async move {
            if let Err(End::Unknown) = follow_line(&weak, &session, &line.1).await
                && let Some(shared) = weak.upgrade()
            {
                shared.book().lines_watched.remove(&line);
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

/// Tells those in this line whose turn it may be.
async fn tell_those_admitted(shared: &Shared, session: &Arc<Session>, name: &LockName) -> Result<(), End> {
    let waiting: Vec<(Owner, String)> = {
        let mut book = shared.book();
        let places = book
            .places
            .iter()
            .filter(|(_, place)| place.entry.award.is_none() && Arc::ptr_eq(&place.entry.session, session));
        let wanted = places.filter_map(|(owner, place)| {
            let is_slot = |mode| matches!(mode, Mode::Slots { .. });
            let at = place.attempt.wants.iter().position(|want| want.name == *name && is_slot(want.mode))?;
            Some((owner, last_of(place.entry.nodes.get(at)?).to_owned()))
        });
        let waiting: Vec<(Owner, String)> = wanted.collect();
        if waiting.is_empty() {
            book.lines_watched.remove(&(session.id, name.clone()));
            return Err(End::Deserted);
        }
        waiting
    };
    let children = session.client.list_children(&shared.line(name)).await.map_err(|_| End::Unknown)?;
    let line = Queue::of(&children);
    for (owner, called) in waiting {
        if matches!(line.standing(&called), Standing::Holds | Standing::Gone) {
            shared.push(Wakeup::Turn { owner });
        }
    }
    Ok(())
}
