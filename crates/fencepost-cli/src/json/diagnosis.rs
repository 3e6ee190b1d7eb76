//! The findings of the doctor.

use fencepost::{Finding, Severity};
use serde::Serialize;

use crate::words;

/// All findings, as `doctor --json` prints them.
#[derive(Serialize)]
pub(crate) struct Diagnosis<'a> {
    /// The worst of all findings.
    verdict: &'static str,
    findings: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    check: &'a str,
    verdict: &'static str,
    found: &'a str,
    advice: Option<&'a str>,
}

impl<'a> Diagnosis<'a> {
    pub(crate) fn new(findings: &'a [Finding], worst: Severity) -> Self {
        Self { verdict: words::severity(worst), findings: findings.iter().map(Entry::from).collect() }
    }
}

impl<'a> From<&'a Finding> for Entry<'a> {
    fn from(finding: &'a Finding) -> Self {
        Self {
            check: &finding.check,
            verdict: words::severity(finding.severity),
            found: &finding.found,
            advice: finding.advice.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_stable() {
        let findings = [
            Finding::ok("scope", "this host"),
            Finding::warning("file system", "tmpfs").with_advice("use a disk"),
        ];
        let text = serde_json::to_string(&Diagnosis::new(&findings, Severity::Warning)).unwrap();
        assert_eq!(
            text,
            r#"{"verdict":"warning","findings":[{"check":"scope","verdict":"fine","found":"this host","advice":null},"#
                .to_owned()
                + r#"{"check":"file system","verdict":"warning","found":"tmpfs","advice":"use a disk"}]}"#
        );
    }
}
