//! What belongs to a client and is the same for all of its servers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use fencepost_core::backend::Wakeup;
use fencepost_core::push::Pusher;
use fencepost_core::{FencingToken, Owner};
use fencepost_net::Encryption;

use crate::config::{Config, Servers};
use crate::layout::Layout;

/// What belongs to a client and is the same for all of its servers.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) encryption: Option<Encryption>,
    pub(crate) layout: Layout,
    /// The URL without secrets.
    pub(crate) location: String,
    /// The client as the storage knows it: its channel, and where pushes to its tickets go.
    pub(crate) client: String,
    /// The largest token seen: a server that has lost its memory is told.
    pub(crate) largest: AtomicU64,
    /// Whether to make nothing.
    pub(crate) only_existing: bool,
    pushes: Pusher,
    /// The newest grants that were pushed: every node of a cluster passes each of them on.
    pushed: Mutex<VecDeque<(Owner, FencingToken)>>,
}

/// How many grants are remembered so that a repeated push is recognised.
const REMEMBERED_PUSHES: usize = 256;

impl Setup {
    pub(crate) fn new(
        config: Config,
        encryption: Option<Encryption>,
        only_existing: bool,
        pushes: Pusher,
    ) -> Self {
        let is_cluster = matches!(config.servers, Servers::Cluster(_));
        Self {
            encryption,
            layout: Layout::new(&config.namespace, is_cluster, config.dialect.clone()),
            location: config.location(),
            client: format!("{:016x}", rand::random::<u64>()),
            largest: AtomicU64::new(0),
            only_existing,
            pushes,
            pushed: Mutex::default(),
            config,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.config.servers, Servers::Cluster(_))
    }

    /// The channel of this client.
    pub(crate) fn channel(&self) -> String {
        self.layout.channels() + &self.client
    }

    /// No later grant has a smaller token, whatever a server forgets.
    pub(crate) fn has_seen(&self, token: FencingToken) {
        self.largest.fetch_max(token.get(), Ordering::Relaxed);
    }

    /// Passes on what the storage pushed.
    pub(crate) fn push(&self, wakeup: Wakeup) {
        if let Wakeup::Granted { attempt, award } = &wakeup {
            self.has_seen(award.token);
            if self.is_cluster() && self.is_repeated((attempt.owner, award.token)) {
                return;
            }
        }
        self.pushes.push(wakeup);
    }

    fn is_repeated(&self, grant: (Owner, FencingToken)) -> bool {
        let mut pushed = self.pushed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_repeated = pushed.contains(&grant);
        if !is_repeated {
            pushed.truncate(REMEMBERED_PUSHES - 1);
            pushed.push_front(grant);
        }
        is_repeated
    }
}
