//! Receives the signals of python-redis-lock. Its waiters block on a list, and Redis serves blocked clients in order. Polling
//! would lose to them every time, so this client blocks there too, on a connection of its own; a signal that it receives
//! wakes its first waiter.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{Op, Reply, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::{Attempt, Owner, Result};
use redis::{AsyncConnectionConfig, RedisError};
use tokio::sync::Notify;

use super::side_connection::SideConnection;
use crate::state::ClientState;
use crate::task::Task;

/// How long one `BLPOP` blocks. The next one includes the lists of new waiters.
const BLOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// How long to wait for the server's reply before the connection is given up.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// How many lists one `BLPOP` blocks on. Further locks are polled, as those of other libraries are.
const MAX_LISTS: usize = 256;
/// How long a signal stays in its list, as in python-redis-lock.
const SIGNAL_TTL: Duration = Duration::from_secs(1);

/// Listens for signals until it is closed or dropped.
pub(super) struct SignalListener {
    shared: Arc<Shared>,
    listening: Task,
}

/// What the listener shares with its task.
struct Shared {
    state: Arc<ClientState>,
    waiters: Mutex<Waiters>,
    /// Notified when a waiter is added.
    added: Notify,
}

/// The waiters of this client in the order of their arrival.
#[derive(Default)]
struct Waiters {
    last_position: u64,
    positions: HashMap<Owner, u64>,
    /// The attempt and the list it waits on, by position.
    queue: BTreeMap<u64, (Arc<Attempt>, String)>,
}

impl SignalListener {
    /// Starts to listen. Must be called inside the runtime in which it will be used.
    pub(super) fn new(state: Arc<ClientState>) -> Self {
        let shared = Arc::new(Shared { state, waiters: Mutex::default(), added: Notify::new() });
        let listening = Task::start(shared.clone().listen());
        Self { shared, listening }
    }

    /// Adds the attempt if the reply says that it waits, and removes it otherwise.
    pub(super) fn on_reply(&self, op: &Op, reply: &Result<Reply>) {
        let (Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt)) = op else {
            return;
        };
        let dialect = self.shared.state.layout.dialect.as_ref();
        let list = || dialect?.signal_list(op.names().next()?.as_str());
        match reply {
            Ok(Reply::Waiting { .. }) => {
                if let Some(list) = list() {
                    self.shared.waiters().add(attempt, list);
                    self.shared.added.notify_one();
                }
            }
            // The outcome is unknown: the ticket is checked again, or the attempt leaves.
            Err(_) if !matches!(op, Op::Leave(_)) => {}
            // An attempt that leaves no longer waits, whatever the reply is.
            _ => self.shared.waiters().remove(attempt.owner),
        }
    }

    /// Stops listening.
    pub(super) fn close(&self) {
        self.listening.stop();
    }
}

impl Waiters {
    fn add(&mut self, attempt: &Arc<Attempt>, list: String) {
        if self.positions.contains_key(&attempt.owner) {
            return;
        }
        self.last_position += 1;
        self.positions.insert(attempt.owner, self.last_position);
        self.queue.insert(self.last_position, (attempt.clone(), list));
    }

    fn remove(&mut self, owner: Owner) {
        if let Some(position) = self.positions.remove(&owner) {
            self.queue.remove(&position);
        }
    }

    fn first(&self, list: &str) -> Option<Arc<Attempt>> {
        self.queue.values().find(|(_, awaited)| awaited == list).map(|(attempt, _)| attempt.clone())
    }

    fn lists(&self) -> Vec<String> {
        let lists: BTreeSet<&String> = self.queue.values().map(|(_, list)| list).take(MAX_LISTS).collect();
        lists.into_iter().cloned().collect()
    }
}

impl Shared {
    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn listen(self: Arc<Self>) {
        let clock = Clock::system();
        let mut connection = None;
        loop {
            let lists = self.waiters().lists();
            if lists.is_empty() {
                self.added.notified().await;
                continue;
            }
            let received = tokio::time::timeout(REPLY_TIMEOUT, self.receive(&mut connection, &lists)).await;
            if received.ok().flatten().is_none() {
                // Until the server answers again, the tickets' heartbeats find a free lock.
                connection = None;
                let _ = clock.sleep_until(clock.now() + BLOCK_TIMEOUT).await;
            }
        }
    }

    /// Blocks once on these lists. Returns `None` if the connection failed.
    async fn receive(&self, connection: &mut Option<SideConnection>, lists: &[String]) -> Option<()> {
        if connection.is_none() {
            *connection = Some(SideConnection::open(&self.state, AsyncConnectionConfig::new()).await.ok()?);
        }
        let connection = &mut connection.as_mut()?.connection;
        let mut block = redis::cmd("BLPOP");
        block.arg(lists).arg(BLOCK_TIMEOUT.as_secs_f64());
        let popped: Result<Option<(String, String)>, RedisError> = block.query_async(connection).await;
        let Some((list, _)) = popped.ok()? else {
            return Some(());
        };
        let first = self.waiters().first(&list);
        if let Some(attempt) = first {
            self.state.push(Wakeup::Offered { attempt });
            return Some(());
        }
        // No attempt of this client waits for it any more: the signal is put back for another client.
        let mut put_back = redis::pipe();
        put_back.cmd("LPUSH").arg(&list).arg(1).ignore();
        put_back.cmd("PEXPIRE").arg(&list).arg(u64::try_from(SIGNAL_TTL.as_millis()).ok()?).ignore();
        put_back.query_async::<()>(connection).await.ok()
    }
}
