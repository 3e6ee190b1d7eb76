//! The options of a client.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::client::Client;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// The options of a [`Client`]. Everything has a default.
///
/// ```
/// use std::time::Duration;
/// use fencepost_core::Options;
///
/// let options = Options::new().call_timeout(Duration::from_secs(5));
/// # drop(options);
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a client is made with them"]
pub struct Options {
    pub(crate) clock: Clock,
    pub(crate) call_timeout: Duration,
    pub(crate) low_latency: bool,
    pub(crate) ttl: Option<Duration>,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) namespace: Option<String>,
    only_existing: bool,
    #[cfg(feature = "metrics")]
    pub(crate) metrics_names: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// The default of [`Options::call_timeout`].
    pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(30);

    /// Returns the defaults.
    pub fn new() -> Self {
        Self {
            clock: Clock::system(),
            call_timeout: Self::DEFAULT_CALL_TIMEOUT,
            low_latency: false,
            ttl: None,
            label: None,
            namespace: None,
            only_existing: false,
            #[cfg(feature = "metrics")]
            metrics_names: Vec::new(),
        }
    }

    /// Sets how long a call without a lease may take: inspecting and listing locks, cells, breaking. 30 s by default. Calls with a
    /// lease (acquiring, renewing, releasing) are bounded by its ttl.
    ///
    /// A call without a reply in time fails with [`ErrorKind::Unreachable`] if it only reads, and with
    /// [`ErrorKind::OutcomeUnknown`] if it may have been applied.
    pub fn call_timeout(mut self, call_timeout: Duration) -> Self {
        self.call_timeout = call_timeout;
        self
    }

    /// Sets the ttl of every lock of this client that does not set its own. Unless set it is [`crate::Lock::DEFAULT_TTL`], or the
    /// nearest that the backend can keep. A ttl that the backend cannot keep is reported when a lock is acquired.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets the label under which holders and waiters of this client are shown. `host:pid:user` by default;
    /// [`crate::Lock::label`] overrides it.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Puts `NAMESPACE/` before every lock name of this client: with the namespace `billing`, `client.lock("invoice/42")` is the
    /// lock `billing/invoice/42`, and listing or watching sees only names below `billing/`.
    ///
    /// The names that this client returns are relative to the namespace, so that they can be passed back to it; other clients, the
    /// command line and error messages show the full name. To separate teams that share a server, use the URL's `namespace=`
    /// option: locks of different URL namespaces are independent even if their names are equal.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Spends CPU time for lower latency: the client's thread spins for up to 200 µs before it sleeps. Off by default.
    ///
    /// It spins only while at most 16 operations are sent at a time, where waking a thread is most of the time of a call; with
    /// more of them the thread is busy anyway. Useful where few tasks acquire and release locks all the time, the server is near
    /// and a core is idle. On a busy host it gains little.
    ///
    /// ```
    /// let options = fencepost_core::Options::new().low_latency();
    /// # drop(options);
    /// ```
    pub fn low_latency(mut self) -> Self {
        self.low_latency = true;
        self
    }

    /// Creates nothing: for programs that only read.
    ///
    /// Where a file or a chroot would have to be created first, connecting fails with [`ErrorKind::Missing`], so that a mistyped
    /// path is not taken for a backend without locks. Servers that need no such thing (Redis, etcd) are connected to.
    pub fn only_existing(mut self) -> Self {
        self.only_existing = true;
        self
    }

    /// Returns whether the backend must not create anything.
    pub fn is_only_existing(&self) -> bool {
        self.only_existing
    }

    /// Sets the clock, for tests.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Adds the label `lock` to the metrics: the first of these patterns that the lock's name matches, or `other`. `*` stands for
    /// any characters. Without patterns there is no such label.
    ///
    /// Names are not used as labels directly, because their number is often unbounded: `order:*` adds one label value. Of several names acquired together the first counts.
    #[cfg(feature = "metrics")]
    pub fn metrics_names<P: Into<String>>(mut self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.metrics_names = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// Creates a client of this backend.
    ///
    /// # Errors
    /// [`ErrorKind::BadConfig`] if an option is not valid, [`ErrorKind::Backend`] if the client's thread cannot be started.
    pub fn client(self, backend: Arc<dyn Backend>) -> Result<Client> {
        Client::start(backend, self.checked()?)
    }

    /// Connects on the client's own thread, where drivers find the runtime they need.
    ///
    /// # Errors
    /// Those of [`Options::client`] and of `connect`.
    ///
    /// # Cancel safety
    /// If the future is dropped the client ends as soon as it has connected.
    pub async fn connect<F>(self, connect: F) -> Result<Client>
    where
        F: Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
    {
        Client::start_connecting(Box::pin(connect), self.checked()?).await
    }

    fn checked(self) -> Result<Self> {
        if self.call_timeout.is_zero() {
            return Err(Error::new(ErrorKind::BadConfig, "the call timeout must be longer than zero"));
        }
        if let Some(namespace) = &self.namespace {
            LockName::new(namespace).map_err(|error| {
                Error::new(ErrorKind::BadConfig, format!("the namespace is not valid: {error}"))
            })?;
        }
        Ok(self)
    }
}
