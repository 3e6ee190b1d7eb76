//! ZooKeeper: one server that syncs every write to its disk, and the subjects that are measured on it.

use fencepost_testkit::servers::zookeeper::{ZooKeeperServer, ZooKeeperServerConfig};

use crate::compare::subject::{Subject, TASKS, sources};
use crate::compare::{Bench, BenchServer, Build, benches, java, ours, python};

/// A private server.
pub(crate) struct ZooKeeper {
    server: ZooKeeperServer,
    /// Each subject works below a node of its own, so that what an earlier one left does not matter.
    subjects: usize,
}

const CURATOR: &str = "Curator";
const BARE: &str = "bare create + delete";
const KAZOO: &str = "kazoo";
/// With more threads its interpreter is the bottleneck.
const KAZOO_TASKS: &[usize] = &[1, 64];

impl BenchServer for ZooKeeper {
    const NAME: &'static str = "zookeeper";
    const TITLE: &'static str = "ZooKeeper";
    const FLOOR: &'static str = BARE;
    const PARTICIPANTS: &'static str = "all of them are fair and have sessions that are kept alive";
    const SUBJECTS: &'static [(&'static str, Build)] = &[
        (ours::NAME, || Ok(ours::subject())),
        ("low-latency", || Ok(ours::low_latency())),
        (CURATOR, curator),
        (KAZOO, kazoo),
        (BARE, bare),
    ];
    const BENCHES: &'static [(&'static str, Bench<Self>)] =
        &[("uncontended", benches::uncontended), ("contended", benches::contended)];

    fn start() -> Result<Self, String> {
        Ok(Self { server: ZooKeeperServer::start(&ZooKeeperServerConfig::production_like()), subjects: 0 })
    }

    fn url(&self) -> String {
        format!("{}/bench{}", self.server.url(), self.subjects)
    }

    fn clear(&mut self) -> Result<(), String> {
        self.subjects += 1;
        Ok(())
    }

    fn describe(&mut self) -> Result<String, String> {
        let said = self.server.try_four_letter("srvr").map_err(|why| format!("srvr: {why}"))?;
        let version = said.split_once("version: ").map_or("", |(_, rest)| rest);
        let version = version.split('-').next().unwrap_or_default();
        Ok(format!("ZooKeeper {version}, one server, on the same machine; every write is synced to the disk"))
    }
}

fn curator() -> Result<Subject, String> {
    in_java(CURATOR, "mutex", "InterProcessMutex")
}

fn bare() -> Result<Subject, String> {
    in_java(BARE, "bare", "Curator's client, an ephemeral node, without a recipe")
}

fn in_java(name: &'static str, sort: &str, what: &str) -> Result<Subject, String> {
    let (mut program, version) =
        java::worker("curator", &sources("curator").join("pom.xml"), "curator-recipes")?;
    program.push(sort.into());
    Ok(Subject { name, version: format!("{version}, {what}"), program, tasks: TASKS })
}

fn kazoo() -> Result<Subject, String> {
    let (program, version) = python::script("kazoo_locks.py", "kazoo==")?;
    Ok(Subject { name: KAZOO, version, program, tasks: KAZOO_TASKS })
}
