//! The checks of `fencepost doctor`: everything about the server and the tables that can weaken a guarantee.

pub(crate) mod locate;
mod server;
mod tables;

use fencepost_core::{Finding, Result};
use fencepost_net::encryption_finding;
use fencepost_sql::Row;

use crate::config::Config;
use crate::lease::fetch::NOW_MICROS;
use crate::lease::state::ClientState;
use server::Report;

/// Checks the server and the tables.
pub(crate) async fn diagnose(client: &ClientState) -> Vec<Finding> {
    let config = &client.config;
    let advice = "add tls=true to the URL, and tls_ca=FILE if the CA is your own";
    let mut findings = vec![namespace(client)];
    findings.push(encryption_finding(config.tls.as_ref(), std::slice::from_ref(&config.server), advice));
    match client.report().await {
        Ok(report) => {
            findings.push(authentication(config, &report));
            findings.extend(report.findings());
        }
        Err(error) => findings.push(Finding::failed("server", &error)),
    }
    findings.extend(client.tables_findings().await);
    findings
}

fn namespace(client: &ClientState) -> Finding {
    let Config { namespace, database, .. } = &client.config;
    Finding::ok(
        "namespace",
        format!("the tables {namespace}_… in database {database}, storage id {}", client.storage_id),
    )
}

/// Describes how the client is authenticated. A server on another host that accepts it without password and certificate may
/// accept every client.
fn authentication(config: &Config, report: &Report) -> Finding {
    let has_certificate = config.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
    let account = format!("as account {}", report.account);
    if config.account.password.is_some() {
        Finding::ok("authentication", format!("with a password, {account}"))
    } else if has_certificate {
        Finding::ok("authentication", format!("no password, with a client certificate, {account}"))
    } else if config.server.is_local() {
        Finding::ok("authentication", format!("no password, on this host, {account}"))
    } else {
        let found = format!("no password, {account}: the server may accept every client that can connect");
        Finding::warning("authentication", found)
            .with_advice("give the account a password, and use mysql://USER:PASSWORD@HOST/DATABASE")
    }
}

impl ClientState {
    async fn report(&self) -> Result<Report> {
        let sets = self.query(&format!("{}; SELECT {NOW_MICROS}, CURRENT_USER()", server::QUERY)).await?;
        let (last, values) = sets.split_last().map_or((&[][..], &[][..]), |(last, values)| (last, values));
        let values = values.iter().flatten().map(|row| Ok((row.text(0)?, row.text(1)?)));
        let values = values.collect::<Result<_>>()?;
        let (micros, account) = match last.first() {
            Some(row) => (row.integer(0)?, row.text(1)?),
            None => (0, String::new()),
        };
        Ok(Report { values, micros, account })
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;
    use crate::config::parse;

    #[test]
    fn open_servers_on_other_hosts_are_warnings() {
        for (url, severity) in [
            ("mysql://ann@localhost/d", Severity::Ok),
            ("mysql://ann:hunter2@h/d", Severity::Ok),
            ("mysql://ann@h/d?tls=true&tls_cert=/a&tls_key=/b", Severity::Ok),
            ("mysql://ann@h/d", Severity::Warning),
        ] {
            let finding = authentication(&parse(url).unwrap(), &Report::healthy());
            assert_eq!(finding.severity, severity, "{url}: {finding:?}");
            assert!(!format!("{finding:?}").contains("hunter2"), "{finding:?}");
        }
    }
}
