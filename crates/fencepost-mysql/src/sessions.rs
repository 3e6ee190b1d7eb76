//! The connections of a client for flights and queries: opened on demand, reused, and closed when they are not needed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::clock::Moment;
use fencepost_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::lease::flight::READ_TIMEOUT;
use crate::session::{Connector, MAX_IDLE, Rows, Session};

/// The maximum number of connections for flights and queries; one more polls.
pub(crate) const MAX_SESSIONS: usize = 3;

/// How long other clients may take to connect again after an outage.
const RECONNECT_TIME: Duration = Duration::from_secs(2);

/// The connections of a client.
pub(crate) struct Sessions {
    pub(crate) connector: Connector,
    /// The ones that are not in use, the latest used last.
    idle: Mutex<Vec<Session>>,
    permits: Semaphore,
    /// A connection is no longer in use.
    returned: Notify,
    /// When a connection was last lost or could not be made.
    failed: Mutex<Option<Moment>>,
}

/// A connection in use. It is closed unless it is returned.
pub(crate) struct Lent<'a> {
    pub(crate) session: Session,
    /// Whether it was used before: then the server may have closed it meanwhile.
    pub(crate) is_reused: bool,
    _permit: SemaphorePermit<'a>,
}

impl Sessions {
    pub(crate) fn new(connector: Connector) -> Self {
        Self {
            connector,
            idle: Mutex::default(),
            permits: Semaphore::new(MAX_SESSIONS),
            returned: Notify::new(),
            failed: Mutex::default(),
        }
    }

    /// Returns a connection, idle or new, when less than the maximum are in use.
    pub(crate) async fn take(&self) -> Result<Lent<'_>> {
        let closed = || Error::new(ErrorKind::Closed, "the client is closed");
        let permit = self.permits.acquire().await.map_err(|_| closed())?;
        let idle = {
            let mut idle = self.idle();
            idle.retain(Session::is_usable);
            idle.pop()
        };
        let is_reused = idle.is_some();
        let session = match idle {
            Some(session) => session,
            None => self.connector.connect().await.inspect_err(|_| self.mark_failed())?,
        };
        Ok(Lent { session, is_reused, _permit: permit })
    }

    /// Returns a connection that is not in use, if there is one.
    pub(crate) fn take_idle(&self) -> Option<Lent<'_>> {
        let permit = self.permits.try_acquire().ok()?;
        let mut idle = self.idle();
        idle.retain(Session::is_usable);
        Some(Lent { session: idle.pop()?, is_reused: true, _permit: permit })
    }

    /// Returns a connection without a transaction, to be used again.
    pub(crate) fn put(&self, lent: Lent<'_>) {
        if lent.session.is_usable() && !self.permits.is_closed() {
            self.idle().push(lent.session);
            self.returned.notify_one();
        }
    }

    /// Runs statements that may be repeated.
    pub(crate) async fn query(&self, sql: &str) -> Result<Vec<Rows>> {
        loop {
            let mut lent = self.take().await?;
            match lent.session.run(sql, READ_TIMEOUT).await {
                Ok(sets) => {
                    self.put(lent);
                    return Ok(sets);
                }
                // The server has closed the connection since it was last used.
                Err(failure) if failure.is_connection_lost() && lent.is_reused => self.forget_idle(),
                Err(failure) => return Err(failure.into_error(&self.connector.location)),
            }
        }
    }

    /// Closes the connections that are not in use, because one was lost and the server may have closed them, too.
    pub(crate) fn forget_idle(&self) {
        self.mark_failed();
        self.idle().clear();
    }

    /// Records that a connection was lost.
    pub(crate) fn mark_failed(&self) {
        let now = self.connector.clock.now();
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Whether a connection was lost lately. Others may have lost theirs as well, and not be connected again yet.
    pub(crate) fn has_failed_lately(&self) -> bool {
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|failed| self.connector.clock.now().since(failed) < RECONNECT_TIME)
    }

    /// Waits until there may be connections that were not used for a while, and closes them.
    pub(crate) async fn close_unused(&self) {
        let is_empty = self.idle().is_empty();
        if is_empty {
            self.returned.notified().await;
        }
        let clock = &self.connector.clock;
        // If the clock cannot sleep, the server closes them.
        let _ = clock.sleep_until(clock.now() + MAX_IDLE).await;
        self.idle().retain(Session::is_usable);
    }

    /// Closes all connections; no further ones are opened.
    pub(crate) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle());
        futures_util::future::join_all(idle.into_iter().map(Session::close)).await;
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
