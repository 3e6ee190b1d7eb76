//! Derives findings from the statuses that the members report.

use std::collections::BTreeSet;

use fencepost_core::{Error, Finding, Result};
use fencepost_net::Address;

use crate::proto::{AlarmMember, AlarmType, Member, StatusResponse};

/// The default of `--quota-backend-bytes`.
const DEFAULT_QUOTA: u64 = 2 << 30;

/// What the members have reported.
pub(super) struct ClusterReport {
    /// The status of each member that the URL names.
    pub(super) statuses: Vec<(Address, Result<StatusResponse>)>,
    /// All members of the cluster.
    pub(super) members: Result<Vec<Member>>,
    pub(super) alarms: Result<Vec<AlarmMember>>,
}

impl ClusterReport {
    pub(super) fn findings(&self, is_encrypted: bool) -> Vec<Finding> {
        let mut findings = vec![self.server()];
        match &self.members {
            Ok(members) => {
                let voters: Vec<&Member> = members.iter().filter(|member| !member.is_learner).collect();
                findings.push(self.members(voters.len()));
                findings.push(self.failover(&voters, is_encrypted));
            }
            Err(error) => findings
                .extend(["members", "failover"].map(|check| Finding::from_result(check, Err(error.clone())))),
        }
        findings.push(self.leader());
        findings.push(match &self.alarms {
            Ok(alarms) => self.alarms(alarms),
            Err(error) => Finding::from_result("alarms", Err(error.clone())),
        });
        findings.push(self.database());
        findings
    }

    fn responding(&self) -> impl Iterator<Item = &StatusResponse> {
        self.statuses.iter().filter_map(|(_, status)| status.as_ref().ok())
    }

    fn unresponsive(&self) -> impl Iterator<Item = (&Address, &Error)> {
        self.statuses.iter().filter_map(|(address, status)| Some((address, status.as_ref().err()?)))
    }

    /// Returns the number of distinct members that responded.
    fn responding_count(&self) -> usize {
        let ids = self.responding().map(|status| status.header.map_or(0, |header| header.member_id));
        ids.collect::<BTreeSet<u64>>().len()
    }

    /// Returns the name of a member, or its id.
    fn name_of(&self, id: u64) -> String {
        let members = self.members.as_deref().unwrap_or_default();
        let known = members.iter().find(|member| member.id == id && !member.name.is_empty());
        known.map_or_else(|| format!("{id:x}"), |member| member.name.clone())
    }

    /// Returns the finding of a check for which no member responded.
    fn unknown(&self, check: &str) -> Finding {
        match self.unresponsive().next() {
            Some((_, error)) => Finding::failed(check, error),
            None => Finding::warning(check, "could not be checked: the URL names no member")
                .with_advice("add a member to the URL"),
        }
    }

    fn server(&self) -> Finding {
        let versions: BTreeSet<&str> = self.responding().map(|status| status.version.as_str()).collect();
        if versions.is_empty() {
            return self.unknown("server");
        }
        let found = format!("etcd {}", versions.iter().copied().collect::<Vec<_>>().join(" and "));
        if let Some(flaw) = versions.iter().find_map(|version| flaw(version)) {
            return Finding::warning("server", format!("{found}, {flaw}"))
                .with_advice("upgrade to 3.4.31, 3.5.13 or later");
        }
        if self.has_several() && versions.iter().any(|version| revokes_late(version)) {
            let flaw = "whose former leader may revoke renewed leases after its disk hung";
            return Finding::warning("server", format!("{found}, {flaw}")).with_advice(
                "upgrade to 3.4.31, 3.5.13 or later: Fencepost replaces its leases after a change of leader, other programs do not",
            );
        }
        Finding::ok("server", found)
    }

    /// Returns whether there may be more than one member.
    fn has_several(&self) -> bool {
        self.statuses.len() > 1 || self.members.as_ref().is_ok_and(|members| members.len() > 1)
    }

    fn members(&self, all: usize) -> Finding {
        let (responding, unresponsive) = (self.responding_count(), self.unresponsive().count());
        let quorum = all / 2 + 1;
        // The state of members that the URL does not name is unknown.
        let others = all.saturating_sub(responding + unresponsive);
        let not_named = match others {
            0 => String::new(),
            _ => format!(", and {others} not named by the URL were not checked"),
        };
        let found = format!("{responding} of {all} responded{not_named}");
        let Some((address, error)) = self.unresponsive().next() else {
            return Finding::ok("members", format!("{found}; {}", tolerance(all.saturating_sub(quorum))));
        };
        let found = format!("{found}; {address} did not: {}", error.full_message());
        let spare = (responding + others).checked_sub(quorum);
        match spare {
            Some(0) => Finding::warning("members", found)
                .with_advice("restart it: if one more member fails, no lock can be acquired or renewed"),
            Some(spare) => Finding::warning("members", found)
                .with_advice(format!("restart it, or correct the URL; {}", tolerance(spare))),
            None => Finding::problem("members", found).with_advice(format!(
                "no lock can be acquired or renewed until {quorum} of {all} members are up"
            )),
        }
    }

    /// Checks whether the client can use another member when one fails.
    fn failover(&self, voters: &[&Member], is_encrypted: bool) -> Finding {
        let (all, named) = (voters.len(), self.responding_count() + self.unresponsive().count());
        if all <= 1 {
            return Finding::ok(
                "failover",
                "none: there is one member, and locks are unavailable while it is down",
            );
        }
        if named >= all {
            return Finding::ok("failover", format!("the URL names all {all} members"));
        }
        let hosts = voters.iter().filter_map(|member| {
            let url = member.client_ur_ls.first()?;
            Some(url.split_once("://").map_or(url.as_str(), |(_, host)| host))
        });
        let hosts = hosts.collect::<Vec<_>>().join(",");
        let scheme = if is_encrypted { "etcds" } else { "etcd" };
        Finding::warning(
            "failover",
            format!("the URL names {named} of {all} members: when they fail, no other is used"),
        )
        .with_advice(format!("name them all: {scheme}://{hosts}"))
    }

    fn leader(&self) -> Finding {
        let leaders: BTreeSet<(u64, u64)> =
            self.responding().map(|status| (status.raft_term, status.leader)).collect();
        let Some((term, leader)) = leaders.last().copied() else { return self.unknown("leader") };
        if leaders.iter().any(|(_, leader)| *leader == 0) {
            return Finding::problem("leader", "none is known").with_advice(
                "no lock can be acquired or renewed until one is elected: check that a majority of members is up",
            );
        }
        if leaders.len() > 1 {
            return Finding::warning("leader", "the members report different leaders")
                .with_advice("an election may be in progress: run the check again");
        }
        Finding::ok("leader", format!("{}, in term {term}", self.name_of(leader)))
    }

    fn alarms(&self, alarms: &[AlarmMember]) -> Finding {
        let raised: BTreeSet<String> = alarms
            .iter()
            .filter(|alarm| alarm.alarm != AlarmType::None as i32)
            .map(|alarm| {
                let what = AlarmType::try_from(alarm.alarm).map_or("of an unknown kind", |kind| match kind {
                    AlarmType::Nospace => "NOSPACE: the cluster accepts no writes",
                    AlarmType::Corrupt => "CORRUPT: the data of the members differs",
                    AlarmType::None => "none",
                });
                format!("{what} (member {})", self.name_of(alarm.member_id))
            })
            .collect();
        if raised.is_empty() {
            return Finding::ok("alarms", "none");
        }
        let is_full = alarms.iter().all(|alarm| alarm.alarm == AlarmType::Nospace as i32);
        let advice = if is_full {
            "free space (etcdctl compact, etcdctl defrag) or raise --quota-backend-bytes, then run etcdctl alarm disarm"
        } else {
            "see etcdctl alarm list; remove a member with wrong data and add it again"
        };
        Finding::problem("alarms", raised.into_iter().collect::<Vec<_>>().join(", ")).with_advice(advice)
    }

    fn database(&self) -> Finding {
        let largest = self.responding().max_by_key(|status| status.db_size);
        let Some(largest) = largest else { return self.unknown("database") };
        let (size, used) = (largest.db_size.unsigned_abs(), largest.db_size_in_use.unsigned_abs());
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let found = format!("{} MiB, of which {} MiB are in use", mib(size), mib(used));
        // Members do not report their quota. A database beyond the default has another one.
        if (DEFAULT_QUOTA / 10 * 9..=DEFAULT_QUOTA).contains(&size) {
            return Finding::warning("database", format!("{found}: the default quota is {} MiB", mib(DEFAULT_QUOTA)))
                .with_advice("free space (etcdctl compact, etcdctl defrag) or raise --quota-backend-bytes: when it is full, no lock can be acquired");
        }
        Finding::ok("database", found)
    }
}

fn tolerance(spare: usize) -> String {
    match spare {
        0 => "none can fail without stopping locks".to_owned(),
        1 => "1 can fail without stopping locks".to_owned(),
        _ => format!("{spare} can fail without stopping locks"),
    }
}

fn numbers(version: &str) -> Vec<u32> {
    let number = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok();
    version.split('.').map_while(number).collect()
}

/// Returns whether a former leader of this version may revoke leases (etcd issues 12528 and 15247).
fn revokes_late(version: &str) -> bool {
    matches!(numbers(version).as_slice(), [3, 0..=3, ..] | [3, 4, 0..=30, ..] | [3, 5, 0..=12, ..])
}

/// Returns the known flaw of a version.
fn flaw(version: &str) -> Option<&'static str> {
    match numbers(version).as_slice() {
        [] | [0..=2, ..] | [3, 0..=3, ..] => Some("older than what Fencepost is tested with"),
        [3, 4, 0..=21, ..] | [3, 5, 0..=5, ..] => Some("in which the data of members can diverge"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
