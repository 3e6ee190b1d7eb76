//! One session: the lease of everything that this client holds with the same ttl. The only file that opens and ends one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Error, ErrorKind, Result, request_timeout};
use tokio::sync::Notify;
use zookeeper_client::{self as zk, CreateMode, MultiWriteError, MultiWriter, SessionState, StateWatcher};

use crate::ensemble::Ensemble;
use crate::error::unreachable;
use crate::liveness::{Liveness, Request};
use crate::watches::Watches;

/// How long a session may take to end when a client is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A session. Dropping it is a crash: the server ends it when its time is over.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: zk::Client,
    /// The lease that it gives; zero for the session in which nothing is held.
    pub(crate) ttl: Duration,
    pub(crate) id: i64,
    /// Its own node.
    pub(crate) node: String,
    /// What the servers' wall clock said when the session server_time_at_open, in milliseconds, and when that was heard.
    server_time_at_open: (i64, Moment),
    clock: Clock,
    /// Tells the one who looks after it that there is something to do.
    pub(crate) maintenance: Arc<Notify>,
    watches: Mutex<Watches>,
    last_used: AtomicU64,
    liveness: Mutex<Liveness>,
    is_abandoned: AtomicBool,
}

impl Session {
    /// Opens a session for leases of this length.
    pub(crate) async fn open(ensemble: &Ensemble, ttl: Duration, clock: &Clock) -> Result<Self> {
        let is_control = ttl.is_zero();
        let wanted =
            if is_control { ensemble.range.control_timeout() } else { ensemble.range.session_timeout(ttl) };
        let connector = ensemble.connector(wanted);
        // A session in which something is held must not be closed by a drop: that would release it all.
        let connector = if is_control { connector } else { connector.with_detached() };
        let opened = clock.now();
        let client = ensemble.connect(connector).await?;
        if !is_control && client.session_timeout() != wanted {
            return Err(out_of_range(ensemble, ttl));
        }
        let id = client.session_id().0;
        let node = ensemble.layout.session(id);
        let made = || async {
            client
                .create(&node, b"", &ensemble.create_options(CreateMode::Ephemeral))
                .await
                .map(|(stat, _)| stat.ctime)
        };
        let time = match made().await {
            Err(zk::Error::NoNode) => {
                ensemble.create_base_nodes(&client).await?;
                made().await
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

    /// The servers' wall clock, in milliseconds. Whoever sets ours changes nothing.
    pub(crate) fn server_time(&self) -> i64 {
        let (time, heard) = self.server_time_at_open;
        time.saturating_add(i64::try_from(self.clock.now().since(heard).as_millis()).unwrap_or(i64::MAX))
    }

    /// For how long the server keeps it without hearing from us.
    pub(crate) fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    /// Returns whether it has ended, or was given up although the server may keep it for a while.
    pub(crate) fn is_over(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire) || self.client.state().is_terminated()
    }

    /// From now on nothing is made or deleted in it.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.state() == SessionState::SyncConnected
    }

    pub(crate) fn states(&self) -> StateWatcher {
        self.client.state_watcher()
    }

    /// Somebody uses it now.
    pub(crate) fn touch(&self, now: Moment) {
        self.last_used.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// When somebody last last_used it.
    pub(crate) fn last_used(&self) -> Moment {
        Moment::from_nanos(self.last_used.load(Ordering::Relaxed))
    }

    /// What is watched in it.
    pub(crate) fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn liveness(&self) -> MutexGuard<'_, Liveness> {
        self.liveness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request that passes through the leader. Must be called before it is sent.
    pub(crate) fn on_send(&self) -> Request {
        self.liveness().on_send(self.clock.now())
    }

    /// Records that a write was answered.
    pub(crate) fn on_write_reply(&self, write: Request) {
        self.liveness().on_write_reply(write, self.clock.now());
    }

    /// Waits until a lease would have most of its time left, for two ticks at most, and not so long that it costs the
    /// renewals of the same flight their lease. That is so at once unless the connection or the leader was away for long:
    /// probes keep the liveness fresh.
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

    /// Returns the moment from which leases count. The session lives for a ttl after it at least, whatever its server says.
    pub(crate) fn lease_start(&self) -> Moment {
        self.liveness().lease_start()
    }

    /// Asks the leader for an answer, and lets the server hear of the session. A read would be answered by a server that is cut
    /// off.
    pub(crate) async fn probe(&self) -> Result<(), zk::Error> {
        let request = self.on_send();
        self.client.sync(&self.node).await?;
        self.liveness().on_reply(request, self.clock.now());
        Ok(())
    }

    /// Waits for a connection, for as long as that makes sense. Nothing was sent if it fails.
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
        // Without a timer it gives up at once, which is as true.
        tokio::select! {
            () = reconnected => {}
            _ = clock.sleep_until(clock.now() + request_timeout(lease)) => {}
        }
        if self.is_connected() { Ok(()) } else { Err(unreachable(&ensemble.location)) }
    }

    /// Sends one transaction, when the future is made.
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

    /// Whether the connection that has come back is one of this session. Some servers give a new one without saying so.
    pub(crate) async fn is_same_session(&self) -> Result<bool, zk::Error> {
        self.probe().await?;
        Ok(self.client.list_ephemerals(&self.node).await?.contains(&self.node))
    }

    /// Ends the session, and with it everything that it holds. What cannot be told to the server ends by itself.
    pub(crate) async fn close(self: Arc<Self>, ensemble: &Ensemble, clock: &Clock) {
        if !self.is_connected() {
            return;
        }
        let closed = async {
            let (timeout, session, is_detached) =
                (self.timeout(), self.client.session().clone(), !self.ttl.is_zero());
            let mut closing = self.states();
            // The driver must not take it back when it is taken over.
            drop(self);
            if is_detached {
                // The driver ends a session only if it is not detached, so that one takes it over that is not.
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
    let (shortest, longest) = (ensemble.range.shortest_ttl(), ensemble.range.longest_ttl());
    let message = format!(
        "a ttl of {ttl:?} is out of the range of {}, which allows {shortest:?} to {longest:?}",
        ensemble.location
    );
    Error::new(ErrorKind::BadConfig, message)
        .with_hint("the servers set the range: minSessionTimeout and maxSessionTimeout in zoo.cfg")
}
