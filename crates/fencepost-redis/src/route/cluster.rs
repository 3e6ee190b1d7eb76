//! A cluster: which node has which slot, and what to do when slots move.

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
use crate::node::{Answer, Asking, Call, Failure, Node, Target};
use crate::script::Script;
use crate::setup::Setup;

/// Between attempts while a slot moves or a node is down.
const PAUSE: Duration = Duration::from_millis(20);
/// How often to look whether the nodes are still those that we know.
const LOOK: Duration = Duration::from_secs(1);
/// Every how many looks to ask even if all is well.
const ALL_THE_SAME: u32 = 30;

/// The nodes of a cluster and their slots.
pub(crate) struct Cluster {
    setup: Arc<Setup>,
    clock: Clock,
    seeds: Vec<Address>,
    identity: Arc<Identity>,
    map: Mutex<Map>,
    /// When the nodes began to be asked for the map that is known.
    asked: Coalesced<Moment>,
}

#[derive(Default)]
struct Map {
    /// First and last slot, and who has them.
    ranges: Vec<(u16, u16, Address)>,
    /// The nodes that have slots.
    nodes: HashMap<Address, Arc<Node>>,
}

impl Cluster {
    /// Learns who is who and connects to all of them, so that pushes arrive from each.
    pub(crate) async fn open(setup: Arc<Setup>, seeds: &[Address]) -> Result<Arc<Self>> {
        let cluster = Arc::new(Self {
            setup,
            clock: Clock::system(),
            seeds: seeds.to_vec(),
            identity: Arc::default(),
            map: Mutex::default(),
            asked: Coalesced::default(),
        });
        cluster.refresh().await?;
        cluster.check_namespace().await?;
        tokio::spawn(keep_in_touch(Arc::downgrade(&cluster)));
        Ok(cluster)
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The namespace's mark is in one slot, so the node that has it is asked.
    async fn check_namespace(&self) -> Result<()> {
        let node = self.node_of_key(&self.setup.layout.about()).await?;
        self.identity.check(&self.setup, &mut node.live().await?.connection()).await
    }

    /// Calls a script where its keys are, and follows them if they move.
    pub(crate) async fn invoke(&self, call: &Call<'_>, arguments: &impl Fn(&mut Cmd)) -> Result<Answer> {
        let slot = slot(call.prefix);
        let until = self.clock.now() + call.patience;
        let mut last = None;
        let mut sent_to: Option<(Arc<Node>, Asking)> = None;
        while self.clock.now() < until {
            let known = || Some((self.node_of(slot)?, Asking::No));
            let Some((node, asking)) = sent_to.take().or_else(known) else {
                self.refresh_until(until).await?;
                self.pause().await;
                continue;
            };
            let failure = match node.invoke(call, arguments, asking).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match (failure.code(), &failure) {
                (Some("ASK"), Failure::Refused(error)) => {
                    sent_to = redirected(error).map(|address| (self.node_at(&address), Asking::Yes));
                }
                (Some("MOVED"), Failure::Refused(error)) => {
                    self.refresh_until(until).await?;
                    // The node that redirects may know better than the one that was asked for the map.
                    sent_to = redirected(error).map(|address| (self.node_at(&address), Asking::No));
                }
                (Some("TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY"), _) => {
                    self.pause().await;
                    self.refresh_until(until).await?;
                }
                (None, Failure::Failed(error)) if error.kind() == ErrorKind::Unreachable => {
                    self.pause().await;
                    // If no node answers, the loop ends in time by itself.
                    let _ = self.refresh_until(until).await;
                }
                _ => return Err(failure.into_error(&self.setup.location)),
            }
            last = Some(failure);
        }
        let location = &self.setup.location;
        Err(last.map_or_else(|| unreachable(location), |failure| failure.into_error(location)))
    }

    /// Returns each node that has slots.
    pub(crate) async fn nodes(&self) -> Result<Vec<Arc<Node>>> {
        if self.map().nodes.is_empty() {
            self.refresh().await?;
        }
        Ok(self.map().nodes.values().cloned().collect())
    }

    /// Returns the node that has this key.
    pub(crate) async fn node_of_key(&self, key: &str) -> Result<Arc<Node>> {
        if self.map().nodes.is_empty() {
            self.refresh().await?;
        }
        self.node_of(slot(key)).ok_or_else(|| self.without_slots())
    }

    fn node_of(&self, slot: u16) -> Option<Arc<Node>> {
        let map = self.map();
        let (.., address) = map.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot))?;
        map.nodes.get(address).cloned()
    }

    /// Returns the node at this address, which may not have slots yet.
    fn node_at(&self, address: &Address) -> Arc<Node> {
        let new = || self.new_node(address).known().tended();
        self.map().nodes.entry(address.clone()).or_insert_with(new).clone()
    }

    fn new_node(&self, address: &Address) -> Node {
        let target = Target::This(address.clone());
        Node::new(self.setup.clone(), target, &Script::ALL, self.identity.clone())
    }

    /// Asks the nodes who has what, but no longer than this: others in the same flight wait for the answer too.
    async fn refresh_until(&self, until: Moment) -> Result<()> {
        let left = until.since(self.clock.now());
        // If it takes longer, the caller sees that its time is over.
        tokio::time::timeout(left, self.refresh()).await.unwrap_or(Ok(()))
    }

    /// Asks the nodes who has what, once for all callers that are waiting.
    async fn refresh(&self) -> Result<()> {
        let arrived = self.clock.now();
        let ask = async || {
            let began = self.clock.now();
            self.ask_any().await.map(|()| began)
        };
        self.asked.get(|began| *began > arrived, ask).await.map(drop)
    }

    /// Asks one node after the other who has what, until one of them answers.
    async fn ask_any(&self) -> Result<()> {
        let nodes = self.map().nodes.clone();
        let seeds = self.seeds.iter().filter(|seed| !nodes.contains_key(seed));
        let seeds = seeds.map(|seed| (seed, self.new_node(seed).tended()));
        // A node that does not answer costs time: those that are there come first.
        let (there, away): (Vec<_>, Vec<_>) = nodes.iter().partition(|(_, node)| node.is_connected());
        let known = there.into_iter().chain(away).map(|(address, node)| (address, node.clone()));
        let mut last = None;
        for (address, node) in known.chain(seeds) {
            match self.ask(&node, address).await {
                Ok(ranges) => {
                    self.adopt(ranges, address, &node);
                    return self.connect_all().await;
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| self.without_slots()))
    }

    async fn ask(&self, node: &Node, address: &Address) -> Result<Vec<(u16, u16, Address)>> {
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let answer = node.live().await?.ask(&question).await.map_err(|error| match error.kind() {
            ErrorKind::Backend => error.with_hint("is it a cluster? redis:// is for a single server"),
            _ => error,
        })?;
        let Value::Array(rows) = answer else {
            return Err(crate::decode::nonsense(&self.setup.location));
        };
        let ranges: Vec<_> = rows.iter().filter_map(|row| range(row, address)).collect();
        if ranges.is_empty() { Err(self.without_slots()) } else { Ok(ranges) }
    }

    /// Keeps the nodes that are still good, and makes those that are missing.
    fn adopt(&self, ranges: Vec<(u16, u16, Address)>, asked: &Address, node: &Arc<Node>) {
        let mut map = self.map();
        let was_empty = map.nodes.is_empty();
        let mut nodes = HashMap::new();
        for (.., address) in &ranges {
            let old = map.nodes.remove(address).or_else(|| (address == asked).then(|| node.clone()));
            let new = || {
                let new = self.new_node(address);
                if was_empty { new.tended() } else { new.known().tended() }
            };
            nodes.entry(address.clone()).or_insert_with(|| old.unwrap_or_else(new));
        }
        *map = Map { ranges, nodes };
    }

    /// One node that is down does not keep us from the others.
    async fn connect_all(&self) -> Result<()> {
        let nodes: Vec<Arc<Node>> = self.map().nodes.values().cloned().collect();
        let connected = futures_util::future::join_all(nodes.iter().map(|node| node.live())).await;
        let (fine, failed): (Vec<_>, Vec<_>) = connected.into_iter().partition(Result::is_ok);
        match failed.into_iter().find_map(Result::err) {
            Some(error) if fine.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether there is a node that we are not connected to.
    fn is_incomplete(&self) -> bool {
        self.map().nodes.values().any(|node| !node.is_connected())
    }

    async fn pause(&self) {
        let _ = self.clock.sleep_until(self.clock.now() + PAUSE).await;
    }

    fn without_slots(&self) -> Error {
        let message = format!("no node of {} has any slots", self.setup.location);
        Error::new(ErrorKind::Unreachable, message).with_hint("has the cluster been created?")
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a node says that a key may be: the driver gives the address in one piece, and the slot.
fn redirected(error: &RedisError) -> Option<Address> {
    let (address, _slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    Some(Address { host: host.into(), port: port.parse().ok()? })
}

/// One row of the map: first slot, last slot, the primary. A node that does not know its own host is where we asked.
fn range(row: &Value, asked: &Address) -> Option<(u16, u16, Address)> {
    let Value::Array(row) = row else {
        return None;
    };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice() else {
        return None;
    };
    let host = text(primary.first()).filter(|host| !host.is_empty()).unwrap_or(&asked.host);
    let Some(Value::Int(port)) = primary.get(1) else {
        return None;
    };
    let address = Address { host: host.into(), port: u16::try_from(*port).ok()? };
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, address))
}

/// Nothing announces a failover: the new primary must be found, because its pushes go only to clients that subscribe there.
async fn keep_in_touch(cluster: Weak<Cluster>) {
    let clock = Clock::system();
    for look in 1u32.. {
        let _ = clock.sleep_until(clock.now() + LOOK).await;
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        if look % ALL_THE_SAME == 0 || cluster.is_incomplete() {
            // If no node answers now, there is a next time.
            let _ = cluster.refresh().await;
        }
    }
}
