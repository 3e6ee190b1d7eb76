//! The connection on which a client listens for pushes. It is opened when the client first waits, and holds an advisory lock
//! with the client's id: a hand-over passes over waiters whose client does not listen.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use fencepost_core::Result;
use fencepost_core::backend::Wakeup;
use fencepost_net::Backoff;
use tokio::sync::mpsc;
use tokio::time::{Interval, interval, timeout};

use crate::error::{call_failed, unreachable};
use crate::lease::push;
use crate::lease::state::ClientState;
use crate::link::Event;

/// How often the connection is checked, and how long a reply may take.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The channel on which transactions of other programs announce that a lock is free.
const FREE_CHANNEL: &str = "fencepost_free";
/// Separates the schema from the name in such an announcement.
const SEPARATOR: char = '\u{1e}';

/// How often a connection without the advisory lock tries to get it.
const LOCK_INTERVAL: Duration = Duration::from_millis(200);

/// An open connection, and what is received on it.
pub(crate) struct Listening {
    client: tokio_postgres::Client,
    events: mpsc::UnboundedReceiver<Event>,
    /// Whether it has the advisory lock of the client. The one before may have it, if the server believes it to be alive.
    is_locked: bool,
}

impl Listening {
    /// Checks the connection, and gets the lock. Returns whether the server has replied in time.
    async fn ping(&mut self, id: i64) -> bool {
        let sql =
            if self.is_locked { "SELECT true".into() } else { format!("SELECT pg_try_advisory_lock({id})") };
        let pinged = timeout(PING_INTERVAL, self.client.query_typed_one(&sql, &[])).await;
        let Ok(Ok(row)) = pinged else { return false };
        self.is_locked = row.try_get(0).unwrap_or_default();
        true
    }

    fn interval(&self) -> Interval {
        let period = if self.is_locked { PING_INTERVAL } else { LOCK_INTERVAL };
        let mut interval = interval(period);
        interval.reset();
        interval
    }
}

/// Listens in the background, unless the client cannot or does already.
pub(crate) fn start(state: &Arc<ClientState>, opened: Option<Listening>) {
    let mut is_started = state.is_listener_started.lock().unwrap_or_else(PoisonError::into_inner);
    if state.can_listen() && !*is_started {
        *is_started = true;
        tokio::spawn(run(Arc::downgrade(state), opened));
    }
}

async fn run(weak: Weak<ClientState>, mut opened: Option<Listening>) {
    let mut backoff = Backoff::default();
    while let Some(state) = weak.upgrade().filter(|state| !state.pusher.is_closed()) {
        if opened.is_none() {
            opened = open(&state).await.ok();
            if opened.is_some() {
                // Grants that were made while it did not listen were not pushed.
                state.pusher.push(Wakeup::CheckAll);
            }
        }
        let clock = state.clock.clone();
        drop(state);
        if let Some(listening) = opened.take() {
            backoff = Backoff::default();
            forward(&weak, listening).await;
        }
        backoff.wait(&clock).await;
    }
}

/// Opens the connection and listens.
pub(crate) async fn open(state: &ClientState) -> Result<Listening> {
    let (sender, events) = mpsc::unbounded_channel();
    let client = state.pool.link.open(Some(sender)).await?;
    let listen = format!("LISTEN fencepost_{}; LISTEN {FREE_CHANNEL}", state.id);
    let listens = timeout(PING_INTERVAL, client.batch_execute(&listen)).await;
    let listens = listens.map_err(|_| unreachable(&state.location))?;
    listens.map_err(|error| call_failed(&state.location, &error))?;
    let mut listening = Listening { client, events, is_locked: false };
    listening.ping(state.id).await;
    Ok(listening)
}

/// Forwards pushes until the connection or the client ends.
async fn forward(weak: &Weak<ClientState>, mut listening: Listening) {
    let mut pings = listening.interval();
    loop {
        tokio::select! {
            event = listening.events.recv() => {
                let Some(Event::Notification { channel, payload }) = event else { return };
                let Some(state) = weak.upgrade() else { return };
                on_notification(&state, &channel, &payload);
            }
            _ = pings.tick() => {
                let Some(state) = weak.upgrade().filter(|state| !state.pusher.is_closed()) else { return };
                let was_locked = listening.is_locked;
                if !listening.ping(state.id).await {
                    return;
                }
                if listening.is_locked && !was_locked {
                    pings = listening.interval();
                    // Hand-overs may have passed over this client.
                    state.pusher.push(Wakeup::CheckAll);
                }
            }
        }
    }
}

fn on_notification(state: &ClientState, channel: &str, payload: &str) {
    if channel != FREE_CHANNEL {
        if let Some(wakeup) = push::wakeup(payload) {
            state.pusher.push(wakeup);
        }
    } else if let Some((schema, name)) = payload.split_once(SEPARATOR)
        && schema == state.namespace
    {
        state.unblock(name);
    }
}
