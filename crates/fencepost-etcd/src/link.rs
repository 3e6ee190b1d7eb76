//! The link of one client to the cluster: connected to one member, and to the next when that one fails.

mod calls;
mod connection;
mod member_status;
mod stream;
#[cfg(test)]
mod tests;
mod watchers;

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::{Account, Address, CONNECT_TIMEOUT, Coalesced, Encryption};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::error::unreachable;
use crate::proto::ResponseHeader;
use connection::{Connection, Tokens};
use stream::Command;

pub(crate) use watchers::{Change, WatchEvent, WatchId, WatchTarget};

/// The addresses of the cluster and the credentials of the client.
pub(crate) struct LinkConfig {
    pub(crate) members: Vec<Address>,
    pub(crate) account: Account,
    /// Negotiates `h2`.
    pub(crate) encryption: Option<Encryption>,
    /// The URL without secrets.
    pub(crate) location: String,
}

/// The state that a link shares with its connections and its watch stream.
struct Common {
    config: LinkConfig,
    clock: Clock,
    /// The id of the cluster that responded first: responses of another one are rejected.
    cluster_id: OnceLock<u64>,
    tokens: Tokens,
    /// The Raft term of the latest response.
    term: AtomicU64,
}

impl Common {
    /// Checks that the response is of the same cluster as all before. Some responses have no header (alarms in etcd 3.4),
    /// but every connection has checked it once.
    fn check_cluster(&self, header: Option<&ResponseHeader>) -> Result<()> {
        // Some responses have no term.
        if let Some(header) = header.filter(|header| header.raft_term > 0) {
            self.term.store(header.raft_term, Ordering::Relaxed);
        }
        if header.is_none_or(|header| *self.cluster_id.get_or_init(|| header.cluster_id) == header.cluster_id)
        {
            return Ok(());
        }
        let message = format!("another cluster responds at {}", self.config.location);
        Err(Error::new(ErrorKind::Backend, message).with_hint(
            "fencing tokens of different clusters have no order; reconnect if the other cluster is intended",
        ))
    }
}

/// The link of one client to the cluster. It closes when it is dropped, and keeps no lease alive by itself.
pub(crate) struct Link {
    common: Arc<Common>,
    connection: Coalesced<Arc<Connection>>,
    /// The index of the member to try next.
    next_member: AtomicUsize,
    commands: UnboundedSender<Command>,
    last_watch_id: AtomicI64,
}

impl Link {
    /// Connects to the first member that responds. Changes of watched keys are sent to `events`. The link runs on the
    /// runtime in which it is created.
    ///
    /// # Errors
    /// If no member responds, or the members reject the client.
    pub(crate) async fn open(config: LinkConfig, events: UnboundedSender<WatchEvent>) -> Result<Arc<Self>> {
        let (commands, command_receiver) = unbounded_channel();
        let link = Arc::new(Self {
            common: Arc::new(Common {
                config,
                clock: Clock::system(),
                cluster_id: OnceLock::new(),
                tokens: Tokens::default(),
                term: AtomicU64::new(0),
            }),
            connection: Coalesced::default(),
            next_member: AtomicUsize::new(0),
            commands,
            last_watch_id: AtomicI64::new(0),
        });
        link.connection().await?;
        tokio::spawn(stream::run(Arc::downgrade(&link), link.common.clone(), command_receiver, events));
        Ok(link)
    }

    /// Returns the URL without secrets.
    pub(crate) fn location(&self) -> &str {
        &self.common.config.location
    }

    /// Returns the Raft term of the latest response.
    pub(crate) fn term(&self) -> u64 {
        self.common.term.load(Ordering::Relaxed)
    }

    /// Watches a key or a range. Returns at once; if the stream breaks, the watch is created again and continues from the
    /// last revision that it has seen.
    pub(crate) fn watch(&self, target: WatchTarget) -> WatchId {
        let id = WatchId(self.last_watch_id.fetch_add(1, Ordering::Relaxed) + 1);
        // Without a receiver, the runtime is shutting down.
        let _ = self.commands.send(Command::Watch(id, target));
        id
    }

    /// Ends a watch. Returns at once; events in flight are still sent.
    pub(crate) fn unwatch(&self, id: WatchId) {
        let _ = self.commands.send(Command::Unwatch(id));
    }

    /// Returns the connection. If there is none, connects to the first member that responds, starting after the last one
    /// tried.
    async fn connection(&self) -> Result<Arc<Connection>> {
        self.connection.get(|connection| !connection.is_closed(), || self.connect()).await
    }

    async fn connect(&self) -> Result<Arc<Connection>> {
        let members = &self.common.config.members;
        let mut error = None;
        for _ in members {
            // Before connecting: if this caller is cancelled, the next one does not wait for the same member.
            let index = self.next_member.fetch_add(1, Ordering::Relaxed) % members.len();
            match tokio::time::timeout(CONNECT_TIMEOUT, Connection::connect(&self.common, &members[index]))
                .await
            {
                Ok(Ok(connection)) => return Ok(Arc::new(connection)),
                Ok(Err(failed)) => keep_most_specific(&mut error, failed),
                Err(_) => keep_most_specific(&mut error, self.connect_timeout(&members[index])),
            }
        }
        Err(error.unwrap_or_else(|| unreachable(self.location())))
    }

    fn connect_timeout(&self, member: &Address) -> Error {
        let reason = format!("no response from {member} within {CONNECT_TIMEOUT:?}");
        let error = unreachable(self.location()).with_source(reason);
        // A server without TLS takes the handshake for the start of a request, and waits for the rest.
        if self.common.config.encryption.is_some() { error.with_hint("is it a TLS port?") } else { error }
    }

    /// Closes the connection after a failed call, so that the next call uses another member. If there is only one member,
    /// closes it only if nothing was received since the call was sent.
    fn fail_over(&self, connection: &Connection, sent_at: Moment) {
        if self.common.config.members.len() > 1 || connection.is_silent_since(sent_at) {
            connection.close();
        }
    }
}

/// Keeps the error that is more specific than "unreachable".
fn keep_most_specific(kept: &mut Option<Error>, error: Error) {
    if kept.as_ref().is_none_or(|kept| kept.kind() == ErrorKind::Unreachable) {
        *kept = Some(error);
    }
}
