//! The result of a diagnosis: one [`Finding`] for each thing that was checked.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// The result of one check: what was found, how severe it is, and what to do about it. It never contains a secret.
///
/// ```
/// use fencepost_core::{Finding, Severity};
///
/// let finding = Finding::problem("eviction policy", "allkeys-lru: locks may vanish")
///     .with_advice("set maxmemory-policy to noeviction");
/// assert_eq!(finding.severity, Severity::Problem);
/// assert_eq!(finding.to_string(), "eviction policy: allkeys-lru: locks may vanish");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked, a short noun that stays the same: `eviction policy`.
    pub check: String,
    /// The severity.
    pub severity: Severity,
    /// What was found.
    pub found: String,
    /// What to do about it, if anything.
    pub advice: Option<String>,
}

/// The severity of a finding, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Nothing is wrong.
    Ok,
    /// Locks work, but a guarantee is weaker than it could be, or could not be checked.
    Warning,
    /// Locks do not work, or a guarantee is not kept.
    Problem,
}

impl Finding {
    /// Returns those that are not [`Severity::Ok`]. Consecutive findings with the same text are reduced to one.
    pub fn concerns(mut findings: Vec<Self>) -> Vec<Self> {
        findings.retain(|finding| finding.severity != Severity::Ok);
        findings.dedup_by(|later, first| later.found == first.found);
        findings
    }

    /// Creates a finding of severity [`Severity::Ok`].
    pub fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Ok, found)
    }

    /// Creates a warning.
    pub fn warning(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, found)
    }

    /// Creates a problem.
    pub fn problem(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Problem, found)
    }

    /// Creates the finding of a check that was not permitted or failed: a warning, as nothing is known to be wrong.
    pub fn not_checked(check: impl Into<String>, why: &Error) -> Self {
        Self::warning(check, format!("could not be checked: {}", why.full_message())).advised_by(why)
    }

    /// Returns the finding, or one made from the error: what is not permitted was not checked, everything else is a problem.
    pub fn from_result(check: impl Into<String>, outcome: Result<Self>) -> Self {
        match outcome {
            Ok(finding) => finding,
            Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported) => {
                Self::not_checked(check, &error)
            }
            Err(error) => Self::failed(check, &error),
        }
    }

    /// Creates the finding of something that failed: a problem.
    pub fn failed(check: impl Into<String>, error: &Error) -> Self {
        Self::problem(check, error.full_message()).advised_by(error)
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    fn new(check: impl Into<String>, severity: Severity, found: impl Into<String>) -> Self {
        Self { check: check.into(), severity, found: found.into(), advice: None }
    }

    fn advised_by(mut self, error: &Error) -> Self {
        self.advice = error.hint().map(str::to_owned);
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_be_checked_is_a_warning_with_its_reason() {
        let denied = Error::new(ErrorKind::Denied, "CONFIG is not permitted")
            .with_source(std::io::Error::other("NOPERM"))
            .with_hint("grant +config|get");
        let finding = Finding::not_checked("persistence", &denied);
        assert_eq!(finding.severity, Severity::Warning);
        assert_eq!(finding.found, "could not be checked: CONFIG is not permitted: NOPERM");
        assert_eq!(finding.advice.as_deref(), Some("grant +config|get"));
        assert_eq!(Finding::from_result("persistence", Err(denied.clone())), finding);
        assert_eq!(Finding::failed("reachability", &denied).severity, Severity::Problem);
    }

    #[test]
    fn the_worst_severity_is_the_greatest() {
        assert!(Severity::Ok < Severity::Warning && Severity::Warning < Severity::Problem);
    }
}
