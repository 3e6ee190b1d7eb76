//! A cluster: which node has which slot, and retries while slots migrate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::{Address, Coalesced};
use redis::{Cmd, RedisError, Value};

use crate::decode::text;
use crate::error::unreachable;
use crate::identity::Identity;
use crate::layout::slot;
use crate::node::{Asking, Failure, Node, ScriptCall, ScriptReply, Target};
use crate::script::Script;
use crate::state::ClientState;

/// The pause between two attempts of a call while a slot migrates or a node is down.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// How often to check whether all known nodes are connected; the slots are fetched again if not.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// After how many checks to fetch the slots even if all nodes are connected.
const CHECKS_PER_REFRESH: u32 = 30;

/// The nodes of a cluster and their slots.
pub(crate) struct Cluster {
    state: Arc<ClientState>,
    clock: Clock,
    seeds: Vec<Address>,
    identity: Arc<Identity>,
    slots: Mutex<SlotMap>,
    /// When the last fetch of the slots began.
    refreshed: Coalesced<Moment>,
}

#[derive(Default)]
struct SlotMap {
    /// First slot, last slot, and the node that has them.
    ranges: Vec<(u16, u16, Address)>,
    /// The nodes that have slots.
    nodes: HashMap<Address, Arc<Node>>,
}

impl Cluster {
    /// Fetches the slots and connects to all nodes, so that pushes arrive from each.
    pub(crate) async fn open(state: Arc<ClientState>, seeds: &[Address]) -> Result<Arc<Self>> {
        let cluster = Arc::new(Self {
            state,
            clock: Clock::system(),
            seeds: seeds.to_vec(),
            identity: Arc::default(),
            slots: Mutex::default(),
            refreshed: Coalesced::default(),
        });
        cluster.refresh().await?;
        cluster.check_namespace().await?;
        tokio::spawn(watch_topology(Arc::downgrade(&cluster)));
        Ok(cluster)
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Checks the identity of the namespace, on the node that has its key.
    async fn check_namespace(&self) -> Result<()> {
        let node = self.node_of_key(&self.state.layout.about()).await?;
        self.identity.check(&self.state, &mut node.connection().await?.driver_connection()).await
    }

    /// Calls a script on the node that has its keys, and follows redirections until the call's timeout.
    pub(crate) async fn call_script(
        &self,
        call: &ScriptCall<'_>,
        add_arguments: &impl Fn(&mut Cmd),
    ) -> Result<ScriptReply> {
        let slot = slot(call.prefix);
        let deadline = self.clock.now() + call.timeout;
        let mut last = None;
        let mut redirected_to: Option<(Arc<Node>, Asking)> = None;
        while self.clock.now() < deadline {
            let by_slot = || Some((self.node_of(slot)?, Asking::No));
            let Some((node, asking)) = redirected_to.take().or_else(by_slot) else {
                self.refresh_until(deadline).await?;
                self.pause().await;
                continue;
            };
            let failure = match node.call_script(call, add_arguments, asking).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            match (failure.code(), &failure) {
                (Some("ASK"), Failure::Refused(error)) => {
                    redirected_to = redirection(error).map(|address| (self.node_at(&address), Asking::Yes));
                }
                (Some("MOVED"), Failure::Refused(error)) => {
                    self.refresh_until(deadline).await?;
                    // The redirection may be newer than the slots that another node returned.
                    redirected_to = redirection(error).map(|address| (self.node_at(&address), Asking::No));
                }
                (Some("TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY"), _) => {
                    self.pause().await;
                    self.refresh_until(deadline).await?;
                }
                (None, Failure::Failed(error)) if error.kind() == ErrorKind::Unreachable => {
                    self.pause().await;
                    // If no node answers, the loop ends at the deadline.
                    let _ = self.refresh_until(deadline).await;
                }
                _ => return Err(failure.into_error(&self.state.location)),
            }
            last = Some(failure);
        }
        let location = &self.state.location;
        Err(last.map_or_else(|| unreachable(location), |failure| failure.into_error(location)))
    }

    /// Returns each node that has slots.
    pub(crate) async fn nodes(&self) -> Result<Vec<Arc<Node>>> {
        if self.slots().nodes.is_empty() {
            self.refresh().await?;
        }
        Ok(self.slots().nodes.values().cloned().collect())
    }

    /// Returns the node that has this key.
    pub(crate) async fn node_of_key(&self, key: &str) -> Result<Arc<Node>> {
        if self.slots().nodes.is_empty() {
            self.refresh().await?;
        }
        self.node_of(slot(key)).ok_or_else(|| self.no_slots())
    }

    fn node_of(&self, slot: u16) -> Option<Arc<Node>> {
        let slots = self.slots();
        let (.., address) = slots.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot))?;
        slots.nodes.get(address).cloned()
    }

    /// Returns the node at this address, which may not have slots yet.
    fn node_at(&self, address: &Address) -> Arc<Node> {
        let new = || self.new_node(address).with_missed_pushes().keep_connected();
        self.slots().nodes.entry(address.clone()).or_insert_with(new).clone()
    }

    fn new_node(&self, address: &Address) -> Node {
        let target = Target::Address(address.clone());
        Node::new(self.state.clone(), target, &Script::ALL, self.identity.clone())
    }

    /// Fetches the slots, but returns at the deadline: other calls of the same flight wait for this one.
    async fn refresh_until(&self, deadline: Moment) -> Result<()> {
        let left = deadline.since(self.clock.now());
        // If it takes longer, the caller notices that its deadline has passed.
        tokio::time::timeout(left, self.refresh()).await.unwrap_or(Ok(()))
    }

    /// Fetches the slots, once for all callers that are waiting.
    async fn refresh(&self) -> Result<()> {
        let called = self.clock.now();
        let fetch = async || {
            let began = self.clock.now();
            self.fetch_from_any().await.map(|()| began)
        };
        self.refreshed.get(|began| *began > called, fetch).await.map(drop)
    }

    /// Fetches the slots from one node after the other, until one of them answers, and connects to all nodes.
    async fn fetch_from_any(&self) -> Result<()> {
        let nodes = self.slots().nodes.clone();
        let seeds = self.seeds.iter().filter(|seed| !nodes.contains_key(seed));
        let seeds = seeds.map(|seed| (seed, self.new_node(seed).keep_connected()));
        // Connected nodes first: a node that does not answer costs a timeout.
        let (up, down): (Vec<_>, Vec<_>) = nodes.iter().partition(|(_, node)| node.is_connected());
        let known = up.into_iter().chain(down).map(|(address, node)| (address, node.clone()));
        let mut last = None;
        for (address, node) in known.chain(seeds) {
            match self.fetch_from(&node, address).await {
                Ok(ranges) => {
                    self.install(ranges, address, &node);
                    return self.connect_all().await;
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| self.no_slots()))
    }

    async fn fetch_from(&self, node: &Node, address: &Address) -> Result<Vec<(u16, u16, Address)>> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let reply = node.query(&command).await.map_err(|error| match error.kind() {
            ErrorKind::Backend => error.with_hint("is it a cluster? redis:// is for a single server"),
            _ => error,
        })?;
        let Value::Array(rows) = reply else {
            return Err(crate::decode::unexpected_reply(&self.state.location));
        };
        let ranges: Vec<_> = rows.iter().filter_map(|row| range(row, address)).collect();
        if ranges.is_empty() { Err(self.no_slots()) } else { Ok(ranges) }
    }

    /// Stores the slots. Nodes that still have slots are kept, missing ones are created, the others are dropped.
    fn install(&self, ranges: Vec<(u16, u16, Address)>, source: &Address, node: &Arc<Node>) {
        let mut slots = self.slots();
        let was_empty = slots.nodes.is_empty();
        let mut nodes = HashMap::new();
        for (.., address) in &ranges {
            let old = slots.nodes.remove(address).or_else(|| (address == source).then(|| node.clone()));
            let new = || {
                let new = self.new_node(address);
                if was_empty { new.keep_connected() } else { new.with_missed_pushes().keep_connected() }
            };
            nodes.entry(address.clone()).or_insert_with(|| old.unwrap_or_else(new));
        }
        *slots = SlotMap { ranges, nodes };
    }

    /// Connects to all nodes. Fails only if none can be connected to.
    async fn connect_all(&self) -> Result<()> {
        let nodes: Vec<Arc<Node>> = self.slots().nodes.values().cloned().collect();
        let connected = futures_util::future::join_all(nodes.iter().map(|node| node.connection())).await;
        let (connected, failed): (Vec<_>, Vec<_>) = connected.into_iter().partition(Result::is_ok);
        match failed.into_iter().find_map(Result::err) {
            Some(error) if connected.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns whether a node is not connected.
    fn is_incomplete(&self) -> bool {
        self.slots().nodes.values().any(|node| !node.is_connected())
    }

    async fn pause(&self) {
        let _ = self.clock.sleep_until(self.clock.now() + RETRY_INTERVAL).await;
    }

    fn no_slots(&self) -> Error {
        let message = format!("no node of {} has any slots", self.state.location);
        Error::new(ErrorKind::Unreachable, message).with_hint("has the cluster been created?")
    }

    fn slots(&self) -> MutexGuard<'_, SlotMap> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the address that a `MOVED` or `ASK` error redirects to.
fn redirection(error: &RedisError) -> Option<Address> {
    let (address, _slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    Some(Address { host: host.into(), port: port.parse().ok()? })
}

/// Parses one row of `CLUSTER SLOTS`: first slot, last slot, the primary. A node that does not know its own host is at the
/// address that was queried.
fn range(row: &Value, source: &Address) -> Option<(u16, u16, Address)> {
    let Value::Array(row) = row else {
        return None;
    };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice() else {
        return None;
    };
    let host = text(primary.first()).filter(|host| !host.is_empty()).unwrap_or(&source.host);
    let Some(Value::Int(port)) = primary.get(1) else {
        return None;
    };
    let address = Address { host: host.into(), port: u16::try_from(*port).ok()? };
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, address))
}

/// Finds new primaries. Failovers are not announced, and a primary pushes only to clients that have subscribed to it.
async fn watch_topology(cluster: Weak<Cluster>) {
    let clock = Clock::system();
    for check in 1u32.. {
        let _ = clock.sleep_until(clock.now() + CHECK_INTERVAL).await;
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        if check % CHECKS_PER_REFRESH == 0 || cluster.is_incomplete() {
            // If no node answers, the next check tries again.
            let _ = cluster.refresh().await;
        }
    }
}
