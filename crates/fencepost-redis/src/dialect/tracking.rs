//! Hears at once when the holder of another library gives a lock back. Redis notifies a connection that tracks a key when
//! the key changes (client-side caching), so the first of ours in line claims the lock within a round trip. A holder that
//! takes the lock again at once leaves it free for less than a millisecond, which a look now and then rarely meets.
//!
//! A notice only hastens the next look. Where tracking is not permitted, and while its connection is down, the pauses that the
//! script answers with are all there is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{Op, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::{Owner, Result};
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError, Value};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::line::Line;
use crate::decode::text;
use crate::setup::Setup;
use crate::task::Task;

/// A server that does not answer for so long is not there.
const SILENCE: Duration = Duration::from_secs(2);
/// The pause before a lost connection is made again.
const REST: Duration = Duration::from_secs(1);
/// How many keys are tracked with one pipeline.
const BATCH: usize = 128;

/// Listens for as long as it lives.
pub(crate) struct Tracking {
    tracked: Arc<Tracked>,
    /// Keys that the server has yet to be told to track.
    keys: UnboundedSender<String>,
    listening: Task,
}

/// The keys whose next change is awaited, each with the first of ours in line.
struct Tracked {
    setup: Arc<Setup>,
    heads: Mutex<HashMap<String, Owner>>,
}

/// Why nothing is tracked just now.
enum Failure {
    /// The server does not permit it, or does not know it.
    Refused,
    /// The connection is lost.
    Lost,
}

impl Tracking {
    /// Listens once there is something to listen for. Must be called inside the runtime in which it will be used.
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        let tracked = Arc::new(Tracked { setup, heads: Mutex::default() });
        let (keys, asked) = mpsc::unbounded_channel();
        let listening = Task::start(tracked.clone().listen(asked));
        Self { tracked, keys, listening }
    }

    /// Takes note of the waiter that a script answered: whether it is first in line behind a holder that is not ours.
    pub(crate) fn note(&self, op: &Op, answer: &Value) {
        let (Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt)) = op else {
            return;
        };
        let layout = &self.tracked.setup.layout;
        let Some(key) = op.names().next().map(|name| layout.stem(name.as_str()).into_owned()) else {
            return;
        };
        let mut heads = self.tracked.heads();
        if is_behind_a_stranger(answer) {
            let is_tracked = heads.insert(key.clone(), attempt.owner).is_some();
            if !is_tracked && self.keys.send(key.clone()).is_err() {
                // Tracking was refused.
                heads.remove(&key);
            }
        } else if heads.get(&key) == Some(&attempt.owner) {
            heads.remove(&key);
        }
    }

    /// Listens no longer.
    pub(super) fn close(&self) {
        self.listening.stop();
    }
}

/// `W`, when to look again, and a 1.
fn is_behind_a_stranger(answer: &Value) -> bool {
    let Value::Array(parts) = answer else {
        return false;
    };
    matches!((text(parts.first()), parts.get(2)), (Some("W"), Some(Value::Int(1))))
}

impl Tracked {
    fn heads(&self) -> MutexGuard<'_, HashMap<String, Owner>> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tracks the keys that are asked for, until the server refuses to.
    async fn listen(self: Arc<Self>, mut asked: UnboundedReceiver<String>) {
        let clock = Clock::system();
        let (mut line, mut keys) = (None, Vec::new());
        while asked.recv_many(&mut keys, BATCH).await > 0 {
            let tracked = tokio::time::timeout(SILENCE, self.track(&mut line, &keys)).await;
            match tracked.unwrap_or(Err(Failure::Lost)) {
                Ok(()) => {}
                Err(Failure::Refused) => break,
                Err(Failure::Lost) => {
                    line = None;
                    self.heads().clear();
                    let _ = clock.sleep_until(clock.now() + REST).await;
                }
            }
            keys.clear();
        }
        self.heads().clear();
    }

    /// From here on a change of these keys is heard.
    async fn track(self: &Arc<Self>, line: &mut Option<Line>, keys: &[String]) -> Result<(), Failure> {
        if line.is_none() {
            *line = Some(self.connect().await?);
        }
        let Some(Line { connection, .. }) = line else {
            return Err(Failure::Lost);
        };
        let mut reads = redis::pipe();
        for key in keys {
            reads.cmd("EXISTS").arg(key);
        }
        let found: Vec<bool> = reads.query_async(connection).await.map_err(Failure::from)?;
        // A key that is gone changed before it was tracked.
        keys.iter().zip(found).filter(|(_, is_there)| !is_there).for_each(|(key, _)| self.changed(key));
        Ok(())
    }

    async fn connect(self: &Arc<Self>) -> Result<Line, Failure> {
        let tracked = self.clone();
        let hear = move |push: PushInfo| {
            match push.kind {
                PushKind::Invalidate => tracked.heard(&push.data),
                PushKind::Disconnection => tracked.heads().clear(),
                _ => {}
            }
            Ok::<(), ()>(())
        };
        let config = AsyncConnectionConfig::new().set_push_sender(hear);
        let mut line = Line::open(&self.setup, config).await.map_err(|_| Failure::Lost)?;
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON");
        tracking.query_async::<()>(&mut line.connection).await.map_err(Failure::from)?;
        Ok(line)
    }

    /// Keys that have changed; nothing at all if the database was emptied.
    fn heard(&self, data: &[Value]) {
        if let Some(Value::Array(keys)) = data.first() {
            keys.iter().filter_map(|key| text(Some(key))).for_each(|key| self.changed(key));
            return;
        }
        let owners: Vec<Owner> = self.heads().drain().map(|(_, owner)| owner).collect();
        for owner in owners {
            self.setup.push(Wakeup::Check { owner });
        }
    }

    fn changed(&self, key: &str) {
        let head = self.heads().remove(key);
        if let Some(owner) = head {
            self.setup.push(Wakeup::Check { owner });
        }
    }
}

impl From<RedisError> for Failure {
    /// A server that answers with an error is there.
    fn from(error: RedisError) -> Self {
        if error.code().is_some() { Self::Refused } else { Self::Lost }
    }
}
