//! Hears the signals of python-redis-lock: whoever waits for such a lock blocks on a list, and Redis serves those who
//! block in their order. A mere look now and then would come too late every time, so we block there too, on a connection
//! of our own; a signal that we hear is the turn of the first who waits here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{Op, Reply, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::{Attempt, Owner, Result};
use redis::{AsyncConnectionConfig, RedisError};
use tokio::sync::Notify;

use super::line::Line;
use crate::setup::Setup;
use crate::task::Task;

/// For how long to block: then whoever has come meanwhile is listened for too.
const LISTEN: Duration = Duration::from_millis(100);
/// A server that says nothing for so long is not there.
const SILENCE: Duration = Duration::from_secs(2);
/// How many locks are listened for at once; the others are looked at, as those of other libraries are.
const LOCKS: usize = 256;
/// For how long a signal waits to be heard, as python-redis-lock has it.
const SIGNAL: Duration = Duration::from_secs(1);

/// Listens for as long as it lives.
pub(super) struct Ear {
    heard: Arc<Heard>,
    listening: Task,
}

struct Heard {
    setup: Arc<Setup>,
    waiters: Mutex<Waiters>,
    /// Rung when somebody waits.
    news: Notify,
}

/// Who waits here, in the order in which they came.
#[derive(Default)]
struct Waiters {
    next: u64,
    places: HashMap<Owner, u64>,
    line: BTreeMap<u64, (Arc<Attempt>, String)>,
}

impl Ear {
    /// Begins to listen. Must be called inside the runtime in which it will be used.
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        let heard = Arc::new(Heard { setup, waiters: Mutex::default(), news: Notify::new() });
        let listening = Task::start(heard.clone().listen());
        Self { heard, listening }
    }

    /// Takes note of whom an answer lets wait, and of whom it does not.
    pub(super) fn note(&self, op: &Op, reply: &Result<Reply>) {
        let (Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt)) = op else {
            return;
        };
        let dialect = self.heard.setup.layout.dialect.as_ref();
        let signal = || dialect?.signal(op.names().next()?.as_str());
        match reply {
            Ok(Reply::Waiting { .. }) => {
                if let Some(signal) = signal() {
                    self.heard.waiters().join(attempt, signal);
                    self.heard.news.notify_one();
                }
            }
            // Nobody knows: a ticket is checked again, and a caller that gave up leaves.
            Err(_) if !matches!(op, Op::Leave(_)) => {}
            // Whoever leaves waits no longer, whatever the answer is.
            _ => self.heard.waiters().leave(attempt.owner),
        }
    }

    /// Listens no longer.
    pub(super) fn close(&self) {
        self.listening.stop();
    }
}

impl Waiters {
    fn join(&mut self, attempt: &Arc<Attempt>, signal: String) {
        if self.places.contains_key(&attempt.owner) {
            return;
        }
        self.next += 1;
        self.places.insert(attempt.owner, self.next);
        self.line.insert(self.next, (attempt.clone(), signal));
    }

    fn leave(&mut self, owner: Owner) {
        if let Some(place) = self.places.remove(&owner) {
            self.line.remove(&place);
        }
    }

    fn first(&self, signal: &str) -> Option<Arc<Attempt>> {
        self.line.values().find(|(_, awaited)| awaited == signal).map(|(attempt, _)| attempt.clone())
    }

    fn signals(&self) -> Vec<String> {
        let signals: BTreeSet<&String> = self.line.values().map(|(_, signal)| signal).take(LOCKS).collect();
        signals.into_iter().cloned().collect()
    }
}

impl Heard {
    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn listen(self: Arc<Self>) {
        let clock = Clock::system();
        let mut line = None;
        loop {
            let signals = self.waiters().signals();
            if signals.is_empty() {
                self.news.notified().await;
                continue;
            }
            let heard = tokio::time::timeout(SILENCE, self.hear(&mut line, &signals)).await;
            if heard.ok().flatten().is_none() {
                // Until the server is there again, the tickets' heartbeats do.
                line = None;
                let _ = clock.sleep_until(clock.now() + LISTEN).await;
            }
        }
    }

    /// Blocks once; `None` if that is impossible just now.
    async fn hear(&self, line: &mut Option<Line>, signals: &[String]) -> Option<()> {
        if line.is_none() {
            *line = Some(Line::open(&self.setup, AsyncConnectionConfig::new()).await.ok()?);
        }
        let connection = &mut line.as_mut()?.connection;
        let mut block = redis::cmd("BLPOP");
        block.arg(signals).arg(LISTEN.as_secs_f64());
        let popped: Result<Option<(String, String)>, RedisError> = block.query_async(connection).await;
        let Some((signal, _)) = popped.ok()? else {
            return Some(());
        };
        let first = self.waiters().first(&signal);
        if let Some(attempt) = first {
            self.setup.push(Wakeup::Offered { attempt });
            return Some(());
        }
        // It was not for us: somebody else is waiting for it.
        let mut back = redis::pipe();
        back.cmd("LPUSH").arg(&signal).arg(1).ignore();
        back.cmd("PEXPIRE").arg(&signal).arg(u64::try_from(SIGNAL.as_millis()).ok()?).ignore();
        back.query_async::<()>(connection).await.ok()
    }
}
