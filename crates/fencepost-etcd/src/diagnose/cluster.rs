//! What the members' own figures mean for locks: decisions from what they have said.

use std::collections::BTreeSet;

use fencepost_core::{Error, Finding, Result};
use fencepost_net::Address;

use crate::proto::{AlarmMember, AlarmType, Member, StatusResponse};

/// What a server that was told nothing else keeps at most.
const DEFAULT_QUOTA: u64 = 2 << 30;

/// What the members have said.
pub(super) struct Cluster {
    /// Those whom the URL names, asked one by one.
    pub(super) asked: Vec<(Address, Result<StatusResponse>)>,
    /// All there are.
    pub(super) members: Result<Vec<Member>>,
    pub(super) alarms: Result<Vec<AlarmMember>>,
}

impl Cluster {
    pub(super) fn judge(&self, is_encrypted: bool) -> Vec<Finding> {
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

    fn statuses(&self) -> impl Iterator<Item = &StatusResponse> {
        self.asked.iter().filter_map(|(_, status)| status.as_ref().ok())
    }

    fn silent(&self) -> impl Iterator<Item = (&Address, &Error)> {
        self.asked.iter().filter_map(|(address, status)| Some((address, status.as_ref().err()?)))
    }

    /// How many different members have answered.
    fn answering(&self) -> usize {
        let ids = self.statuses().map(|status| status.header.map_or(0, |header| header.member_id));
        ids.collect::<BTreeSet<u64>>().len()
    }

    /// What a member is called.
    fn name_of(&self, id: u64) -> String {
        let members = self.members.as_deref().unwrap_or_default();
        let known = members.iter().find(|member| member.id == id && !member.name.is_empty());
        known.map_or_else(|| format!("{id:x}"), |member| member.name.clone())
    }

    /// What nobody has said.
    fn unknown(&self, check: &str) -> Finding {
        match self.silent().next() {
            Some((_, error)) => Finding::failed(check, error),
            None => Finding::warning(check, "could not be checked: no member was asked")
                .with_advice("name a member in the URL"),
        }
    }

    fn server(&self) -> Finding {
        let versions: BTreeSet<&str> = self.statuses().map(|status| status.version.as_str()).collect();
        if versions.is_empty() {
            return self.unknown("server");
        }
        let found = format!("etcd {}", versions.iter().copied().collect::<Vec<_>>().join(" and "));
        if let Some(flaw) = versions.iter().find_map(|version| flaw(version)) {
            return Finding::warning("server", format!("{found}, {flaw}"))
                .with_advice("consider a newer one: 3.4.31, 3.5.13 or later");
        }
        if self.has_several() && versions.iter().any(|version| revokes_late(version)) {
            let flaw = "whose leader may, after its disk has hung, revoke leases that another has renewed";
            return Finding::warning("server", format!("{found}, {flaw}")).with_advice(
                "consider a newer one, 3.4.31, 3.5.13 or later: Fencepost replaces its leases after a change of leader, other programs do not",
            );
        }
        Finding::ok("server", found)
    }

    /// Whether there may be more than one member.
    fn has_several(&self) -> bool {
        self.asked.len() > 1 || self.members.as_ref().is_ok_and(|members| members.len() > 1)
    }

    fn members(&self, all: usize) -> Finding {
        let (answering, silent) = (self.answering(), self.silent().count());
        let quorum = all / 2 + 1;
        // Nobody knows of those whom the URL does not name.
        let others = all.saturating_sub(answering + silent);
        let unasked = match others {
            0 => String::new(),
            _ => format!(", and {others} that the URL does not name were not asked"),
        };
        let found = format!("{answering} of {all} answer{unasked}");
        let Some((address, error)) = self.silent().next() else {
            return Finding::ok("members", format!("{found}; {}", tolerance(all.saturating_sub(quorum))));
        };
        let found = format!("{found}; {address} does not: {}", error.full_message());
        let spare = (answering + others).checked_sub(quorum);
        match spare {
            Some(0) => Finding::warning("members", found)
                .with_advice("bring it back: if one more fails, no lock can be taken or renewed"),
            Some(spare) => Finding::warning("members", found)
                .with_advice(format!("bring it back, or correct the URL; {}", tolerance(spare))),
            None => Finding::problem("members", found)
                .with_advice(format!("no lock can be taken or renewed until {quorum} of {all} serve")),
        }
    }

    /// Whether there is somebody else to turn to when a member fails.
    fn failover(&self, voters: &[&Member], is_encrypted: bool) -> Finding {
        let (all, named) = (voters.len(), self.answering() + self.silent().count());
        if all <= 1 {
            return Finding::ok("failover", "none: there is one member, and locks wait while it is down");
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
            format!("the URL names {named} of {all} members: when they fail, nobody else is asked"),
        )
        .with_advice(format!("name them all: {scheme}://{hosts}"))
    }

    fn leader(&self) -> Finding {
        let leaders: BTreeSet<(u64, u64)> =
            self.statuses().map(|status| (status.raft_term, status.leader)).collect();
        let Some((term, leader)) = leaders.last().copied() else { return self.unknown("leader") };
        if leaders.iter().any(|(_, leader)| *leader == 0) {
            return Finding::problem("leader", "none is known").with_advice(
                "no lock can be taken or renewed until one is elected: are most of the members up?",
            );
        }
        if leaders.len() > 1 {
            return Finding::warning("leader", "the members do not agree on who it is")
                .with_advice("an election may be under way: look again");
        }
        Finding::ok("leader", format!("{}, in term {term}", self.name_of(leader)))
    }

    fn alarms(&self, alarms: &[AlarmMember]) -> Finding {
        let raised: BTreeSet<String> = alarms
            .iter()
            .filter(|alarm| alarm.alarm != AlarmType::None as i32)
            .map(|alarm| {
                let what = AlarmType::try_from(alarm.alarm).map_or("of an unknown kind", |kind| match kind {
                    AlarmType::Nospace => "NOSPACE: nothing can be written",
                    AlarmType::Corrupt => "CORRUPT: the members do not have the same data",
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
            "make room (etcdctl compact, etcdctl defrag) or raise --quota-backend-bytes, then etcdctl alarm disarm"
        } else {
            "see etcdctl alarm list; a member whose data is wrong has to be removed and added again"
        };
        Finding::problem("alarms", raised.into_iter().collect::<Vec<_>>().join(", ")).with_advice(advice)
    }

    fn database(&self) -> Finding {
        let largest = self.statuses().max_by_key(|status| status.db_size);
        let Some(largest) = largest else { return self.unknown("database") };
        let (size, used) = (largest.db_size.unsigned_abs(), largest.db_size_in_use.unsigned_abs());
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let found = format!("{} MiB, of which {} MiB are in use", mib(size), mib(used));
        // The quota itself is not told. Whoever is beyond the default has another.
        if (DEFAULT_QUOTA / 10 * 9..=DEFAULT_QUOTA).contains(&size) {
            return Finding::warning("database", format!("{found}: the default quota is {} MiB", mib(DEFAULT_QUOTA)))
                .with_advice("make room (etcdctl compact, etcdctl defrag) or raise --quota-backend-bytes: when it is full no lock can be taken");
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

/// What is known to be wrong with a version.
fn flaw(version: &str) -> Option<&'static str> {
    match numbers(version).as_slice() {
        [] | [0..=2, ..] | [3, 0..=3, ..] => Some("older than what Fencepost is tested with"),
        [3, 4, 0..=21, ..] | [3, 5, 0..=5, ..] => Some("whose members can come to have different data"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
