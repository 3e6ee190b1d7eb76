//! The state of one client that all its connections share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use fencepost_core::backend::Wakeup;
use fencepost_core::push::Pusher;
use fencepost_core::{FencingToken, Owner};
use fencepost_net::Encryption;

use crate::config::{Config, Servers};
use crate::layout::Layout;

/// The state of one client that all its connections share.
pub(crate) struct ClientState {
    pub(crate) config: Config,
    pub(crate) encryption: Option<Encryption>,
    pub(crate) layout: Layout,
    /// The URL without secrets.
    pub(crate) location: String,
    /// The random id of this client, stored in its tickets and holder records. Its channel is named after it.
    pub(crate) client_id: String,
    /// The largest token seen. It is sent with every call, for servers that have lost their data.
    pub(crate) largest_token: AtomicU64,
    /// Whether to create nothing on the server.
    pub(crate) only_existing: bool,
    pusher: Pusher,
    /// The newest grants that were pushed: in a cluster every node forwards each of them.
    pushed_grants: Mutex<VecDeque<(Owner, FencingToken)>>,
}

/// How many grants are remembered to detect a repeated push.
const REMEMBERED_PUSHES: usize = 256;

impl ClientState {
    pub(crate) fn new(
        config: Config,
        encryption: Option<Encryption>,
        only_existing: bool,
        pusher: Pusher,
    ) -> Self {
        let is_cluster = matches!(config.servers, Servers::Cluster(_));
        Self {
            encryption,
            layout: Layout::new(&config.namespace, is_cluster, config.dialect.clone()),
            location: config.location(),
            client_id: format!("{:016x}", rand::random::<u64>()),
            largest_token: AtomicU64::new(0),
            only_existing,
            pusher,
            pushed_grants: Mutex::default(),
            config,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.config.servers, Servers::Cluster(_))
    }

    /// Returns the pub/sub channel of this client.
    pub(crate) fn channel(&self) -> String {
        self.layout.channels() + &self.client_id
    }

    /// Records a token that was granted. Later grants to this client are larger, even if a server has lost its data.
    pub(crate) fn record_token(&self, token: FencingToken) {
        self.largest_token.fetch_max(token.get(), Ordering::Relaxed);
    }

    /// Forwards a server's push to the core.
    pub(crate) fn push(&self, wakeup: Wakeup) {
        if let Wakeup::Granted { attempt, award } = &wakeup {
            self.record_token(award.token);
            if self.is_cluster() && self.is_repeated((attempt.owner, award.token)) {
                return;
            }
        }
        self.pusher.push(wakeup);
    }

    fn is_repeated(&self, grant: (Owner, FencingToken)) -> bool {
        let mut pushed = self.pushed_grants.lock().unwrap_or_else(PoisonError::into_inner);
        let is_repeated = pushed.contains(&grant);
        if !is_repeated {
            pushed.truncate(REMEMBERED_PUSHES - 1);
            pushed.push_front(grant);
        }
        is_repeated
    }
}
