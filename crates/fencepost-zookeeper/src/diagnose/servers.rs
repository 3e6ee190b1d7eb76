//! What the servers' own words mean for locks: decisions from what they have said.

use std::collections::BTreeSet;

use fencepost_core::{Error, ErrorKind, Finding, Result};
use fencepost_net::Address;

use super::srvr::ServerReport;

/// What the servers have said.
pub(super) struct ServerReports {
    /// Those whom the URL names, asked one by one.
    pub(super) asked: Vec<(Address, Result<ServerReport>)>,
    /// The node that says who belongs to the ensemble.
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

    fn answers(&self) -> impl Iterator<Item = (&Address, &ServerReport)> {
        self.asked.iter().filter_map(|(address, answer)| Some((address, answer.as_ref().ok()?)))
    }

    /// Those who do not say how they are, although they are there.
    fn discreet(&self) -> impl Iterator<Item = &Error> {
        self.asked.iter().filter_map(|(_, answer)| answer.as_ref().err()).filter(|it| is_discreet(it))
    }

    fn silent(&self) -> impl Iterator<Item = (&Address, &Error)> {
        let failed =
            self.asked.iter().filter_map(|(address, answer)| Some((address, answer.as_ref().err()?)));
        failed.filter(|(_, error)| !is_discreet(error))
    }

    /// How many servers elect the leader. A server that stands alone does not say who belongs to it.
    fn voters(&self) -> Result<usize> {
        let text = self.members.as_ref().map_err(Error::clone)?;
        let text = String::from_utf8_lossy(text);
        let servers = text.lines().filter(|line| line.starts_with("server."));
        Ok(servers.filter(|line| !line.contains(":observer")).count().max(1))
    }

    fn server(&self) -> Finding {
        let versions: BTreeSet<&str> = self.answers().map(|(_, answer)| answer.version.as_str()).collect();
        if versions.is_empty() {
            let why = self.asked.iter().find_map(|(_, answer)| answer.as_ref().err());
            return super::nothing("server", why.map_or(Ok(()), |error| Err(error.clone())));
        }
        let found = format!("ZooKeeper {}", versions.iter().copied().collect::<Vec<_>>().join(" and "));
        if versions.iter().any(|version| is_old(version)) {
            return Finding::warning("server", found)
                .with_advice("it works from 3.6 on, and is tested with 3.8: consider a newer one");
        }
        Finding::ok("server", found)
    }

    fn servers(&self, all: usize) -> Finding {
        let serving = self.answers().filter(|(_, answer)| answer.mode != "read-only").count();
        let (discreet, silent) = (self.discreet().count(), self.silent().count());
        let quorum = all / 2 + 1;
        let others = all.saturating_sub(self.asked.len());
        let unasked = match others {
            0 => String::new(),
            _ => format!(", and {others} that the URL does not name were not asked"),
        };
        let found = format!("{serving} of {all} serve{unasked}");
        if let Some((address, error)) = self.silent().next() {
            let found = format!("{found}; {address} does not: {}", error.full_message());
            return match (serving + discreet + others).checked_sub(quorum) {
                Some(0) => Finding::warning("servers", found)
                    .with_advice("bring it back: if one more fails, no lock can be taken or renewed"),
                Some(spare) => Finding::warning("servers", found)
                    .with_advice(format!("bring it back, or correct the URL; {}", tolerance(spare))),
                None => Finding::problem("servers", found)
                    .with_advice(format!("no lock can be taken or renewed until {quorum} of {all} serve")),
            };
        }
        match self.discreet().next() {
            Some(error) => Finding::not_checked("servers", error),
            None if serving + silent < self.asked.len() => {
                Finding::warning("servers", format!("{found}; the others only let read"))
                    .with_advice("a server without a leader takes no locks: look into its log")
            }
            None => Finding::ok("servers", format!("{found}; {}", tolerance(all.saturating_sub(quorum)))),
        }
    }

    /// Whether there is somebody else to turn to when a server fails.
    fn failover(&self, all: usize) -> Finding {
        let named = self.asked.len();
        if all <= 1 {
            return Finding::ok("failover", "none: there is one server, and locks wait while it is down");
        }
        if named >= all {
            return Finding::ok(
                "failover",
                format!("the URL names {named} servers, and {all} elect the leader"),
            );
        }
        Finding::warning(
            "failover",
            format!("the URL names {named} of {all} servers: when they fail, nobody else is asked"),
        )
        .with_advice("name them all: zk://HOST,HOST,HOST/CHROOT")
    }

    fn leader(&self, all: usize) -> Finding {
        let mut leading =
            self.answers().filter(|(_, answer)| matches!(answer.mode.as_str(), "leader" | "standalone"));
        match leading.next() {
            Some((address, answer)) if answer.mode == "leader" => Finding::ok("leader", address.to_string()),
            Some((address, _)) => Finding::ok("leader", format!("{address}, which stands alone")),
            None if self.answers().count() < all => {
                Finding::ok("leader", "none of those that have said how they are")
            }
            None => Finding::warning("leader", "no server says that it leads")
                .with_advice("an election may be under way: look again"),
        }
    }
}

/// Whether a server is there, and only does not say how it is.
fn is_discreet(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported)
}

fn tolerance(spare: usize) -> String {
    match spare {
        0 => "none can fail without stopping locks".to_owned(),
        _ => format!("{spare} can fail without stopping locks"),
    }
}

/// Containers and recursive watches came with 3.6.
fn is_old(version: &str) -> bool {
    let numbers: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
    numbers.as_slice() < [3, 6].as_slice()
}

#[cfg(test)]
mod tests;
