//! How a storage is put on the test bench: [`TestBench`], for one behind a network [`WireBench`], and the [`StoredCounts`]
//! that no test may leave behind.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::clock::ManualClock;
use fencepost_core::{Backend, Client, LockName, Result};

use crate::proxy::Proxy;
use crate::wire::Wire;

/// A storage under test. Each behaviour gets a fresh one, with a namespace that nobody else uses.
///
/// A bench must work while many others of its kind do. What it hurts with [`TestBench::cut`] and
/// [`TestBench::steal`] must be its own.
pub trait TestBench: Send + Sync + 'static {
    /// Makes one more backend of the same namespace, as one more process would.
    ///
    /// The future is awaited on the client's own thread, or on the test's runtime by tests of the bare contract.
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static;

    /// What the bare driver finds in the namespace, ended or not.
    fn peek(&self) -> impl Future<Output = StoredCounts> + Send;

    /// Removes all holders of this lock through the bare driver, behind Fencepost's back.
    fn steal(&self, name: &LockName) -> impl Future<Output = ()> + Send;

    /// The storage goes away for all clients: what they send fails or hangs until [`TestBench::heal`].
    fn cut(&self) -> impl Future<Output = ()> + Send;

    /// The storage comes back.
    fn heal(&self) -> impl Future<Output = ()> + Send;

    /// How many clients the storage knows to be listening, if it finds out only by and by that one has died.
    fn listeners(&self) -> impl Future<Output = Option<usize>> + Send {
        async { None }
    }

    /// Whether every waiter has an entry of its own in the storage, and that is all that others go by. Then one that has died
    /// stands in the way until its lease has ended; and one that waits for several names is, for those behind it, as if it
    /// held.
    fn has_entry_per_waiter(&self) -> bool {
        false
    }

    /// Whether an attempt makes its entries before it looks at those of others, so that entries that it does not keep stand in
    /// the way of others for a moment.
    fn creates_entries_before_reading(&self) -> bool {
        false
    }

    /// A lease that is short, but long enough to be kept on a busy machine. Tests wait for several of them.
    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    /// How many wait in the test of a crowd.
    fn crowd_size(&self) -> usize {
        10_000
    }

    /// Whether a lock that was given back may be left to other libraries for a moment. Everywhere else the first check after a
    /// release is answered with the grant.
    fn yields_to_foreign_clients(&self) -> bool {
        false
    }

    /// How many attempts of one client can stand in one line or hold it together; further ones wait in the process.
    fn entries_per_client(&self) -> usize {
        usize::MAX
    }

    /// The clock of the storage, if a test can move it. The state machine then lets leases end.
    fn manual_clock(&self) -> Option<ManualClock> {
        None
    }

    /// A new client of the same namespace.
    fn client(&self) -> impl Future<Output = Client> + Send {
        let connecting = self.connect();
        async { Client::connect_with(connecting).await.expect("the bench connects") }
    }

    /// Connects a client that makes nothing ([`Options::only_existing`](fencepost_core::Options::only_existing)); none if the
    /// storage is there by itself.
    fn read_only_client(&self) -> impl Future<Output = Option<Result<Client>>> + Send {
        async { None }
    }

    /// A new client of the same namespace, and what stands between it and the storage.
    fn proxied(&self) -> impl Future<Output = (Client, Proxy)> + Send {
        let connecting = self.connect();
        async {
            let proxy = Proxy::default();
            let backend = proxy.clone().in_front_of(connecting);
            (Client::connect_with(backend).await.expect("the bench connects"), proxy)
        }
    }
}

/// A storage behind a network under test: its clients reach the server through a [`Wire`].
///
/// What is to be lost on the wire is told by bytes that stand in a request, so the bench says which do.
pub trait WireBench: TestBench {
    /// What stands between the server and those who [`connect`](TestBench::connect).
    fn wire(&self) -> &Wire;

    /// Where these connect: the port of the wire on 127.0.0.1 is part of it.
    fn url(&self) -> &str;

    /// Makes a backend of such a URL.
    fn open(url: String) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static;

    /// What stands in every request that makes a holder or a place in line, and in none before it.
    fn acquire_bytes(&self) -> &'static [u8];

    /// What stands in every request that gives a lock back.
    fn release_bytes(&self) -> &'static [u8];

    /// A lease of which nearly half is longer than a client takes to give up a connection on which nothing is heard.
    fn ttl_above_read_timeout(&self) -> Duration {
        self.ttl() * 4
    }

    /// A new client of the same namespace, at another port of 127.0.0.1: that of the server, or of one more wire to it.
    fn client_at(&self, port: u16) -> impl Future<Output = Client> + Send {
        let url = self.url().replace(&format!(":{}", self.wire().port()), &format!(":{port}"));
        async { Client::connect_with(Self::open(url)).await.expect("the bench connects") }
    }

    /// A new client of the same namespace whose connection is always fine.
    fn direct_client(&self) -> impl Future<Output = Client> + Send {
        self.client_at(self.wire().server())
    }
}

/// What is stored in a namespace. Everything is zero when nothing is in use and what has ended was swept away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredCounts {
    /// Holders: one for each name of a grant.
    pub holders: usize,
    /// OwnEntries in line: one for each waiter, or one for each of its names, as the storage keeps them.
    pub tickets: usize,
    /// Cells.
    pub cells: usize,
    /// Anything else that is there only because a lock was used: departures, empty lines, keys of other kinds.
    pub others: usize,
}

impl StoredCounts {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
