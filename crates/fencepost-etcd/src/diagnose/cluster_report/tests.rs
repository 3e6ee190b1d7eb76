//! Findings on clusters in various states.

use fencepost_core::{ErrorKind, Severity};

use super::*;
use crate::proto::ResponseHeader;

fn status(id: u64) -> StatusResponse {
    StatusResponse {
        header: Some(ResponseHeader { member_id: id, ..ResponseHeader::default() }),
        version: "3.5.21".into(),
        db_size: 20 << 20,
        db_size_in_use: 1 << 20,
        leader: 1,
        raft_term: 7,
        ..StatusResponse::default()
    }
}

fn member(id: u64) -> Member {
    let client_ur_ls = vec![format!("http://h{id}:2379")];
    Member { id, name: format!("m{id}"), client_ur_ls, ..Member::default() }
}

/// Returns a cluster of this size, of which the URL names these members; 0 stands for one that does not respond.
fn cluster(all: u64, named: &[u64]) -> ClusterReport {
    let statuses = named.iter().map(|id| {
        let unreachable = || Error::new(ErrorKind::Unreachable, "connection refused");
        let address = Address { host: format!("h{id}"), port: 2379 };
        (address, if *id == 0 { Err(unreachable()) } else { Ok(status(*id)) })
    });
    ClusterReport {
        statuses: statuses.collect(),
        members: Ok((1..=all).map(member).collect()),
        alarms: Ok(Vec::new()),
    }
}

/// Returns all findings that are not ok.
fn not_ok(cluster: &ClusterReport) -> Vec<(String, Severity)> {
    let findings = cluster.findings(false);
    assert!(findings.iter().all(|it| it.severity == Severity::Ok || it.advice.is_some()), "{findings:?}");
    let not_ok = findings.into_iter().filter(|finding| finding.severity != Severity::Ok);
    not_ok.map(|finding| (finding.check, finding.severity)).collect()
}

fn found(cluster: &ClusterReport, check: &str) -> Finding {
    let mut findings = cluster.findings(false);
    let at = findings.iter().position(|finding| finding.check == check).expect("the check exists");
    findings.swap_remove(at)
}

#[test]
fn a_healthy_cluster_is_ok() {
    for healthy in [cluster(1, &[1]), cluster(3, &[1, 2, 3]), cluster(5, &[5, 4, 3, 2, 1])] {
        assert_eq!(not_ok(&healthy), []);
    }
    assert_eq!(
        found(&cluster(3, &[1, 2, 3]), "members").found,
        "3 of 3 responded; 1 can fail without stopping locks"
    );
    assert_eq!(
        found(&cluster(1, &[1]), "members").found,
        "1 of 1 responded; none can fail without stopping locks"
    );
    assert_eq!(found(&cluster(1, &[1]), "leader").found, "m1, in term 7");
}

#[test]
fn members_that_do_not_respond_or_are_not_named() {
    use Severity::{Problem, Warning};
    let expect = |cluster: ClusterReport, expected: &[(&str, Severity)]| {
        let expected: Vec<_> = expected.iter().map(|(check, is)| ((*check).to_owned(), *is)).collect();
        assert_eq!(not_ok(&cluster), expected);
    };
    expect(cluster(3, &[1, 2, 0]), &[("members", Warning)]);
    expect(cluster(5, &[1, 2, 3, 4, 0]), &[("members", Warning)]);
    expect(cluster(3, &[1, 0, 0]), &[("members", Problem)]);
    expect(cluster(3, &[1]), &[("failover", Warning)]);
    expect(cluster(3, &[1, 2]), &[("failover", Warning)]);
    // Two addresses of one member count as one member.
    expect(cluster(3, &[1, 1, 1]), &[("failover", Warning)]);
    let advice = found(&cluster(3, &[1]), "failover").advice.unwrap();
    assert_eq!(advice, "name them all: etcd://h1:2379,h2:2379,h3:2379");
    let unresponsive = found(&cluster(3, &[1, 2, 0]), "members");
    assert_eq!(unresponsive.found, "2 of 3 responded; h0:2379 did not: connection refused");
    assert!(unresponsive.advice.unwrap().contains("one more"));
}

#[test]
fn learners_do_not_count() {
    let mut learning = cluster(4, &[1, 2, 3]);
    learning.members.as_mut().unwrap()[3].is_learner = true;
    assert_eq!(not_ok(&learning), []);
}

#[test]
fn alarms_are_problems() {
    for (alarm, expected) in
        [(AlarmType::Nospace as i32, "NOSPACE"), (AlarmType::Corrupt as i32, "CORRUPT"), (9, "unknown")]
    {
        let mut alarmed = cluster(3, &[1, 2, 3]);
        alarmed.alarms = Ok(vec![AlarmMember { member_id: 2, alarm }]);
        assert_eq!(not_ok(&alarmed), [("alarms".to_owned(), Severity::Problem)]);
        let finding = found(&alarmed, "alarms").found;
        assert!(finding.contains(expected) && finding.contains("m2"), "{finding}");
    }
}

#[test]
fn a_denied_check_is_a_warning() {
    let denied = || Error::new(ErrorKind::Denied, "permission denied").with_hint("grant it");
    let mut denied_cluster = cluster(1, &[1]);
    denied_cluster.alarms = Err(denied());
    denied_cluster.members = Err(denied());
    let expected = ["members", "failover", "alarms"].map(|check| (check.to_owned(), Severity::Warning));
    assert_eq!(not_ok(&denied_cluster), expected);
}

#[test]
fn a_database_near_the_default_quota_is_a_warning() {
    let sized = |size: i64| {
        let mut sized = cluster(1, &[1]);
        sized.statuses[0].1.as_mut().unwrap().db_size = size;
        found(&sized, "database").severity
    };
    assert_eq!(sized(1 << 30), Severity::Ok);
    assert_eq!(sized(2_000 << 20), Severity::Warning);
    assert_eq!(sized(3 << 30), Severity::Ok);
}

#[test]
fn an_election_in_progress_is_reported() {
    let mut voting = cluster(3, &[1, 2, 3]);
    voting.statuses[1].1.as_mut().unwrap().raft_term = 8;
    assert_eq!(not_ok(&voting), [("leader".to_owned(), Severity::Warning)]);
    voting.statuses[1].1.as_mut().unwrap().leader = 0;
    assert_eq!(not_ok(&voting), [("leader".to_owned(), Severity::Problem)]);
}

#[test]
fn flawed_versions_are_reported() {
    for bad in ["2.3.8", "3.3.27", "3.4.0", "3.4.21", "3.5.0", "3.5.5", "3.5.0-rc.1", "?"] {
        assert!(flaw(bad).is_some(), "{bad}");
    }
    for good in ["3.4.22", "3.4.23", "3.5.6", "3.5.21", "3.6.0-rc.1", "4.0.0"] {
        assert_eq!(flaw(good), None, "{good}");
    }
    for late in ["3.4.30", "3.5.12"] {
        assert!(revokes_late(late), "{late}");
    }
    for early in ["3.4.31", "3.5.13", "3.6.0", "4.0.0"] {
        assert!(!revokes_late(early), "{early}");
    }
    for (version, expected) in [("3.5.1", "diverge"), ("3.4.23", "revoke renewed leases")] {
        let mut mixed = cluster(3, &[1, 2, 3]);
        mixed.statuses[1].1.as_mut().unwrap().version = version.into();
        assert_eq!(not_ok(&mixed), [("server".to_owned(), Severity::Warning)]);
        assert!(found(&mixed, "server").found.contains(expected));
    }
    let mut alone = cluster(1, &[1]);
    alone.statuses[0].1.as_mut().unwrap().version = "3.4.23".into();
    assert_eq!(not_ok(&alone), []);
}
