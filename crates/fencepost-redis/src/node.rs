//! One server: a connection that is restored when it is lost, the loaded scripts, and the identity of the data. Everything
//! about locks is sent to a server from here.

mod connection;
mod handshake;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::Result;
use fencepost_core::backend::Wakeup;
use fencepost_core::clock::Clock;
use fencepost_net::{Address, Backoff, CONNECT_TIMEOUT, Coalesced};
use redis::{Cmd, Value};
use tokio::sync::Notify;

use crate::error::unreachable;
use crate::identity::Identity;
use crate::script::Script;
use crate::state::ClientState;

pub(crate) use connection::{Failure, LiveConnection, READ_TIMEOUT};
pub(crate) use handshake::log_in;

/// How to find a server.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Address(Address),
    /// The primary that the sentinels report.
    Primary,
}

/// One server, with a connection that is subscribed to the client's channel.
pub(crate) struct Node {
    state: Arc<ClientState>,
    target: Target,
    scripts: &'static [Script],
    /// The identity of its data; shared by the nodes of a cluster.
    identity: Arc<Identity>,
    connection: Coalesced<Arc<LiveConnection>>,
    /// Whether pushes may have been lost before the next connection is there: all tickets are checked then.
    may_have_missed_pushes: AtomicBool,
    /// Notified when the connection is lost.
    connection_lost: Arc<Notify>,
}

/// One call of a script.
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: Script,
    /// The prefix of its keys.
    pub(crate) prefix: &'a str,
    /// The keys to declare.
    pub(crate) keys: Vec<String>,
    /// How many replicas to wait for.
    pub(crate) min_replicas: u32,
    /// How long to wait for the reply.
    pub(crate) timeout: Duration,
}

/// The reply to a call.
pub(crate) struct ScriptReply {
    pub(crate) value: Value,
    /// How many replicas confirmed it, if the call waited for replicas.
    pub(crate) confirmed_replicas: u32,
}

/// Whether to send `ASKING` first, which a node needs that a slot is migrating to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    No,
    Yes,
}

impl Node {
    /// Creates a node. It connects, and loads these scripts, when it is first used.
    pub(crate) fn new(
        state: Arc<ClientState>,
        target: Target,
        scripts: &'static [Script],
        identity: Arc<Identity>,
    ) -> Self {
        let (connection, connection_lost) = (Coalesced::default(), Arc::default());
        let may_have_missed_pushes = AtomicBool::new(false);
        Self { state, target, scripts, identity, connection, may_have_missed_pushes, connection_lost }
    }

    /// Marks the node as one that may have sent pushes before its first connection.
    pub(crate) fn with_missed_pushes(mut self) -> Self {
        *self.may_have_missed_pushes.get_mut() = true;
        self
    }

    /// Starts a task that reconnects whenever the connection is lost. Must be called inside the runtime of the node.
    pub(crate) fn keep_connected(self) -> Arc<Self> {
        let node = Arc::new(self);
        tokio::spawn(reconnect_when_lost(Arc::downgrade(&node), node.connection_lost.clone()));
        node
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the connection; connects if there is none.
    pub(crate) async fn connection(&self) -> Result<Arc<LiveConnection>> {
        self.connection.get(|connection| !connection.is_closed(), || self.connect()).await
    }

    async fn connect(&self) -> Result<Arc<LiveConnection>> {
        let ClientState { location, encryption, .. } = &*self.state;
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, handshake::connect(self));
        let connected = connecting.await.unwrap_or_else(|_| {
            let error = unreachable(location).with_source(format!("no reply within {CONNECT_TIMEOUT:?}"));
            // A server without TLS does not reply to the start of a TLS handshake.
            Err(if encryption.is_some() { error.with_hint("is it a TLS port?") } else { error })
        });
        match &connected {
            Ok(_) if self.may_have_missed_pushes.swap(true, Ordering::Relaxed) => {
                self.state.push(Wakeup::CheckAll);
            }
            Ok(_) => {}
            // The reconnecting task tries again.
            Err(_) => self.connection_lost.notify_one(),
        }
        connected.map(Arc::new)
    }

    /// Returns whether there is an established connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.current().is_some_and(|connection| !connection.is_closed())
    }

    /// Calls one command that only reads.
    pub(crate) async fn query(&self, command: &Cmd) -> Result<Value> {
        self.connection().await?.query(command).await
    }

    /// Calls a script; `add_arguments` adds its arguments. If the server has lost the script, it is loaded again.
    pub(crate) async fn call_script(
        &self,
        call: &ScriptCall<'_>,
        add_arguments: &impl Fn(&mut Cmd),
        asking: Asking,
    ) -> Result<ScriptReply, Failure> {
        let connection = self.connection().await.map_err(Failure::Failed)?;
        match connection.send(call, add_arguments, asking).await {
            Err(failure) if failure.code() == Some("NOSCRIPT") => {
                let load = handshake::load_scripts(&self.state, self.scripts);
                connection.call_all(&load, load.len(), call.timeout).await?;
                connection.send(call, add_arguments, asking).await
            }
            result => result,
        }
    }

    /// Closes the connection.
    pub(crate) async fn close(&self) {
        self.connection.clear().await;
    }
}

impl Drop for Node {
    /// Wakes the reconnecting task, which then ends.
    fn drop(&mut self) {
        self.connection_lost.notify_one();
    }
}

/// Reconnects whenever the connection is lost, until the node is dropped.
async fn reconnect_when_lost(node: Weak<Node>, connection_lost: Arc<Notify>) {
    let clock = Clock::system();
    loop {
        connection_lost.notified().await;
        let mut backoff = Backoff::default();
        loop {
            backoff.wait(&clock).await;
            let Some(node) = node.upgrade() else {
                return;
            };
            if node.connection().await.is_ok() {
                break;
            }
        }
    }
}
