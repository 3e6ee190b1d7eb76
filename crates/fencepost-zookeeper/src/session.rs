//! One session: the lease of everything that this client holds with the same ttl. The only file that opens and closes
//! sessions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Error, ErrorKind, Result, duration_text, request_timeout};
use tokio::sync::Notify;
use zookeeper_client::{self as zk, CreateMode, MultiWriteError, MultiWriter, SessionState, StateWatcher};

use crate::ensemble::Ensemble;
use crate::error::unreachable;
use crate::liveness::{Liveness, Request};
use crate::watches::Watches;

/// The time that closing a session may take when the client is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A session. Dropping it acts like a crash: the server expires it after its timeout.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: zk::Client,
    /// The ttl of its leases; zero for the control session, which holds no lock.
    pub(crate) ttl: Duration,
    pub(crate) id: i64,
    /// The node that exists while the session does; its mtime is the last renewal.
    pub(crate) node: String,
    /// The servers' wall clock when the session was opened, in milliseconds, and when it was read.
    server_time_at_open: (i64, Moment),
    clock: Clock,
    /// Wakes the maintenance task of this session.
    pub(crate) maintenance: Arc<Notify>,
    watches: Mutex<Watches>,
    last_used: AtomicU64,
    liveness: Mutex<Liveness>,
    is_abandoned: AtomicBool,
}

impl Session {
    /// Opens a session for leases of this ttl.
    pub(crate) async fn open(ensemble: &Ensemble, ttl: Duration, clock: &Clock) -> Result<Self> {
        let is_control = ttl.is_zero();
        let wanted =
            if is_control { ensemble.range.control_timeout() } else { ensemble.range.session_timeout(ttl) };
        let connector = ensemble.connector(wanted);
        // A session with grants must not be closed by a drop, which would release them all.
        let connector = if is_control { connector } else { connector.with_detached() };
        let opened = clock.now();
        let client = ensemble.connect(connector).await?;
        if !is_control && client.session_timeout() != wanted {
            return Err(out_of_range(ensemble, ttl));
        }
        let id = client.session_id().0;
        let node = ensemble.layout.session(id);
        let create_node = || async {
            client
                .create(&node, b"", &ensemble.create_options(CreateMode::Ephemeral))
                .await
                .map(|(stat, _)| stat.ctime)
        };
        let time = match create_node().await {
            Err(zk::Error::NoNode) => {
                ensemble.create_base_nodes(&client).await?;
                create_node().await
            }
            other => other,
        };
        let time = time.map_err(|error| ensemble.failed(&error))?;
        let (maintenance, watches, last_used) =
            (Arc::new(Notify::new()), Mutex::default(), AtomicU64::new(0));
        let liveness = Mutex::new(Liveness::new(ensemble.range, opened));
        let (clock, server_time_at_open) = (clock.clone(), (time, clock.now()));
        let is_abandoned = AtomicBool::new(false);
        Ok(Self {
            client,
            ttl,
            id,
            node,
            server_time_at_open,
            clock,
            maintenance,
            watches,
            last_used,
            liveness,
            is_abandoned,
        })
    }

    /// Returns the servers' wall clock in milliseconds. Changes of the local wall clock have no effect on it.
    pub(crate) fn server_time(&self) -> i64 {
        let (time, read_at) = self.server_time_at_open;
        time.saturating_add(i64::try_from(self.clock.now().since(read_at).as_millis()).unwrap_or(i64::MAX))
    }

    /// Returns the negotiated session timeout.
    pub(crate) fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    /// Returns whether the session has ended, or was abandoned although the server may keep it for a while.
    pub(crate) fn is_over(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire) || self.client.state().is_terminated()
    }

    /// Marks the session as over: no node is created or deleted in it from now on.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.state() == SessionState::SyncConnected
    }

    pub(crate) fn states(&self) -> StateWatcher {
        self.client.state_watcher()
    }

    /// Records that the session is used now.
    pub(crate) fn touch(&self, now: Moment) {
        self.last_used.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// Returns when the session was last used.
    pub(crate) fn last_used(&self) -> Moment {
        Moment::from_nanos(self.last_used.load(Ordering::Relaxed))
    }

    /// Returns the watches of this session.
    pub(crate) fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn liveness(&self) -> MutexGuard<'_, Liveness> {
        self.liveness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a request that passes through the leader. Must be called before it is sent.
    pub(crate) fn start_request(&self) -> Request {
        self.liveness().start_request(self.clock.now())
    }

    /// Records the reply to a write.
    pub(crate) fn on_write_reply(&self, write: Request) {
        self.liveness().on_write_reply(write, self.clock.now());
    }

    /// Waits until a new lease would have most of its time left, for at most two ticks, and not so long that renewals
    /// of the same flight expire. Returns immediately unless the connection or the leader was gone for long: periodic
    /// probes keep the lease start recent.
    pub(crate) async fn wait_until_fresh(&self, ensemble: &Ensemble) {
        let deadline = self.clock.now() + (ensemble.range.margin() * 2).min(self.ttl / 6);
        loop {
            let now = self.clock.now();
            let is_fresh = self.liveness().lease_start_if_sent(now) + self.ttl / 4 >= now;
            if is_fresh || now > deadline || self.clock.sleep_until(now + ensemble.range.gap()).await.is_err()
            {
                return;
            }
        }
    }

    /// Returns the start of this session's leases. The session lives for at least a ttl after it, whatever its server
    /// replies.
    pub(crate) fn lease_start(&self) -> Moment {
        self.liveness().lease_start()
    }

    /// Sends a `sync`, which the leader answers and which the server counts as activity of the session. A read would be
    /// answered even by a server that is cut off.
    pub(crate) async fn probe(&self) -> Result<(), zk::Error> {
        let request = self.start_request();
        self.client.sync(&self.node).await?;
        self.liveness().on_reply(request, self.clock.now());
        Ok(())
    }

    /// Waits for a connection, for at most the request timeout of the lease. If it fails nothing was sent.
    pub(crate) async fn wait_connected(&self, ensemble: &Ensemble, clock: &Clock) -> Result<()> {
        if self.is_connected() {
            return Ok(());
        }
        let lease = if self.ttl.is_zero() { Duration::MAX } else { self.ttl };
        let mut states = self.client.state_watcher();
        let reconnected = async {
            while !self.is_connected() && !self.is_over() {
                states.changed().await;
            }
        };
        // Without a timer the wait ends immediately, with the same result.
        tokio::select! {
            () = reconnected => {}
            _ = clock.sleep_until(clock.now() + request_timeout(lease)) => {}
        }
        if self.is_connected() { Ok(()) } else { Err(unreachable(&ensemble.location)) }
    }

    /// Sends one transaction. The request is sent when the future is created.
    pub(crate) fn transact<'a, F>(
        &'a self,
        build: F,
    ) -> impl Future<Output = Result<(), MultiWriteError>> + use<'a, F>
    where
        F: FnOnce(&mut MultiWriter<'a>) -> Result<(), zk::Error>,
    {
        let mut writer = self.client.new_multi_writer();
        let sent = build(&mut writer).map(|()| writer.commit());
        async move {
            sent?.await?;
            Ok(())
        }
    }

    /// Returns whether a new connection belongs to this session. Some servers replace a session without reporting it.
    pub(crate) async fn is_same_session(&self) -> Result<bool, zk::Error> {
        self.probe().await?;
        Ok(self.client.list_ephemerals(&self.node).await?.contains(&self.node))
    }

    /// Closes the session and releases everything that it holds. If the server cannot be told, the session expires.
    pub(crate) async fn close(self: Arc<Self>, ensemble: &Ensemble, clock: &Clock) {
        if !self.is_connected() {
            return;
        }
        let closed = async {
            let (timeout, session, is_detached) =
                (self.timeout(), self.client.session().clone(), !self.ttl.is_zero());
            let mut closing = self.states();
            // The driver must not reattach the session when another client takes it over.
            drop(self);
            if is_detached {
                // The driver closes only sessions that are not detached: a client that is not detached takes it over.
                match ensemble.connect(ensemble.connector(timeout).with_session(session)).await {
                    Ok(client) => closing = client.state_watcher(),
                    Err(_) => return,
                }
            }
            while !closing.peek_state().is_terminated() {
                closing.changed().await;
            }
        };
        tokio::select! {
            () = closed => {}
            _ = clock.sleep_until(clock.now() + CLOSE_TIMEOUT) => {}
        }
    }
}

fn out_of_range(ensemble: &Ensemble, ttl: Duration) -> Error {
    let [ttl, min, max] =
        [ttl, ensemble.range.shortest_ttl(), ensemble.range.longest_ttl()].map(duration_text);
    let message = format!("ttl {ttl} is out of range for {}: from {min} to {max}", ensemble.location);
    Error::new(ErrorKind::BadConfig, message)
        .with_hint("the servers define the range: minSessionTimeout and maxSessionTimeout in zoo.cfg")
}
