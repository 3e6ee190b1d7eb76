//! A cluster: which node has which slot, a link to each of them, and what to do when slots move.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::Address;
use redis::{Cmd, RedisError, Value};

use super::{Answer, Asking, Call, Failure, invoke, out_of_time};
use crate::backend::LOOKING;
use crate::decode::text;
use crate::layout::slot;
use crate::link::{Link, Target};
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
    map: Mutex<Map>,
    /// Only one asks for the map at a time: when the last began, and how it went.
    asking: tokio::sync::Mutex<Option<(Moment, Result<()>)>>,
}

#[derive(Default)]
struct Map {
    /// First and last slot, and who has them.
    ranges: Vec<(u16, u16, Address)>,
    /// A link to each node that has slots.
    links: HashMap<Address, Arc<Link>>,
}

impl Cluster {
    pub(crate) fn new(setup: Arc<Setup>, seeds: &[Address]) -> Arc<Self> {
        let (map, asking) = (Mutex::default(), tokio::sync::Mutex::default());
        Arc::new(Self { setup, clock: Clock::system(), seeds: seeds.to_vec(), map, asking })
    }

    /// Learns who is who and connects to all of them, so that pushes arrive from each.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<()> {
        self.refresh().await?;
        self.check_namespace().await?;
        tokio::spawn(keep_in_touch(Arc::downgrade(self)));
        Ok(())
    }

    /// The namespace's mark is in one slot; whoever has it is asked.
    async fn check_namespace(&self) -> Result<()> {
        let link = self.link_of(slot(&self.setup.layout.about())).ok_or_else(|| self.nobody())?;
        self.setup.check_namespace(&mut link.live().await?.connection()).await
    }

    /// Calls a script where its keys are, and follows them if they move.
    pub(crate) async fn invoke(&self, call: &Call<'_>, arguments: &impl Fn(&mut Cmd)) -> Result<Answer> {
        let slot = slot(call.prefix);
        let until = self.clock.now() + call.patience;
        let mut last = None;
        let mut sent_to: Option<(Arc<Link>, Asking)> = None;
        while self.clock.now() < until {
            let known = || Some((self.link_of(slot)?, Asking::No));
            let Some((link, asking)) = sent_to.take().or_else(known) else {
                self.refresh_until(until).await?;
                self.pause().await;
                continue;
            };
            let failure = match invoke(&link, call, arguments, asking).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match (failure.code(), &failure) {
                (Some("ASK"), Failure::Refused(error)) => {
                    sent_to = redirected(error).map(|address| (self.link_to(&address), Asking::Yes));
                }
                (Some("MOVED"), Failure::Refused(error)) => {
                    self.refresh_until(until).await?;
                    // Whoever tells where it is may know better than whoever we ask.
                    sent_to = redirected(error).map(|address| (self.link_to(&address), Asking::No));
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
        Err(out_of_time(&self.setup, last))
    }

    /// A link to each node that has slots.
    pub(crate) async fn links(&self) -> Result<Vec<Arc<Link>>> {
        if self.map().links.is_empty() {
            self.refresh().await?;
        }
        Ok(self.map().links.values().cloned().collect())
    }

    /// A link to the node that has this key.
    pub(crate) async fn link_of_key(&self, key: &str) -> Result<Arc<Link>> {
        if self.map().links.is_empty() {
            self.refresh().await?;
        }
        self.link_of(slot(key)).ok_or_else(|| self.nobody())
    }

    fn link_of(&self, slot: u16) -> Option<Arc<Link>> {
        let map = self.map();
        let (.., address) = map.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot))?;
        map.links.get(address).cloned()
    }

    /// A link to a node that may not have slots yet.
    fn link_to(&self, address: &Address) -> Arc<Link> {
        let new = || Link::known(self.setup.clone(), Target::This(address.clone()));
        self.map().links.entry(address.clone()).or_insert_with(new).clone()
    }

    /// Asks the nodes who has what, but no longer than this: others in the same flight wait for the answer too.
    async fn refresh_until(&self, until: Moment) -> Result<()> {
        let left = until.since(self.clock.now());
        // If it takes longer, whoever asks sees for himself that the time is over.
        tokio::time::timeout(left, self.refresh()).await.unwrap_or(Ok(()))
    }

    /// Asks the nodes who has what, unless somebody has done so for all who were waiting.
    async fn refresh(&self) -> Result<()> {
        let arrived = self.clock.now();
        let mut asking = self.asking.lock().await;
        if let Some((began, outcome)) = &*asking
            && *began > arrived
        {
            return outcome.as_ref().copied().map_err(Error::duplicate);
        }
        let began = self.clock.now();
        let outcome = self.ask_anybody().await;
        *asking = Some((began, outcome.as_ref().copied().map_err(Error::duplicate)));
        outcome
    }

    /// Asks one node after the other who has what, until one of them answers.
    async fn ask_anybody(&self) -> Result<()> {
        let links = self.map().links.clone();
        let seeds = self.seeds.iter().filter(|seed| !links.contains_key(seed));
        let seeds = seeds.map(|seed| (seed, Link::new(self.setup.clone(), Target::This(seed.clone()))));
        // Whoever does not answer costs time: those who are there come first.
        let (there, away): (Vec<_>, Vec<_>) = links.iter().partition(|(_, link)| link.stands());
        let known = there.into_iter().chain(away).map(|(address, link)| (address, link.clone()));
        let mut last = None;
        for (address, link) in known.chain(seeds) {
            match self.ask(&link, address).await {
                Ok(ranges) => {
                    self.adopt(ranges, address, &link);
                    return self.connect_all().await;
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| self.nobody()))
    }

    async fn ask(&self, link: &Link, address: &Address) -> Result<Vec<(u16, u16, Address)>> {
        let live = link.live().await?;
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let answer = link.call(&live, &question, LOOKING).await;
        let answer = answer.map_err(|failure| match failure.into_error(&self.setup.location) {
            error if error.kind() == ErrorKind::Storage => {
                error.with_hint("is it a cluster? redis:// is for a single server")
            }
            error => error,
        })?;
        let Value::Array(rows) = answer else {
            return Err(crate::decode::nonsense(&self.setup.location));
        };
        let ranges: Vec<_> = rows.iter().filter_map(|row| range(row, address)).collect();
        if ranges.is_empty() { Err(self.nobody()) } else { Ok(ranges) }
    }

    /// Keeps the links that are still good, and makes those that are missing.
    fn adopt(&self, ranges: Vec<(u16, u16, Address)>, asked: &Address, link: &Arc<Link>) {
        let mut map = self.map();
        let was_empty = map.links.is_empty();
        let mut links = HashMap::new();
        for (.., address) in &ranges {
            let old = map.links.remove(address).or_else(|| (address == asked).then(|| link.clone()));
            let new = || {
                let target = Target::This(address.clone());
                let setup = self.setup.clone();
                if was_empty { Link::new(setup, target) } else { Link::known(setup, target) }
            };
            links.entry(address.clone()).or_insert_with(|| old.unwrap_or_else(new));
        }
        *map = Map { ranges, links };
    }

    /// One node that is down does not keep us from the others.
    async fn connect_all(&self) -> Result<()> {
        let links: Vec<Arc<Link>> = self.map().links.values().cloned().collect();
        let connected = futures_util::future::join_all(links.iter().map(|link| link.live())).await;
        let (fine, failed): (Vec<_>, Vec<_>) = connected.into_iter().partition(Result::is_ok);
        match failed.into_iter().find_map(Result::err) {
            Some(error) if fine.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether there is a node that we are not connected to.
    fn is_incomplete(&self) -> bool {
        self.map().links.values().any(|link| !link.stands())
    }

    async fn pause(&self) {
        let _ = self.clock.sleep_until(self.clock.now() + PAUSE).await;
    }

    fn nobody(&self) -> Error {
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

/// After a failover nobody tells us: the new primary must be found, because its pushes go to those who listen there.
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
