//! Whether connections are encrypted, and as which role the client is authenticated.

use fencepost_core::Finding;
use fencepost_net::{Address, encryption_finding};

use super::server::Report;
use crate::config::Config;

/// Checks whether connections are encrypted. SCRAM does not send the password itself.
pub(super) fn encryption(config: &Config) -> Finding {
    let advice = "enable ssl on the server, and add sslmode=require to the URL";
    encryption_finding(config.tls.as_ref(), &config.hosts, advice)
}

/// Describes how the client is authenticated. A server on another host that accepts it without password and certificate may
/// accept every client.
pub(super) fn authentication(config: &Config, report: &Report) -> Finding {
    let has_certificate = config.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
    let role = if report.is_superuser { "the superuser" } else { "role" };
    let user = format!("as {role} {}", report.role);
    let finding = if config.password.is_some() {
        Finding::ok("authentication", format!("with a password, {user}"))
    } else if has_certificate {
        Finding::ok("authentication", format!("no password, with a client certificate, {user}"))
    } else if config.hosts.iter().all(Address::is_local) {
        Finding::ok("authentication", format!("no password, on this host, {user}"))
    } else {
        let found = format!("no password, {user}: pg_hba.conf may trust every client that can connect");
        return Finding::warning("authentication", found).with_advice(
            "require scram-sha-256 in pg_hba.conf, and use postgres://USER:PASSWORD@HOST/DATABASE",
        );
    };
    if report.is_superuser {
        return finding
            .with_advice("`fencepost rights` prints the grants for a role that can use locks only");
    }
    finding
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;
    use crate::config::parse;

    #[test]
    fn plain_text_and_open_servers_on_other_hosts_are_warnings() {
        use Severity::{Ok as Fine, Warning};
        for (url, encrypted, authenticated) in [
            ("postgres://ann@localhost/d", Fine, Fine),
            ("postgres://ann:hunter2@127.0.0.1/d", Fine, Fine),
            ("postgres://ann@h/d", Warning, Warning),
            ("postgres://ann:hunter2@localhost,h/d", Warning, Fine),
            ("postgres://ann:hunter2@h/d?sslmode=require", Fine, Fine),
            ("postgres://ann:hunter2@h/d?sslmode=require&tls_insecure=true", Warning, Fine),
            ("postgres://ann@h/d?sslmode=require&tls_cert=/a&tls_key=/b", Fine, Fine),
        ] {
            let config = parse(url).unwrap();
            let findings = [encryption(&config), authentication(&config, &Report::healthy())];
            assert_eq!(
                findings.each_ref().map(|finding| finding.severity),
                [encrypted, authenticated],
                "{url}: {findings:?}"
            );
            assert!(!format!("{findings:?}").contains("hunter2"), "{findings:?}");
        }
    }

    #[test]
    fn a_superuser_is_told_what_would_be_enough() {
        let config = parse("postgres://ann:hunter2@localhost/d").unwrap();
        let mut report = Report::healthy();
        report.is_superuser = true;
        let finding = authentication(&config, &report);
        assert_eq!(finding.severity, Severity::Ok);
        assert_eq!(finding.found, "with a password, as the superuser ann");
        assert!(finding.advice.unwrap().contains("fencepost rights"));
    }
}
