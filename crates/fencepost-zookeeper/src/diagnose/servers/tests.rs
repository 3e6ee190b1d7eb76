//! Ensembles in various states, and the findings about them.

use fencepost_core::Severity;

use super::*;

/// An ensemble of `all` voters. The URL names servers in these modes: `""` is down, `"?"` does not report.
fn ensemble(all: usize, modes: &[&str]) -> ServerReports {
    let reports = modes.iter().zip(1_u16..).map(|(mode, port)| {
        let report = match *mode {
            "" => Err(Error::new(ErrorKind::Unreachable, "connection refused")),
            "?" => Err(Error::new(ErrorKind::Denied, "not allowed").with_hint("permit it")),
            mode => Ok(ServerReport { version: "3.8.0".into(), mode: mode.to_owned() }),
        };
        (Address { host: "h".into(), port }, report)
    });
    let members = (1..=all).map(|number| format!("server.{number}=h:1:2:participant;h:3\n"));
    let text: String = if all == 1 { "version=0".into() } else { members.collect() };
    ServerReports { reports: reports.collect(), members: Ok(text.into_bytes()) }
}

/// The findings that are not OK.
fn not_ok(ensemble: &ServerReports) -> Vec<(String, Severity)> {
    let findings = ensemble.findings();
    assert!(findings.iter().all(|it| it.severity == Severity::Ok || it.advice.is_some()), "{findings:?}");
    let not_ok = findings.into_iter().filter(|finding| finding.severity != Severity::Ok);
    not_ok.map(|finding| (finding.check, finding.severity)).collect()
}

fn found(ensemble: &ServerReports, check: &str) -> Finding {
    let mut findings = ensemble.findings();
    let at = findings.iter().position(|finding| finding.check == check).expect("it is checked");
    findings.swap_remove(at)
}

#[test]
fn a_healthy_ensemble_is_fine() {
    for healthy in [
        ensemble(1, &["standalone"]),
        ensemble(3, &["follower", "leader", "follower"]),
        ensemble(3, &["follower", "leader", "follower", "observer"]),
    ] {
        assert_eq!(not_ok(&healthy), []);
    }
    let three = ensemble(3, &["follower", "leader", "follower"]);
    assert_eq!(found(&three, "servers").found, "3 of 3 serve; 1 can fail without stopping locks");
    assert_eq!(found(&three, "leader").found, "h:2");
    assert_eq!(found(&ensemble(1, &["standalone"]), "leader").found, "h:1 (standalone)");
}

#[test]
fn each_weakness_is_found() {
    use Severity::{Problem, Warning};
    let cases: [(ServerReports, &[(&str, Severity)]); 7] = [
        (ensemble(3, &["leader", "", "follower"]), &[("servers", Warning)]),
        (ensemble(5, &["leader", "", "follower", "follower", "follower"]), &[("servers", Warning)]),
        (ensemble(3, &["leader", "", ""]), &[("servers", Problem)]),
        (ensemble(3, &["follower"]), &[("failover", Warning)]),
        (ensemble(3, &["follower", "follower", "follower"]), &[("leader", Warning)]),
        (ensemble(3, &["follower", "leader", "read-only"]), &[("servers", Warning)]),
        (ensemble(1, &["?"]), &[("server", Warning), ("servers", Warning)]),
    ];
    for (ensemble, expected) in cases {
        let expected: Vec<_> = expected.iter().map(|(check, is)| ((*check).to_owned(), *is)).collect();
        assert_eq!(not_ok(&ensemble), expected);
    }
    let down = found(&ensemble(3, &["leader", "", "follower"]), "servers");
    assert_eq!(down.found, "2 of 3 serve; h:2 does not: connection refused");
}

#[test]
fn the_list_of_members_may_be_unreadable() {
    let mut closed = ensemble(3, &["leader", "follower", "follower"]);
    closed.members = Err(Error::new(ErrorKind::Denied, "not permitted").with_hint("permit it"));
    let expected = ["servers", "failover", "leader"].map(|check| (check.to_owned(), Severity::Warning));
    assert_eq!(not_ok(&closed), expected);
}

#[test]
fn versions() {
    assert!(["3.4.14", "3.5.9", "?", ""].into_iter().all(is_old));
    assert!(!["3.6.0", "3.8.0", "3.10.1", "4.0"].into_iter().any(is_old));
}
