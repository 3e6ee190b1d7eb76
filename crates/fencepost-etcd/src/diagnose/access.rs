//! Checks encryption and authentication.

use fencepost_core::Finding;
use fencepost_net::{Address, encryption_finding};

use crate::config::Config;

fn is_local(config: &Config) -> bool {
    config.members.iter().all(Address::is_local)
}

/// Checks whether the connections to the members are encrypted.
pub(super) fn encryption(config: &Config) -> Finding {
    let advice = "configure TLS on the members, and use etcds://";
    encryption_finding(config.tls.as_ref(), &config.members, advice)
}

/// Checks whether the cluster authenticates clients, and as which user this client is known.
pub(super) fn authentication(config: &Config, is_logged_in: bool) -> Finding {
    let is_certified = config.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
    let advice = "create the role that `fencepost rights` prints, then run `etcdctl auth enable`";
    match &config.login {
        Some(login) if is_logged_in => Finding::ok("authentication", format!("on, as {}", login.user)),
        Some(_) => Finding::warning("authentication", "off: the cluster does not use the account in the URL")
            .with_advice(advice),
        None if is_certified => Finding::ok("authentication", "by client certificate, without an account"),
        None if is_local(config) => Finding::ok("authentication", "off, on this host"),
        None => Finding::warning(
            "authentication",
            "off: every client that reaches a member can acquire or break every lock",
        )
        .with_advice(advice),
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;
    use crate::config::parse;

    #[test]
    fn missing_encryption_or_authentication_is_a_warning() {
        use Severity::{Ok as Fine, Warning};
        for (url, is_logged_in, encrypted, authenticated) in [
            ("etcd://localhost,127.0.0.1,[::1]", false, Fine, Fine),
            ("etcd://localhost,h", false, Warning, Warning),
            ("etcd://ann:hunter2@localhost", true, Fine, Fine),
            ("etcd://ann:hunter2@localhost", false, Fine, Warning),
            ("etcds://h", false, Fine, Warning),
            ("etcds://h?tls_cert=/a&tls_key=/b", false, Fine, Fine),
            ("etcds://ann:hunter2@h?tls_insecure=true", true, Warning, Fine),
        ] {
            let config = parse(url).unwrap();
            let findings = [encryption(&config), authentication(&config, is_logged_in)];
            assert_eq!(
                findings.each_ref().map(|finding| finding.severity),
                [encrypted, authenticated],
                "{url}"
            );
            assert!(!format!("{findings:?}").contains("hunter2"));
        }
    }
}
