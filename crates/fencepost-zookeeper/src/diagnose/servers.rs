//! Findings about the servers of an ensemble, from their own reports. No I/O.

use std::collections::BTreeSet;

use fencepost_core::{Error, ErrorKind, Finding, Result};
use fencepost_net::Address;

use super::srvr::ServerReport;

/// The reports of the servers.
pub(super) struct ServerReports {
    /// The report of each server that the URL names.
    pub(super) reports: Vec<(Address, Result<ServerReport>)>,
    /// The configuration node of the ensemble, which lists its members.
    pub(super) members: Result<Vec<u8>>,
}

impl ServerReports {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.server()];
        match self.voters() {
            Ok(all) => findings.extend([self.servers(all), self.failover(all), self.leader(all)]),
            Err(error) => findings.extend(
                ["servers", "failover", "leader"]
                    .map(|check| Finding::from_result(check, Err(error.clone()))),
            ),
        }
        findings
    }

    fn available(&self) -> impl Iterator<Item = (&Address, &ServerReport)> {
        self.reports.iter().filter_map(|(address, report)| Some((address, report.as_ref().ok()?)))
    }

    /// Returns why servers that are running did not report.
    fn withheld(&self) -> impl Iterator<Item = &Error> {
        self.reports.iter().filter_map(|(_, report)| report.as_ref().err()).filter(|it| is_withheld(it))
    }

    fn unreachable(&self) -> impl Iterator<Item = (&Address, &Error)> {
        let failed =
            self.reports.iter().filter_map(|(address, report)| Some((address, report.as_ref().err()?)));
        failed.filter(|(_, error)| !is_withheld(error))
    }

    /// Returns how many servers elect the leader. A standalone server does not list members.
    fn voters(&self) -> Result<usize> {
        let text = self.members.as_ref().map_err(Error::clone)?;
        let text = String::from_utf8_lossy(text);
        let servers = text.lines().filter(|line| line.starts_with("server."));
        Ok(servers.filter(|line| !line.contains(":observer")).count().max(1))
    }

    fn server(&self) -> Finding {
        let versions: BTreeSet<&str> = self.available().map(|(_, report)| report.version.as_str()).collect();
        if versions.is_empty() {
            let error = self.reports.iter().find_map(|(_, report)| report.as_ref().err());
            return super::not_known("server", error.map_or(Ok(()), |error| Err(error.clone())));
        }
        let found = format!("ZooKeeper {}", versions.iter().copied().collect::<Vec<_>>().join(" and "));
        if versions.iter().any(|version| is_old(version)) {
            return Finding::warning("server", found)
                .with_advice("3.6 or newer is needed, and 3.8 is tested: consider an upgrade");
        }
        Finding::ok("server", found)
    }

    fn servers(&self, all: usize) -> Finding {
        let serving = self.available().filter(|(_, report)| report.mode != "read-only").count();
        let (withheld, unreachable) = (self.withheld().count(), self.unreachable().count());
        let quorum = all / 2 + 1;
        let others = all.saturating_sub(self.reports.len());
        let not_queried = match others {
            0 => String::new(),
            _ => format!("; {others} that the URL does not name were not queried"),
        };
        let found = format!("{serving} of {all} serve{not_queried}");
        if let Some((address, error)) = self.unreachable().next() {
            let found = format!("{found}; {address} does not: {}", error.full_message());
            return match (serving + withheld + others).checked_sub(quorum) {
                Some(0) => Finding::warning("servers", found)
                    .with_advice("restore it: if one more fails, no lock can be acquired or renewed"),
                Some(spare) => Finding::warning("servers", found)
                    .with_advice(format!("restore it, or correct the URL; {}", tolerance(spare))),
                None => Finding::problem("servers", found)
                    .with_advice(format!("no lock can be acquired or renewed until {quorum} of {all} serve")),
            };
        }
        match self.withheld().next() {
            Some(error) => Finding::not_checked("servers", error),
            None if serving + unreachable < self.reports.len() => {
                Finding::warning("servers", format!("{found}; the others are read-only"))
                    .with_advice("a server without a leader grants no locks: check its log")
            }
            None => Finding::ok("servers", format!("{found}; {}", tolerance(all.saturating_sub(quorum)))),
        }
    }

    /// Checks whether the client has other servers to connect to when one fails.
    fn failover(&self, all: usize) -> Finding {
        let named = self.reports.len();
        if all <= 1 {
            return Finding::ok(
                "failover",
                "none: there is one server; no lock can be acquired or renewed while it is down",
            );
        }
        if named >= all {
            return Finding::ok(
                "failover",
                format!("the URL names {named} servers, and {all} elect the leader"),
            );
        }
        Finding::warning(
            "failover",
            format!("the URL names {named} of {all} servers: if these fail, no other server is tried"),
        )
        .with_advice("name them all: zk://HOST,HOST,HOST/CHROOT")
    }

    fn leader(&self, all: usize) -> Finding {
        let mut leading =
            self.available().filter(|(_, report)| matches!(report.mode.as_str(), "leader" | "standalone"));
        match leading.next() {
            Some((address, report)) if report.mode == "leader" => Finding::ok("leader", address.to_string()),
            Some((address, _)) => Finding::ok("leader", format!("{address} (standalone)")),
            None if self.available().count() < all => {
                Finding::ok("leader", "none of the servers that were queried")
            }
            None => Finding::warning("leader", "no server reports to be the leader")
                .with_advice("an election may be in progress: run the doctor again"),
        }
    }
}

/// Returns whether a server is running and only does not report.
fn is_withheld(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported)
}

fn tolerance(spare: usize) -> String {
    match spare {
        0 => "none can fail without stopping locks".to_owned(),
        _ => format!("{spare} can fail without stopping locks"),
    }
}

/// Returns whether a version lacks containers and recursive watches, which came with 3.6.
fn is_old(version: &str) -> bool {
    let numbers: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
    numbers.as_slice() < [3, 6].as_slice()
}

#[cfg(test)]
mod tests;
