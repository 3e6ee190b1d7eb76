//! How a client is to be made: what can be set, and what happens if it is not.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::client::Client;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// What a [`Client`] can be told when it is made. Everything has a default.
///
/// ```
/// use std::time::Duration;
/// use fencepost_core::Options;
///
/// let options = Options::new().deadline(Duration::from_secs(5));
/// # drop(options);
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a client is made with them"]
pub struct Options {
    pub(crate) clock: Clock,
    pub(crate) deadline: Duration,
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
    /// How long a call without a lease of its own may take unless told otherwise.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

    /// The defaults.
    pub fn new() -> Self {
        Self {
            clock: Clock::system(),
            deadline: Self::DEFAULT_DEADLINE,
            low_latency: false,
            ttl: None,
            label: None,
            namespace: None,
            only_existing: false,
            #[cfg(feature = "metrics")]
            metrics_names: Vec::new(),
        }
    }

    /// How long a call without a lease of its own may take: looking at locks, listing them, cells, breaking. 30 s by
    /// default. Whatever has a lease (taking, renewing, releasing) is given up after its ttl.
    ///
    /// A call that is not answered in time fails with [`ErrorKind::Unreachable`] if it only reads, and with
    /// [`ErrorKind::OutcomeUnknown`] if it may have had its effect.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the ttl of every lock of this client that does not set its own. Unless set it is [`crate::Lock::DEFAULT_TTL`], or the
    /// nearest that the backend can keep.
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
    /// Everything that a client returns shows the full name, as every other client and the command line see it. To keep teams
    /// apart who share a server, use the URL's `namespace=` option: locks in different keyspaces cannot have a name in common.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Spends CPU time for shorter waits: the client's thread looks out for event for up to 200 µs before it sleeps. Off by
    /// default.
    ///
    /// It does so only while at most 16 operations travel at a time, which is where the waking of a thread is most of the
    /// time a call takes: with more of them the thread has enough to do, and with none it sleeps. Worth it where few tasks
    /// take and release locks all the time, the storage is near and a core is to spare. On a busy machine it buys little.
    ///
    /// ```
    /// let options = fencepost_core::Options::new().low_latency();
    /// # drop(options);
    /// ```
    pub fn low_latency(mut self) -> Self {
        self.low_latency = true;
        self
    }

    /// Makes nothing where there is no storage yet: for programs that only look.
    ///
    /// Where a storage has to be made before locks can be looked for (a file, a chroot), connecting fails with
    /// [`ErrorKind::Missing`]: a mistyped path is not an empty storage that says that nothing is locked. A server that needs no
    /// such thing (Redis, etcd) is connected to, and has no locks.
    pub fn only_existing(mut self) -> Self {
        self.only_existing = true;
        self
    }

    /// Returns whether the backend that is opened with these options makes nothing.
    pub fn wants_existing(&self) -> bool {
        self.only_existing
    }

    /// Where the client reads its time, for tests.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Labels the metrics of locks with `lock`: the first of these patterns that the lock's name matches, or `other`.
    /// A `*` stands for any characters. Without patterns there is no such label.
    ///
    /// Names never become labels by themselves, because there are often as many as there are orders; so write
    /// `order:*`, and there is one more value of the label and no more. Of several names taken together the first
    /// counts.
    #[cfg(feature = "metrics")]
    pub fn metrics_names<P: Into<String>>(mut self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.metrics_names = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// A client of this backend.
    ///
    /// # Errors
    /// [`ErrorKind::BadConfig`] if an option makes no sense; or if the client's thread cannot be started.
    pub fn client(self, backend: Arc<dyn Backend>) -> Result<Client> {
        Client::start(backend, self.checked()?)
    }

    /// A client that makes its backend on its own thread, where drivers find the runtime they live in.
    ///
    /// # Errors
    /// Those of [`Options::client`], and what the connecting says.
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
        if self.deadline.is_zero() {
            return Err(Error::new(ErrorKind::BadConfig, "a deadline of zero leaves no time for an answer"));
        }
        if let Some(namespace) = &self.namespace {
            LockName::new(namespace).map_err(|error| error.context("the namespace is not valid"))?;
        }
        Ok(self)
    }
}
