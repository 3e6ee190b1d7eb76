//! What the doctor finds.

use fencepost_core::{Client, Finding, Result, Severity};

/// Returns the findings of a client, and closes it.
pub async fn diagnosis(client: Result<Client>) -> Vec<Finding> {
    let client = client.expect("it connects");
    let findings = client.diagnose().await.expect("it is open");
    client.close().await;
    findings
}

/// Returns the finding of this check.
#[track_caller]
pub fn finding<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("{check}: {findings:?}"))
}

/// Returns the only concern, which must be this one.
#[track_caller]
pub fn only_concern(findings: Vec<Finding>, check: &str, severity: Severity) -> Finding {
    let mut concerns = Finding::concerns(findings);
    assert_eq!(concerns.len(), 1, "{concerns:?}");
    let concern = concerns.remove(0);
    assert_eq!((concern.check.as_str(), concern.severity), (check, severity), "{concern:?}");
    concern
}

/// Asserts what the doctor finds about locks in sessions, and about leases on the same server: it may lose what it has written,
/// which matters to leases only. What is checked for both is reported in the same words.
#[track_caller]
pub fn assert_checked_like_leases(sessions: &[Finding], checks: &[&str], leases: &[Finding], both: &[&str]) {
    let found: Vec<&str> = sessions.iter().map(|finding| finding.check.as_str()).collect();
    assert_eq!(found, checks);
    assert_eq!(Finding::concerns(sessions.to_vec()), []);
    let durability = finding(leases, "durability").severity;
    assert_eq!(durability, Severity::Warning, "it is no healthy server for leases");
    for check in both {
        assert_eq!(finding(sessions, check), finding(leases, check));
    }
}

/// Asserts that the only concern is the server's clock, from which the tokens of locks in sessions are derived.
#[track_caller]
pub fn assert_clock_concerns_tokens_only(findings: Vec<Finding>) {
    let found = only_concern(findings, "server's clock", Severity::Warning);
    let advice = found.advice.expect("it has one");
    assert!(advice.contains("fencing tokens") && !advice.contains("leases"), "{advice}");
}
