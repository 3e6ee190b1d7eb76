//! Where a call goes: to the one server, or to that node of a cluster which has the slot.

mod cluster;

use std::sync::Arc;

use fencepost_core::Result;
use redis::Cmd;

use crate::config::Servers;
use crate::identity::Identity;
use crate::node::{Answer, Asking, Call, Node, Target};
use crate::script::Script;
use crate::setup::Setup;
use cluster::Cluster;

/// The servers of a client.
pub(crate) enum Route {
    One { setup: Arc<Setup>, node: Arc<Node> },
    Cluster(Arc<Cluster>),
}

impl Route {
    /// Connects to the servers that the URL names.
    pub(crate) async fn open(setup: &Arc<Setup>) -> Result<Self> {
        let target = match &setup.config.servers {
            Servers::One(address) => Target::This(address.clone()),
            Servers::Sentinel { .. } => Target::Primary,
            Servers::Cluster(seeds) => return Ok(Self::Cluster(Cluster::open(setup.clone(), seeds).await?)),
        };
        let node = Node::new(setup.clone(), target, &Script::ALL, Arc::default()).tended();
        node.live().await?;
        Ok(Self::One { setup: setup.clone(), node })
    }

    /// Returns which storage the servers are together.
    pub(crate) fn identity(&self) -> &Identity {
        match self {
            Self::One { node, .. } => node.identity(),
            Self::Cluster(cluster) => cluster.identity(),
        }
    }

    /// Calls a script; `arguments` adds its arguments.
    pub(crate) async fn invoke(&self, call: &Call<'_>, arguments: impl Fn(&mut Cmd)) -> Result<Answer> {
        match self {
            Self::One { setup, node } => {
                let answer = node.invoke(call, &arguments, Asking::No).await;
                answer.map_err(|failure| failure.into_error(&setup.location))
            }
            Self::Cluster(cluster) => cluster.invoke(call, &arguments).await,
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

    /// Ends all connections.
    pub(crate) async fn close(&self) {
        for node in self.nodes().await.unwrap_or_default() {
            node.close().await;
        }
    }
}
