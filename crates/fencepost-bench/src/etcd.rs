//! etcd: one server that syncs every write to its disk, and the subjects that are measured on it.

use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig};

use crate::compare::subject::{self, Subject, TASKS};
use crate::compare::{Bench, BenchServer, Build, benches, go, ours};

/// A private server.
pub(crate) struct Etcd {
    server: EtcdServer,
    /// Each subject has a namespace of its own, so that what an earlier one left does not matter.
    subjects: usize,
}

const MUTEX: &str = "concurrency.Mutex";
const BARE: &str = "bare put + delete";

impl BenchServer for Etcd {
    const NAME: &'static str = "etcd";
    const TITLE: &'static str = "etcd";
    const FLOOR: &'static str = BARE;
    const PARTICIPANTS: &'static str = "all of them are fair and have leases that are kept alive";
    const SUBJECTS: &'static [(&'static str, Build)] = &[
        (ours::NAME, || Ok(ours::subject())),
        ("low-latency", || Ok(ours::low_latency())),
        (MUTEX, mutex),
        (BARE, bare),
    ];
    const BENCHES: &'static [(&'static str, Bench<Self>)] =
        &[("uncontended", benches::uncontended), ("contended", benches::contended)];

    fn start() -> Result<Self, String> {
        subject::require("etcd")?;
        subject::require("etcdctl")?;
        Ok(Self { server: EtcdServer::start(&EtcdServerConfig::plain()), subjects: 0 })
    }

    fn url(&self) -> String {
        format!("{}?namespace=bench{}", self.server.url(), self.subjects)
    }

    fn clear(&mut self) -> Result<(), String> {
        self.subjects += 1;
        // Without this, later subjects would pay for the history of earlier ones.
        let status = self.server.try_ctl(&["endpoint", "status", "--write-out=json"])?;
        let revision = number_after(&status, "\"revision\":");
        match self.server.try_ctl(&["compact", "--physical", revision]) {
            Err(why) if !why.contains("has been compacted") => Err(why),
            _ => Ok(()),
        }
    }

    fn describe(&mut self) -> Result<String, String> {
        let version = self.server.try_ctl(&["endpoint", "status", "--write-out=fields"])?;
        let version = subject::after(&version, "\"Version\" : \"");
        Ok(format!("etcd {version}, one member, on the same machine; every write is synced to the disk"))
    }
}

fn mutex() -> Result<Subject, String> {
    peer(MUTEX, "mutex", "the official client for Go", TASKS)
}

fn bare() -> Result<Subject, String> {
    peer(BARE, "bare", "the official client for Go, put if absent and delete, without a recipe", TASKS)
}

fn peer(name: &'static str, sort: &str, what: &str, tasks: &'static [usize]) -> Result<Subject, String> {
    let (program, version) = go::program("etcd", "client/v3 v")?;
    let version = format!("{version}, {what}");
    Ok(Subject { name, version, program: vec![program.into(), sort.into()], tasks })
}

/// Returns the digits after the mark.
fn number_after<'a>(text: &'a str, mark: &str) -> &'a str {
    let rest = text.split_once(mark).map_or("", |(_, rest)| rest);
    rest.split(|end: char| !end.is_ascii_digit()).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_revision_is_read_from_json() {
        assert_eq!(number_after("{\"member_id\":7,\"revision\":42,\"raft_term\":2}", "\"revision\":"), "42");
        assert_eq!(number_after("{}", "\"revision\":"), "");
    }
}
