//! One server: the connection to it, which comes back when it is lost, the scripts that it is told, and which storage it
//! is. All that is sent to a server about locks is sent here.

mod handshake;
mod live;
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
use crate::setup::Setup;

pub(crate) use handshake::log_in;
pub(crate) use live::{Failure, LOOK_TIMEOUT, Live};

/// Where a server is.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    This(Address),
    /// The one that the sentinels name.
    Primary,
}

/// One server of a client, subscribed to the client's channel for as long as there is a connection.
pub(crate) struct Node {
    setup: Arc<Setup>,
    target: Target,
    scripts: &'static [Script],
    /// Which storage it is, or is a part of: the nodes of a cluster share it.
    identity: Arc<Identity>,
    live: Coalesced<Arc<Live>>,
    /// Whether there was a connection before: pushes may have been lost since.
    is_known: AtomicBool,
    /// Notified when the connection is lost.
    lost: Arc<Notify>,
}

/// One call of a script.
pub(crate) struct Call<'a> {
    pub(crate) script: Script,
    /// What its keys begin with.
    pub(crate) prefix: &'a str,
    /// The keys that it names.
    pub(crate) keys: Vec<String>,
    /// How many replicas to wait for.
    pub(crate) replicas: u32,
    /// How long to wait for the answer.
    pub(crate) patience: Duration,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// How many replicas have it, if that was asked.
    pub(crate) replicas: u32,
}

/// Whether to go where a slot is moving to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    No,
    Yes,
}

impl Node {
    /// A server that is told these scripts and connected to when it is first used.
    pub(crate) fn new(
        setup: Arc<Setup>,
        target: Target,
        scripts: &'static [Script],
        identity: Arc<Identity>,
    ) -> Self {
        let (live, is_known, lost) = (Coalesced::default(), AtomicBool::new(false), Arc::default());
        Self { setup, target, scripts, identity, live, is_known, lost }
    }

    /// The same, if the server may have sent pushes before it was connected to.
    pub(crate) fn known(mut self) -> Self {
        *self.is_known.get_mut() = true;
        self
    }

    /// Gets the connection back whenever it is lost. The node lives on the runtime in which this is called.
    pub(crate) fn tended(self) -> Arc<Self> {
        let node = Arc::new(self);
        tokio::spawn(tend(Arc::downgrade(&node), node.lost.clone()));
        node
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the connection, which is made if there is none.
    pub(crate) async fn live(&self) -> Result<Arc<Live>> {
        self.live.get(|live| !live.is_over(), || self.connect()).await
    }

    async fn connect(&self) -> Result<Arc<Live>> {
        let Setup { location, encryption, .. } = &*self.setup;
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, handshake::connect(self));
        let connected = connecting.await.unwrap_or_else(|_| {
            let late = unreachable(location).with_source(format!("no answer within {CONNECT_TIMEOUT:?}"));
            // A server that does not expect TLS waits for more.
            Err(if encryption.is_some() { late.with_hint("is it a TLS port?") } else { late })
        });
        match &connected {
            Ok(_) if self.is_known.swap(true, Ordering::Relaxed) => {
                self.setup.push(Wakeup::CheckAll);
            }
            Ok(_) => {}
            // Until it is there again.
            Err(_) => self.lost.notify_one(),
        }
        connected.map(Arc::new)
    }

    /// Returns whether there is a connection; one that is just being made is not there yet.
    pub(crate) fn is_connected(&self) -> bool {
        self.live.current().is_some_and(|live| !live.is_over())
    }

    /// Calls one command that only looks.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value> {
        self.live().await?.ask(command).await
    }

    /// Calls a script; `arguments` adds its arguments. A script that the server has forgotten is loaded again.
    pub(crate) async fn invoke(
        &self,
        call: &Call<'_>,
        arguments: &impl Fn(&mut Cmd),
        asking: Asking,
    ) -> Result<Answer, Failure> {
        let live = self.live().await.map_err(Failure::Failed)?;
        match live.send(call, arguments, asking).await {
            Err(failure) if failure.code() == Some("NOSCRIPT") => {
                let loading = handshake::loading(&self.setup, self.scripts);
                live.call_all(&loading, loading.len(), call.patience).await?;
                live.send(call, arguments, asking).await
            }
            answer => answer,
        }
    }

    /// Ends the connection.
    pub(crate) async fn close(&self) {
        self.live.clear().await;
    }
}

impl Drop for Node {
    /// Its task ends.
    fn drop(&mut self) {
        self.lost.notify_one();
    }
}

/// Gets the connection back whenever it is lost, for as long as there is the node.
async fn tend(node: Weak<Node>, lost: Arc<Notify>) {
    let clock = Clock::system();
    loop {
        lost.notified().await;
        let mut backoff = Backoff::default();
        loop {
            backoff.pause(&clock).await;
            let Some(node) = node.upgrade() else {
                return;
            };
            if node.live().await.is_ok() {
                break;
            }
        }
    }
}
