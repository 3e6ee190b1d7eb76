//! Routes calls: to the only server, or to the node of the cluster that has the slot.

mod cluster;

use std::sync::Arc;

use fencepost_core::Result;
use redis::Cmd;

use crate::config::Servers;
use crate::identity::Identity;
use crate::node::{Asking, Node, ScriptCall, ScriptReply, Target};
use crate::script::Script;
use crate::state::ClientState;
use cluster::Cluster;

/// The servers of a client.
pub(crate) enum Route {
    One { state: Arc<ClientState>, node: Arc<Node> },
    Cluster(Arc<Cluster>),
}

impl Route {
    /// Connects to the servers of the URL.
    pub(crate) async fn open(state: &Arc<ClientState>) -> Result<Self> {
        let target = match &state.config.servers {
            Servers::One(address) => Target::Address(address.clone()),
            Servers::Sentinel { .. } => Target::Primary,
            Servers::Cluster(seeds) => return Ok(Self::Cluster(Cluster::open(state.clone(), seeds).await?)),
        };
        let node = Node::new(state.clone(), target, &Script::ALL, Arc::default()).keep_connected();
        node.connection().await?;
        Ok(Self::One { state: state.clone(), node })
    }

    /// Returns the identity of the data on the servers.
    pub(crate) fn identity(&self) -> &Identity {
        match self {
            Self::One { node, .. } => node.identity(),
            Self::Cluster(cluster) => cluster.identity(),
        }
    }

    /// Calls a script; `add_arguments` adds its arguments.
    pub(crate) async fn call_script(
        &self,
        call: &ScriptCall<'_>,
        add_arguments: impl Fn(&mut Cmd),
    ) -> Result<ScriptReply> {
        match self {
            Self::One { state, node } => {
                let reply = node.call_script(call, &add_arguments, Asking::No).await;
                reply.map_err(|failure| failure.into_error(&state.location))
            }
            Self::Cluster(cluster) => cluster.call_script(call, &add_arguments).await,
        }
    }

    /// Returns each server that has keys.
    pub(crate) async fn nodes(&self) -> Result<Vec<Arc<Node>>> {
        match self {
            Self::One { node, .. } => Ok(vec![node.clone()]),
            Self::Cluster(cluster) => cluster.nodes().await,
        }
    }

    /// Returns the server that has this key.
    pub(crate) async fn node_of(&self, key: &str) -> Result<Arc<Node>> {
        match self {
            Self::One { node, .. } => Ok(node.clone()),
            Self::Cluster(cluster) => cluster.node_of_key(key).await,
        }
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        for node in self.nodes().await.unwrap_or_default() {
            node.close().await;
        }
    }
}
