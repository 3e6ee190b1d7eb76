//! Notices at once when a foreign client releases a lock. Redis notifies a connection that tracks a key when the key changes
//! (client-side caching), so that the first waiter tries to acquire the lock within a round trip. A foreign client that
//! acquires the lock again at once leaves it free for less than a millisecond, which polling rarely hits.
//!
//! A notification only triggers the next check earlier. Where tracking is not permitted, and while its connection is down,
//! waiters poll at the intervals that the script returns.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{Op, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::{Owner, Result};
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError, Value};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::side_connection::SideConnection;
use crate::decode::text;
use crate::state::ClientState;
use crate::task::Task;

/// How long to wait for the server's reply before the connection is given up.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause before a lost connection is opened again.
const RECONNECT_BACKOFF: Duration = Duration::from_secs(1);
/// How many keys are tracked with one pipeline.
const MAX_BATCH: usize = 128;

/// Tracks keys until it is closed or dropped.
pub(crate) struct Tracking {
    shared: Arc<Shared>,
    /// Keys that are to be tracked.
    keys: UnboundedSender<String>,
    listening: Task,
}

/// What the tracking shares with its task.
struct Shared {
    state: Arc<ClientState>,
    /// The tracked keys, each with this client's first waiter.
    first_waiters: Mutex<HashMap<String, Owner>>,
}

/// Why a key could not be tracked.
enum Failure {
    /// The server does not permit or not support it.
    Refused,
    /// The connection is lost.
    Lost,
}

impl Tracking {
    /// Starts the tracking; it connects when there is a key to track. Must be called inside the runtime in which it will be
    /// used.
    pub(super) fn new(state: Arc<ClientState>) -> Self {
        let shared = Arc::new(Shared { state, first_waiters: Mutex::default() });
        let (keys, requested) = mpsc::unbounded_channel();
        let listening = Task::start(shared.clone().listen(requested));
        Self { shared, keys, listening }
    }

    /// Starts to track the key if the script's reply says that the attempt is the first waiter behind a foreign holder.
    pub(crate) fn on_reply(&self, op: &Op, value: &Value) {
        let (Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt)) = op else {
            return;
        };
        let layout = &self.shared.state.layout;
        let Some(key) = op.names().next().map(|name| layout.stem(name.as_str()).into_owned()) else {
            return;
        };
        let mut first_waiters = self.shared.first_waiters();
        if is_behind_foreign_holder(value) {
            let is_tracked = first_waiters.insert(key.clone(), attempt.owner).is_some();
            if !is_tracked && self.keys.send(key.clone()).is_err() {
                // The server refused tracking, and the task has ended.
                first_waiters.remove(&key);
            }
        } else if first_waiters.get(&key) == Some(&attempt.owner) {
            first_waiters.remove(&key);
        }
    }

    /// Stops tracking.
    pub(super) fn close(&self) {
        self.listening.stop();
    }
}

/// Returns whether the reply is `W`, an interval, and a 1.
fn is_behind_foreign_holder(value: &Value) -> bool {
    let Value::Array(parts) = value else {
        return false;
    };
    matches!((text(parts.first()), parts.get(2)), (Some("W"), Some(Value::Int(1))))
}

impl Shared {
    fn first_waiters(&self) -> MutexGuard<'_, HashMap<String, Owner>> {
        self.first_waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tracks the requested keys, until the server refuses.
    async fn listen(self: Arc<Self>, mut requested: UnboundedReceiver<String>) {
        let clock = Clock::system();
        let (mut connection, mut keys) = (None, Vec::new());
        while requested.recv_many(&mut keys, MAX_BATCH).await > 0 {
            let tracked = tokio::time::timeout(REPLY_TIMEOUT, self.track(&mut connection, &keys)).await;
            match tracked.unwrap_or(Err(Failure::Lost)) {
                Ok(()) => {}
                Err(Failure::Refused) => break,
                Err(Failure::Lost) => {
                    connection = None;
                    self.first_waiters().clear();
                    let _ = clock.sleep_until(clock.now() + RECONNECT_BACKOFF).await;
                }
            }
            keys.clear();
        }
        self.first_waiters().clear();
    }

    /// Tracks these keys: reading a key makes the server notify this connection of its next change.
    async fn track(
        self: &Arc<Self>,
        connection: &mut Option<SideConnection>,
        keys: &[String],
    ) -> Result<(), Failure> {
        if connection.is_none() {
            *connection = Some(self.connect().await?);
        }
        let Some(SideConnection { connection, .. }) = connection else {
            return Err(Failure::Lost);
        };
        let mut reads = redis::pipe();
        for key in keys {
            reads.cmd("EXISTS").arg(key);
        }
        let found: Vec<bool> = reads.query_async(connection).await.map_err(Failure::from)?;
        // A key that does not exist any more was deleted before it was tracked.
        keys.iter().zip(found).filter(|(_, exists)| !exists).for_each(|(key, _)| self.on_change(key));
        Ok(())
    }

    async fn connect(self: &Arc<Self>) -> Result<SideConnection, Failure> {
        let shared = self.clone();
        let on_push = move |push: PushInfo| {
            match push.kind {
                PushKind::Invalidate => shared.on_invalidate(&push.data),
                PushKind::Disconnection => shared.first_waiters().clear(),
                _ => {}
            }
            Ok::<(), ()>(())
        };
        let config = AsyncConnectionConfig::new().set_push_sender(on_push);
        let mut connection = SideConnection::open(&self.state, config).await.map_err(|_| Failure::Lost)?;
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON");
        tracking.query_async::<()>(&mut connection.connection).await.map_err(Failure::from)?;
        Ok(connection)
    }

    /// Handles a notification: the keys that have changed, or none if the database was emptied.
    fn on_invalidate(&self, data: &[Value]) {
        if let Some(Value::Array(keys)) = data.first() {
            keys.iter().filter_map(|key| text(Some(key))).for_each(|key| self.on_change(key));
            return;
        }
        let owners: Vec<Owner> = self.first_waiters().drain().map(|(_, owner)| owner).collect();
        for owner in owners {
            self.state.push(Wakeup::Check { owner });
        }
    }

    fn on_change(&self, key: &str) {
        let first_waiter = self.first_waiters().remove(key);
        if let Some(owner) = first_waiter {
            self.state.push(Wakeup::Check { owner });
        }
    }
}

impl From<RedisError> for Failure {
    /// An error with a code is the server's reply; any other means that the connection is lost.
    fn from(error: RedisError) -> Self {
        if error.code().is_some() { Self::Refused } else { Self::Lost }
    }
}
