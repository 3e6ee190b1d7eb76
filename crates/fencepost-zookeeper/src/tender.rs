//! Looks after one session: says when it is away and over, deletes the nodes of orphans, watches grants that last.
//!
//! The driver keeps a session alive for as long as the process runs, so that here is decided that a lease has ended.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::LostReason;
use fencepost_core::backend::Wakeup;
use fencepost_core::clock::{Clock, Moment};
use zookeeper_client::StateWatcher;

use crate::orphans::{Orphan, delete};
use crate::session::Session;
use crate::shared::Shared;
use crate::watching::watch_those_that_last;

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
                    shared.push(Wakeup::CheckAll);
                }
                Ok(false) => return shared.session_is_over(&session, LostReason::Expired),
                // Away again.
                Err(_) => {}
            }
        }
        watch_those_that_last(&shared, &session);
        delete_orphans(&shared, &session).await;
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
    let registry = shared.registry();
    let now = shared.clock.now();
    let lapses = registry.places_in(session).map(|(_, place)| place.kept_at + place.attempt.ttl);
    let retries = registry.orphans_in(session).map(|_| now + session.ttl / 12);
    let next = lapses.chain(retries).chain(session.watches().next()).min();
    // A session with something in it is not idle, however long ago it was used.
    let next = next.unwrap_or_else(|| session.used() + session.timeout());
    // What is late already is not worth a busy loop.
    next.max(now + Duration::from_millis(5))
}

async fn delete_orphans(shared: &Arc<Shared>, session: &Arc<Session>) {
    let orphans: Vec<Arc<Orphan>> = {
        let mut registry = shared.registry();
        registry.orphan_lapsed(shared.clock.now());
        registry.orphans_in(session).cloned().collect()
    };
    for orphan in orphans {
        if !session.is_connected() || delete(shared, &orphan).await.is_err() {
            return;
        }
    }
}

/// Returns whether nodes could not be deleted for a whole lease although the session lives: they would stay for as long as it.
fn is_stuck(shared: &Shared, session: &Arc<Session>) -> bool {
    let now = shared.clock.now();
    shared.registry().orphans_in(session).any(|orphan| orphan.since + session.timeout() < now)
}
