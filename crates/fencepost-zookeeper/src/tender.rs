//! Looks after one session: says when it is away and over, removes nodes that nobody keeps, watches grants that last.
//!
//! The driver keeps a session alive for as long as the process runs, so that here is decided that a lease has ended.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_contenders::Place;
use fencepost_core::backend::Wakeup;
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{LostReason, Owner, Result};
use zookeeper_client::StateWatcher;

use crate::nodes::{delete_all, find_again};
use crate::session::Session;
use crate::shared::{Entry, Shared};
use crate::watching::watch_own;

/// A grant that is held for less than this is not watched: that would cost more than it.
const SHORT: Duration = Duration::from_millis(50);

/// Looks after a session until it is over or nobody uses it.
pub(crate) async fn tend(shared: Weak<Shared>, session: Weak<Session>, mut states: StateWatcher) {
    let Some(Ok(mut timer)) = shared.upgrade().map(|shared| shared.clock.timer()) else {
        return;
    };
    let mut was_away = false;
    loop {
        let Some((shared, session)) = shared.upgrade().zip(session.upgrade()) else { return };
        if session.is_over() {
            return shared.session_is_over(&session, LostReason::Expired);
        }
        if was_away && session.is_connected() {
            match session.is_the_same().await {
                Ok(true) => {
                    was_away = false;
                    shared.push(Wakeup::Recheck);
                }
                Ok(false) => return shared.session_is_over(&session, LostReason::Expired),
                // Away again.
                Err(_) => {}
            }
        }
        watch_those_that_last(&shared, &session);
        remove_what_nobody_keeps(&shared, &session).await;
        if is_stuck(&shared, &session) {
            return shared.session_is_over(&session, LostReason::Abandoned);
        }
        if shared.give_up_idle(&session) {
            return;
        }
        timer.arm(next_chore(&shared, &session));
        let chores = session.chores.clone();
        // Nobody holds on to the session while nothing happens, so that dropping it ends it.
        drop((shared, session));
        tokio::select! {
            // It was connected before. Whoever is busy may see only that it is so again.
            _ = states.changed() => was_away = true,
            () = timer.fired() => {}
            () = chores.notified() => {}
        }
    }
}

/// Probes a session for as long as it is used, so that what is proven about it is never old.
pub(crate) async fn keep_probing(session: Weak<Session>, pause: Duration, clock: Clock) {
    while clock.sleep_until(clock.now() + pause).await.is_ok() {
        let Some(session) = session.upgrade() else { return };
        if session.is_over() {
            return;
        }
        if session.is_connected() {
            // A connection that was lost is noticed by others.
            let _ = session.probe().await;
        }
    }
}

fn next_chore(shared: &Shared, session: &Arc<Session>) -> Moment {
    let book = shared.book();
    let now = shared.clock.now();
    let ours = book.places.iter().filter(|(_, place)| Arc::ptr_eq(&place.entry.session, session));
    let ends = ours.map(|(_, place)| match place.entry.unwanted {
        Some(from) => from.max(now + session.ttl / 12),
        None => place.kept + place.attempt.ttl,
    });
    let lasting = book.unwatched.get(&session.id).into_iter().flatten().map(|(_, granted)| *granted + SHORT);
    // A session with something in it is not idle, however long ago somebody came.
    let next = ends.chain(lasting).min().unwrap_or_else(|| session.used() + session.timeout());
    // What is late already is not worth a busy loop.
    next.max(now + Duration::from_millis(5))
}

/// Watches the grants that are held for long.
fn watch_those_that_last(shared: &Arc<Shared>, session: &Arc<Session>) {
    let now = shared.clock.now();
    let mut lasting = Vec::new();
    {
        let mut book = shared.book();
        let mut unwatched = book.unwatched.remove(&session.id).unwrap_or_default();
        unwatched.retain(|(owner, granted)| {
            let Some(place) = book.places.get(*owner) else { return false };
            let lasts = *granted + SHORT <= now;
            if lasts {
                lasting.push((*owner, place.entry.nodes.clone()));
            }
            !lasts
        });
        if !unwatched.is_empty() {
            book.unwatched.insert(session.id, unwatched);
        }
    }
    for (owner, nodes) in lasting {
        watch_own(shared, session, owner, &nodes);
    }
}

async fn remove_what_nobody_keeps(shared: &Arc<Shared>, session: &Arc<Session>) {
    let now = shared.clock.now();
    let unwanted: Vec<Owner> = {
        let mut book = shared.book();
        let lapsed = book.places.lapsed(now);
        for owner in lapsed {
            if let Some(place) = book.places.get_mut(owner) {
                place.entry.unwanted.get_or_insert(now);
            }
        }
        let unwanted = book.places.iter().filter(|(_, place)| {
            let entry = &place.entry;
            Arc::ptr_eq(&entry.session, session)
                && !entry.coming
                && entry.unwanted.is_some_and(|from| from <= now)
        });
        unwanted.map(|(owner, _)| owner).collect()
    };
    if !session.is_connected() {
        return;
    }
    for owner in unwanted {
        if remove(shared, owner).await.is_err() {
            return;
        }
    }
}

/// Removes the nodes of this owner, wherever they are, and forgets it. If that fails it is tried again later.
pub(crate) async fn remove(shared: &Arc<Shared>, owner: Owner) -> Result<()> {
    let Some((attempt, session, is_known)) = ({
        let now = shared.clock.now();
        let mut book = shared.book();
        book.places.get_mut(owner).map(|place| {
            // Whoever looks after the session comes to it by and by, should this future be dropped.
            place.entry.unwanted.get_or_insert(now + place.attempt.ttl);
            (place.attempt.clone(), place.entry.session.clone(), !place.entry.nodes.is_empty())
        })
    }) else {
        return Ok(());
    };
    if !is_known && !find_again(shared, &session, &attempt).await? {
        return Ok(());
    }
    // The same owner may have come anew meanwhile.
    let unwanted = |place: &Place<Entry>| place.entry.unwanted.map(|_| place.entry.nodes.clone());
    let Some(nodes) = shared.book().places.get(owner).and_then(unwanted) else { return Ok(()) };
    if let Err(error) = delete_all(&session, &nodes).await {
        shared.unwant(owner);
        return Err(shared.setup.failed(&error));
    }
    shared.forget_with(owner, &nodes);
    Ok(())
}

/// Whether something could not be removed for a whole lease although the session lives: it would stay for as long as that.
fn is_stuck(shared: &Shared, session: &Arc<Session>) -> bool {
    let now = shared.clock.now();
    let book = shared.book();
    book.places.iter().any(|(_, place)| {
        let since = place.entry.unwanted.filter(|_| Arc::ptr_eq(&place.entry.session, session));
        since.is_some_and(|since| since + session.timeout() < now)
    })
}
