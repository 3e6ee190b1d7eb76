//! The maintenance task of one session: detects disconnects and the end of the session, deletes the nodes of orphans,
//! and watches long grants.
//!
//! The driver keeps a session alive as long as the process runs, so that the expiry of leases is decided here.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::LostReason;
use fencepost_core::backend::Wakeup;
use fencepost_core::clock::{Clock, Moment};
use zookeeper_client::StateWatcher;

use crate::orphans::{Orphan, delete_orphan};
use crate::session::Session;
use crate::state::ClientState;
use crate::watches::watch_due_grants;

/// Maintains a session until it is over or unused.
pub(crate) async fn maintain(state: Weak<ClientState>, session: Weak<Session>, mut states: StateWatcher) {
    let Some(Ok(mut timer)) = state.upgrade().map(|state| state.clock.timer()) else {
        return;
    };
    let mut was_disconnected = false;
    loop {
        let Some((state, session)) = state.upgrade().zip(session.upgrade()) else { return };
        if session.is_over() {
            return state.on_session_over(&session, LostReason::Expired);
        }
        if was_disconnected && session.is_connected() {
            match session.is_same_session().await {
                Ok(true) => {
                    was_disconnected = false;
                    state.push(Wakeup::CheckAll);
                }
                Ok(false) => return state.on_session_over(&session, LostReason::Expired),
                // Disconnected again.
                Err(_) => {}
            }
        }
        watch_due_grants(&state, &session);
        delete_orphans(&state, &session).await;
        if is_stuck(&state, &session) {
            return state.on_session_over(&session, LostReason::Abandoned);
        }
        if state.drop_if_idle(&session) {
            return;
        }
        timer.arm(next_run(&state, &session));
        let maintenance = session.maintenance.clone();
        // No strong reference is held while waiting, so that dropping the session ends it.
        drop((state, session));
        tokio::select! {
            // A short disconnect may be over before the state is read.
            _ = states.changed() => was_disconnected = true,
            () = timer.fired() => {}
            () = maintenance.notified() => {}
        }
    }
}

/// Probes a session while it exists, so that its lease start stays recent.
pub(crate) async fn probe_periodically(session: Weak<Session>, interval: Duration, clock: Clock) {
    while clock.sleep_until(clock.now() + interval).await.is_ok() {
        let Some(session) = session.upgrade() else { return };
        if session.is_over() {
            return;
        }
        if session.is_connected() {
            // The maintenance task notices a lost connection.
            let _ = session.probe().await;
        }
    }
}

fn next_run(state: &ClientState, session: &Arc<Session>) -> Moment {
    let registry = state.registry();
    let now = state.clock.now();
    let lapses = registry.entries_in(session).map(|(_, own)| own.kept_at + own.attempt.ttl);
    let retries = registry.orphans_in(session).map(|_| now + session.ttl / 12);
    let next = lapses.chain(retries).chain(session.watches().next()).min();
    // A session with entries or orphans is not idle, however long ago it was used.
    let next = next.unwrap_or_else(|| session.last_used() + session.timeout());
    // Bounds the rate of runs if something is overdue.
    next.max(now + Duration::from_millis(5))
}

async fn delete_orphans(state: &Arc<ClientState>, session: &Arc<Session>) {
    let orphans: Vec<Arc<Orphan>> = {
        let mut registry = state.registry();
        registry.orphan_expired(state.clock.now());
        registry.orphans_in(session).cloned().collect()
    };
    for orphan in orphans {
        if !session.is_connected() || delete_orphan(state, &orphan).await.is_err() {
            return;
        }
    }
}

/// Returns whether nodes of an orphan could not be deleted for a whole session timeout although the session lives. They
/// would exist as long as the session.
fn is_stuck(state: &ClientState, session: &Arc<Session>) -> bool {
    let now = state.clock.now();
    state.registry().orphans_in(session).any(|orphan| orphan.since + session.timeout() < now)
}
