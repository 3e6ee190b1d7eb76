//! Clusters as they may be, and what is said about them.

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

/// A cluster of so many, of which the URL names these; those that are 0 do not answer.
fn cluster(all: u64, named: &[u64]) -> Cluster {
    let asked = named.iter().map(|id| {
        let gone = || Error::new(ErrorKind::Unreachable, "nobody is there");
        let address = Address { host: format!("h{id}"), port: 2379 };
        (address, if *id == 0 { Err(gone()) } else { Ok(status(*id)) })
    });
    Cluster { asked: asked.collect(), members: Ok((1..=all).map(member).collect()), alarms: Ok(Vec::new()) }
}

/// Whatever is not fine.
fn wrong(cluster: &Cluster) -> Vec<(String, Severity)> {
    let findings = cluster.judge(false);
    assert!(findings.iter().all(|it| it.severity == Severity::Ok || it.advice.is_some()), "{findings:?}");
    let wrong = findings.into_iter().filter(|finding| finding.severity != Severity::Ok);
    wrong.map(|finding| (finding.check, finding.severity)).collect()
}

fn found(cluster: &Cluster, check: &str) -> Finding {
    let mut findings = cluster.judge(false);
    let at = findings.iter().position(|finding| finding.check == check).expect("it is checked");
    findings.swap_remove(at)
}

#[test]
fn a_healthy_cluster_is_fine() {
    for healthy in [cluster(1, &[1]), cluster(3, &[1, 2, 3]), cluster(5, &[5, 4, 3, 2, 1])] {
        assert_eq!(wrong(&healthy), []);
    }
    assert_eq!(
        found(&cluster(3, &[1, 2, 3]), "members").found,
        "3 of 3 answer; 1 can fail without stopping locks"
    );
    assert_eq!(
        found(&cluster(1, &[1]), "members").found,
        "1 of 1 answer; none can fail without stopping locks"
    );
    assert_eq!(found(&cluster(1, &[1]), "leader").found, "m1, in term 7");
}

#[test]
fn members_that_are_silent_or_not_named() {
    use Severity::{Problem, Warning};
    let expect = |cluster: Cluster, expected: &[(&str, Severity)]| {
        let expected: Vec<_> = expected.iter().map(|(check, is)| ((*check).to_owned(), *is)).collect();
        assert_eq!(wrong(&cluster), expected);
    };
    expect(cluster(3, &[1, 2, 0]), &[("members", Warning)]);
    expect(cluster(5, &[1, 2, 3, 4, 0]), &[("members", Warning)]);
    expect(cluster(3, &[1, 0, 0]), &[("members", Problem)]);
    expect(cluster(3, &[1]), &[("failover", Warning)]);
    expect(cluster(3, &[1, 2]), &[("failover", Warning)]);
    // Two names for one member are one member.
    expect(cluster(3, &[1, 1, 1]), &[("failover", Warning)]);
    let advice = found(&cluster(3, &[1]), "failover").advice.unwrap();
    assert_eq!(advice, "name them all: etcd://h1:2379,h2:2379,h3:2379");
    let silent = found(&cluster(3, &[1, 2, 0]), "members");
    assert_eq!(silent.found, "2 of 3 answer; h0:2379 does not: nobody is there");
    assert!(silent.advice.unwrap().contains("one more"));
}

#[test]
fn those_who_only_learn_do_not_count() {
    let mut learning = cluster(4, &[1, 2, 3]);
    learning.members.as_mut().unwrap()[3].is_learner = true;
    assert_eq!(wrong(&learning), []);
}

#[test]
fn alarms_are_problems() {
    for (alarm, said) in
        [(AlarmType::Nospace as i32, "NOSPACE"), (AlarmType::Corrupt as i32, "CORRUPT"), (9, "unknown")]
    {
        let mut alarmed = cluster(3, &[1, 2, 3]);
        alarmed.alarms = Ok(vec![AlarmMember { member_id: 2, alarm }]);
        assert_eq!(wrong(&alarmed), [("alarms".to_owned(), Severity::Problem)]);
        let finding = found(&alarmed, "alarms").found;
        assert!(finding.contains(said) && finding.contains("m2"), "{finding}");
    }
}

#[test]
fn what_is_not_permitted_is_a_warning() {
    let denied = || Error::new(ErrorKind::Denied, "it is not permitted").with_hint("grant it");
    let mut closed = cluster(1, &[1]);
    closed.alarms = Err(denied());
    closed.members = Err(denied());
    let expected = ["members", "failover", "alarms"].map(|check| (check.to_owned(), Severity::Warning));
    assert_eq!(wrong(&closed), expected);
}

#[test]
fn a_database_near_the_default_quota_is_a_warning() {
    let sized = |size: i64| {
        let mut sized = cluster(1, &[1]);
        sized.asked[0].1.as_mut().unwrap().db_size = size;
        found(&sized, "database").severity
    };
    assert_eq!(sized(1 << 30), Severity::Ok);
    assert_eq!(sized(2_000 << 20), Severity::Warning);
    assert_eq!(sized(3 << 30), Severity::Ok);
}

#[test]
fn an_election_under_way_is_told() {
    let mut voting = cluster(3, &[1, 2, 3]);
    voting.asked[1].1.as_mut().unwrap().raft_term = 8;
    assert_eq!(wrong(&voting), [("leader".to_owned(), Severity::Warning)]);
    voting.asked[1].1.as_mut().unwrap().leader = 0;
    assert_eq!(wrong(&voting), [("leader".to_owned(), Severity::Problem)]);
}

#[test]
fn versions() {
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
    for (version, said) in [("3.5.1", "different data"), ("3.4.23", "revoke leases")] {
        let mut mixed = cluster(3, &[1, 2, 3]);
        mixed.asked[1].1.as_mut().unwrap().version = version.into();
        assert_eq!(wrong(&mixed), [("server".to_owned(), Severity::Warning)]);
        assert!(found(&mixed, "server").found.contains(said));
    }
    let mut alone = cluster(1, &[1]);
    alone.asked[0].1.as_mut().unwrap().version = "3.4.23".into();
    assert_eq!(wrong(&alone), []);
}
