//! What a backend provides to be tested: [`TestBench`], behind a network also [`WireBench`], for locks in sessions of the server
//! [`SessionBench`], and the [`StoredCounts`] that no test may leave behind.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::clock::ManualClock;
use fencepost_core::{Backend, Client, ErrorKind, LockName, Result};

use crate::proxy::Proxy;
use crate::wire::Wire;

/// A backend under test. Each behaviour gets a fresh one, with a namespace of its own.
///
/// A bench must work while many others of its kind do: what [`TestBench::cut`] and [`TestBench::steal`] affect must be its
/// own.
pub trait TestBench: Send + Sync + 'static {
    /// Connects another backend to the same namespace, as another process would.
    ///
    /// The future is awaited on the client's own thread, or on the test's runtime by tests of the contract.
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static;

    /// Returns what the plain driver finds in the namespace, expired or not.
    fn peek(&self) -> impl Future<Output = StoredCounts> + Send;

    /// Deletes all holders of this lock with the plain driver, without Fencepost.
    fn steal(&self, name: &LockName) -> impl Future<Output = ()> + Send;

    /// Makes the backend unreachable for all clients: requests fail or hang until [`TestBench::heal`].
    fn cut(&self) -> impl Future<Output = ()> + Send;

    /// Makes the backend reachable again.
    fn heal(&self) -> impl Future<Output = ()> + Send;

    /// Returns how many listening clients the backend counts, if it detects the death of a client only after a while.
    fn listeners(&self) -> impl Future<Output = Option<usize>> + Send {
        async { None }
    }

    /// Whether every waiter has an entry of its own in the backend, and grants are decided by these entries alone. Then a
    /// dead waiter blocks those behind it until its lease has expired, and a waiter for several names blocks them like a
    /// holder.
    fn has_entry_per_waiter(&self) -> bool {
        false
    }

    /// Whether an attempt creates its entries before it reads those of others, so that entries that it does not keep block
    /// others for a moment.
    fn creates_entries_before_reading(&self) -> bool {
        false
    }

    /// A ttl that is short, but long enough to be kept on a busy machine. Tests wait for several of them.
    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    /// The number of waiters in tests with many of them.
    fn crowd_size(&self) -> usize {
        10_000
    }

    /// Whether a released lock may be left to foreign clients for a moment. Everywhere else the first check after a release
    /// returns the grant.
    fn yields_to_foreign_clients(&self) -> bool {
        false
    }

    /// Whether a holder whose lock is broken is told at once. Otherwise it learns it at its next renewal.
    fn notifies_holders(&self) -> bool {
        true
    }

    /// The number of attempts of one client that can be queued for or hold one lock; further ones wait in the process.
    fn entries_per_client(&self) -> usize {
        usize::MAX
    }

    /// The clock of the backend, if a test can move it. Leases then expire in the state machine test.
    fn manual_clock(&self) -> Option<ManualClock> {
        None
    }

    /// Connects, several times if the server does not reply in time: on a busy machine it may take longer than a client waits.
    fn connect_patiently(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        let attempts: Vec<_> = (0..3).map(|_| Box::pin(self.connect())).collect();
        let last = Box::pin(self.connect());
        async move {
            for attempt in attempts {
                let connected = attempt.await;
                if !matches!(&connected, Err(error) if error.kind() == ErrorKind::Unreachable) {
                    return connected;
                }
            }
            last.await
        }
    }

    /// Connects a client to the same namespace.
    fn client(&self) -> impl Future<Output = Client> + Send {
        let connecting = self.connect_patiently();
        async { Client::connect_with(connecting).await.expect("the bench connects") }
    }

    /// Connects a client that creates nothing ([`Options::only_existing`](fencepost_core::Options::only_existing)); `None`
    /// if the backend needs nothing to be created.
    fn read_only_client(&self) -> impl Future<Output = Option<Result<Client>>> + Send {
        async { None }
    }

    /// Connects a client to the same namespace through a [`Proxy`].
    fn proxied(&self) -> impl Future<Output = (Client, Proxy)> + Send {
        let connecting = self.connect_patiently();
        async {
            let proxy = Proxy::default();
            let backend = proxy.clone().in_front_of(connecting);
            (Client::connect_with(backend).await.expect("the bench connects"), proxy)
        }
    }
}

/// A backend behind a network under test: its clients reach the server through a [`Wire`].
///
/// Requests that the wire is to lose are identified by the bytes in them, which the bench provides.
pub trait WireBench: TestBench {
    /// The wire between the server and the clients of [`connect`](TestBench::connect).
    fn wire(&self) -> &Wire;

    /// The URL of these clients: it contains the port of the wire on 127.0.0.1.
    fn url(&self) -> &str;

    /// Connects a backend to such a URL.
    fn open(url: String) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static;

    /// Bytes in every request that creates a holder or a ticket, and in no request before it.
    fn acquire_bytes(&self) -> &'static [u8];

    /// Bytes in every request that releases a lock.
    fn release_bytes(&self) -> &'static [u8];

    /// Whether the server grants a lock by one request. Otherwise it waits for a second one of the client, and drops what it was
    /// told if that does not arrive in time.
    fn grants_in_one_request(&self) -> bool {
        true
    }

    /// A ttl of which nearly half is longer than a client takes to give up an unresponsive connection.
    fn ttl_above_read_timeout(&self) -> Duration {
        self.ttl() * 4
    }

    /// The time in which a client connects and sends a request, on a busy machine.
    fn reconnect_time(&self) -> Duration {
        Duration::from_millis(30)
    }

    /// Connects a client to the same namespace by another port of 127.0.0.1: that of the server, or of another wire to it.
    fn client_at(&self, port: u16) -> impl Future<Output = Client> + Send {
        let url = self.url().replace(&format!(":{}", self.wire().port()), &format!(":{port}"));
        async { Client::connect_with(Self::open(url)).await.expect("the bench connects") }
    }

    /// Connects a client to the same namespace without a wire.
    fn direct_client(&self) -> impl Future<Output = Client> + Send {
        self.client_at(self.wire().server())
    }
}

/// A backend under test whose locks live in sessions of the server, without leases of their own: the lock ends with the session.
pub trait SessionBench: WireBench {
    /// Returns a rule for the keys of names, and two names to which it gives the same key.
    fn names_with_the_same_key(&self) -> (&'static str, [String; 2]);

    /// Whether locks can be shared.
    fn has_shared_locks(&self) -> bool {
        true
    }

    /// Connects a client to the same namespace with other options, such as `key=raw`.
    fn client_with(&self, options: &str) -> impl Future<Output = Client> + Send {
        let connecting = Self::open(format!("{}&{options}", self.url()));
        async { Client::connect_with(connecting).await.expect("the bench connects") }
    }
}

/// Counts of what is stored in a namespace. All are zero when nothing is in use and what has expired was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredCounts {
    /// Holders: one for each name of a grant.
    pub holders: usize,
    /// Tickets: one for each waiter, or one for each of its names, as the backend stores them.
    pub tickets: usize,
    /// Cells.
    pub cells: usize,
    /// Anything else that exists only because a lock was used: tombstones, empty queues, keys of other kinds.
    pub others: usize,
}

impl StoredCounts {
    /// Returns whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
