//! Removes rows that a client may have left behind: of acquires whose replies were lost, and, where leases have no end in the
//! table, of grants that were not renewed.

use std::sync::Weak;
use std::time::Duration;

use super::backend::Shared;
use super::owner::MarkPattern;
use super::rows::LockRows;

/// How often it is looked for such rows.
const INTERVAL: Duration = Duration::from_millis(250);

/// Removes such rows until the client is dropped.
pub(super) async fn run<R: LockRows>(client: Weak<Shared<R>>) {
    loop {
        let Some(shared) = client.upgrade() else { return };
        remove(&shared).await;
        let clock = shared.clock.clone();
        drop(shared);
        if clock.sleep_until(clock.now() + INTERVAL).await.is_err() {
            return;
        }
    }
}

/// Removes all such rows, as far as they are there already: the client ends.
pub(super) async fn remove_all<R: LockRows>(shared: &Shared<R>) {
    let undos = shared.state().take_all_undos();
    for undo in undos {
        let pattern = MarkPattern::attempt(shared.rows.info().owner, undo.owner);
        if shared.rows.release(&undo.name, &pattern).await.is_err() {
            // The server does not answer: no row can be removed.
            return;
        }
    }
}

/// Removes the rows that are due.
async fn remove<R: LockRows>(shared: &Shared<R>) {
    let info = shared.rows.info();
    let due = shared.state().take_undos(info.has_expiry, shared.clock.now());
    for mut undo in due {
        let pattern = MarkPattern::attempt(info.owner, undo.owner);
        if shared.rows.release(&undo.name, &pattern).await.is_ok() {
            let first = shared.state().queues.first(&undo.name, shared.clock.now());
            shared.wake(first);
        } else {
            undo.due = shared.clock.now() + INTERVAL;
            shared.state().retry(undo);
        }
    }
}
