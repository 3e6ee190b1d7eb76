//! The checks of `fencepost doctor`: everything about the server and the tables that can weaken a guarantee.

pub(crate) mod locate;
pub(crate) mod rights;
mod server;
mod sessions;
mod tables;

use fencepost_core::{Finding, Result, StorageId};
use fencepost_net::encryption_finding;
use fencepost_sql::Row;

use crate::config::Config;
use crate::lease::fetch::NOW_MICROS;
use crate::lease::state::ClientState;
use crate::sessions::Sessions;
use server::Report;

pub(crate) use sessions::crash_release;

/// Where locks are: the checks that matter depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Storage {
    Tables,
    /// On connections, of which one client has this many at most.
    Sessions {
        per_client: usize,
    },
}

/// Checks the server and the tables.
pub(crate) async fn diagnose(client: &ClientState) -> Vec<Finding> {
    let mut findings = vec![namespace(&client.config, "", client.storage_id)];
    findings.extend(server_findings(&client.config, &client.sessions, Storage::Tables).await);
    findings.extend(client.tables_findings().await);
    findings
}

/// Checks the server, the way to it and the account.
pub(crate) async fn server_findings(config: &Config, sessions: &Sessions, storage: Storage) -> Vec<Finding> {
    let advice = "add tls=true to the URL, and tls_ca=FILE if the CA is your own";
    let server = std::slice::from_ref(&config.server);
    let mut findings = vec![encryption_finding(config.tls.as_ref(), server, advice)];
    match report(sessions).await {
        Ok(report) => {
            findings.push(authentication(config, &report));
            findings.extend(report.findings(storage));
        }
        Err(error) => findings.push(Finding::from_result("server", Err(error))),
    }
    findings
}

/// Describes the tables, whose names begin with the namespace and then with `kind`.
pub(crate) fn namespace(config: &Config, kind: &str, storage_id: StorageId) -> Finding {
    let Config { namespace, database, .. } = config;
    let tables = format!("the tables {namespace}_{kind}… in database {database}");
    Finding::ok("namespace", format!("{tables}, storage id {storage_id}"))
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

async fn report(sessions: &Sessions) -> Result<Report> {
    let sets = sessions.query(&format!("{}; SELECT {NOW_MICROS}, CURRENT_USER()", server::QUERY)).await?;
    let (last, values) = sets.split_last().map_or((&[][..], &[][..]), |(last, values)| (last, values));
    let values = values.iter().flatten().map(|row| Ok((row.text(0)?, row.text(1)?)));
    let values = values.collect::<Result<_>>()?;
    let (micros, account) = match last.first() {
        Some(row) => (row.integer(0)?, row.text(1)?),
        None => (0, String::new()),
    };
    Ok(Report { values, micros, account })
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
