//! A cluster of three primaries, and slots that are migrated between them step by step.

use std::process::Command;

use super::{RedisServer, RedisServerConfig};
use crate::wait;

/// The number of keys that are migrated at a time.
const BATCH: &str = "100";

/// Whether the primaries of a cluster have replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// No replicas.
    None,
    /// One replica for each primary.
    OneEach,
}

/// Three primaries that share the slots, optionally with a replica each.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
}

impl Cluster {
    /// Starts the nodes, and waits until each of them reports a complete cluster.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start(replicas: Replicas) -> Self {
        Self::start_with(&RedisServerConfig::plain(), replicas)
    }

    /// Like [`Cluster::start`], with nodes of this configuration.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start_with(config: &RedisServerConfig, replicas: Replicas) -> Self {
        let config =
            config.clone().with_config("cluster-enabled yes").with_config("cluster-node-timeout 2000");
        let (count, each) = if replicas == Replicas::None { (3, "0") } else { (6, "1") };
        let nodes: Vec<RedisServer> = (0..count).map(|_| RedisServer::start(&config)).collect();
        let mut create = Command::new("redis-cli");
        create
            .args(["--cluster", "create"])
            .args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())));
        create.args(["--cluster-replicas", each, "--cluster-yes"]);
        if let Some(password) = config.password() {
            create.env("REDISCLI_AUTH", password);
        }
        let created = create.output().expect("redis-cli can be started");
        let said = String::from_utf8_lossy(&created.stdout);
        assert!(created.status.success(), "the cluster cannot be made: {said}");
        let cluster = Self { nodes };
        wait::block_until("the cluster is complete", || cluster.is_complete());
        cluster
    }

    /// Returns whether every node knows all nodes and serves, and the replicas are in sync.
    fn is_complete(&self) -> bool {
        let knows_all = format!("cluster_known_nodes:{}", self.nodes.len());
        let replicas = self.nodes.len() - 3;
        let follow = self
            .nodes
            .iter()
            .filter(|node| node.cli(&["INFO", "replication"]).contains("master_link_status:up"));
        if follow.count() < replicas {
            return false;
        }
        self.nodes.iter().all(|node| {
            let info = node.cli(&["CLUSTER", "INFO"]);
            let nodes = node.cli(&["CLUSTER", "NODES"]);
            info.contains("cluster_state:ok")
                && info.contains(&knows_all)
                && nodes.lines().filter(|line| line.contains("slave")).count() == replicas
                && self.nodes.iter().all(|other| nodes.contains(&other.id()))
        })
    }

    /// Returns the ports of all nodes, the primaries first.
    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(RedisServer::port).collect()
    }

    /// Returns a node: 0 to 2 are the primaries at first.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index]
    }

    /// Sends a command to a node; see [`RedisServer::cli`].
    ///
    /// # Panics
    /// If the reply is an error.
    #[track_caller]
    pub fn cli(&self, index: usize, command: &[&str]) -> String {
        self.node(index).cli(command)
    }

    /// Returns the slot of a key.
    ///
    /// # Panics
    /// If the first node does not return it.
    pub fn slot_of(&self, key: &str) -> u16 {
        self.cli(0, &["CLUSTER", "KEYSLOT", key]).parse().expect("a slot is a number")
    }

    /// Returns the node that serves the slot, by its own account.
    ///
    /// # Panics
    /// If no node does.
    pub fn owner_of(&self, slot: u16) -> usize {
        let serves =
            |node: &&RedisServer| node.own_slots().any(|(first, last)| (first..=last).contains(&slot));
        let owner = self.nodes.iter().filter(|node| node.try_cli(&["PING"]).is_ok()).find(serves);
        let port = owner.expect("some node serves the slot").port();
        self.nodes.iter().position(|node| node.port() == port).expect("it is one of ours")
    }

    /// Starts the migration of a slot from one node to another. Until [`SlotMigration::finish`] the old owner replies `ASK`
    /// for keys that it does not have, and `TRYAGAIN` for several keys of which it has some.
    ///
    /// # Panics
    /// If a node returns an error.
    pub fn migrate_slot(&self, slot: u16, from: usize, to: usize) -> SlotMigration<'_> {
        let migration =
            SlotMigration { cluster: self, slot: slot.to_string(), from: self.node(from), to: self.node(to) };
        migration.to.cli(&["CLUSTER", "SETSLOT", &migration.slot, "IMPORTING", &migration.from.id()]);
        migration.from.cli(&["CLUSTER", "SETSLOT", &migration.slot, "MIGRATING", &migration.to.id()]);
        migration
    }
}

impl RedisServer {
    fn id(&self) -> String {
        self.cli(&["CLUSTER", "MYID"])
    }

    /// Returns the slot ranges of the node, by its own account; migrating slots are in brackets.
    fn own_slots(&self) -> impl Iterator<Item = (u16, u16)> + use<> {
        let nodes = self.cli(&["CLUSTER", "NODES"]);
        let mine = nodes.lines().find(|line| line.contains("myself,master")).unwrap_or_default();
        let ranges: Vec<String> = mine.split(' ').skip(8).map(str::to_owned).collect();
        ranges.into_iter().filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((&range, &range));
            Some((first.parse().ok()?, last.parse().ok()?))
        })
    }
}

/// A slot that is being migrated from one node to another.
#[derive(Debug)]
pub struct SlotMigration<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: &'a RedisServer,
    to: &'a RedisServer,
}

impl SlotMigration<'_> {
    /// Migrates these keys, and no others.
    ///
    /// # Panics
    /// If a node returns an error.
    pub fn move_keys(&self, keys: &[&str]) {
        let port = self.to.port().to_string();
        let command = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
        let password = self.to.config.password().map_or(vec![], |password| vec!["AUTH", password]);
        self.from.cli(&[&command, password.as_slice(), &["KEYS"], keys].concat());
    }

    /// Migrates one batch of the keys in the slot; returns their number.
    ///
    /// # Panics
    /// If a node returns an error.
    pub fn move_some(&self) -> usize {
        let keys = self.from.cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot, BATCH]);
        let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
        if !keys.is_empty() {
            self.move_keys(&keys);
        }
        keys.len()
    }

    /// Migrates the remaining keys and announces the new owner to every primary.
    ///
    /// # Panics
    /// If a node returns an error.
    pub fn finish(self) {
        while self.move_some() > 0 {}
        let id = self.to.id();
        let others = self
            .cluster
            .nodes
            .iter()
            .filter(|node| ![self.to.port(), self.from.port()].contains(&node.port()));
        // The new owner first: if the old one dropped the slot before, no node would serve it for a moment.
        for node in [self.to, self.from].into_iter().chain(others) {
            if node.cli(&["ROLE"]).starts_with("master") {
                node.cli(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id]);
            }
        }
    }
}
