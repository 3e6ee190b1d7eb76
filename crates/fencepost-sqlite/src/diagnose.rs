//! The doctor's findings about a database: from outside ([`preflight`]), and what the database reports.

pub(crate) mod locate;
pub(crate) mod preflight;

use fencepost_core::Finding;

use self::preflight::preflight_of;
use crate::replaced::Replaced;
use crate::state::ClientState;

impl ClientState {
    pub(crate) fn diagnose(&mut self) -> Vec<Finding> {
        let replaced = self.file.check().err().map(|error| Finding::failed("identity", &error));
        let mut findings = preflight_of(self.file.path());
        findings.extend(replaced);
        findings.extend(self.statements.diagnose());
        findings
    }
}

impl Replaced {
    pub(crate) fn diagnose(&self) -> Vec<Finding> {
        let mut findings = preflight_of(self.file.path());
        findings.push(Finding::failed("identity", &self.file.error()));
        findings
    }
}
