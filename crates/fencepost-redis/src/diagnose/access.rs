//! Whether connections are encrypted, and how and as which user the client is authenticated.

use fencepost_core::{Finding, Result};
use fencepost_net::{Address, encryption_finding};
use redis::Value;

use crate::config::{Config, Servers};
use crate::decode::{text, unexpected_reply};
use crate::node::Node;
use crate::state::ClientState;

/// Returns the addresses in the URL, and those of the nodes that the client is connected to: sentinels and clusters may
/// refer it to other hosts.
pub(super) async fn addresses(config: &Config, nodes: &[impl AsRef<Node>]) -> Vec<Address> {
    let mut addresses = addresses_in_url(config);
    for node in nodes {
        if let Ok(connection) = node.as_ref().connection().await {
            addresses.push(connection.address().clone());
        }
    }
    addresses
}

fn addresses_in_url(config: &Config) -> Vec<Address> {
    match &config.servers {
        Servers::One(address) => vec![address.clone()],
        Servers::Sentinel { sentinels: addresses, .. } | Servers::Cluster(addresses) => addresses.clone(),
    }
}

/// Whether connections to these addresses are encrypted. A password that is sent in plain text to another host is a warning.
pub(super) fn encryption(config: &Config, addresses: &[Address]) -> Finding {
    let scheme = config.scheme().replacen("redis", "rediss", 1);
    let advice = format!("enable TLS on the server (tls-port), and use {scheme}://");
    let remote = addresses.iter().find(|address| !address.is_local());
    match remote {
        Some(Address { host, .. }) if config.tls.is_none() && sends_password(config) => {
            let found = format!("none: the password in the URL is sent to {host} in plain text");
            Finding::warning("encryption", found).with_advice(advice)
        }
        _ => encryption_finding(config.tls.as_ref(), addresses, &advice),
    }
}

fn sends_password(config: &Config) -> bool {
    let to_sentinels = match &config.servers {
        Servers::Sentinel { account, .. } => account.password.is_some(),
        Servers::One(_) | Servers::Cluster(_) => false,
    };
    config.account.password.is_some() || to_sentinels
}

/// How the client is authenticated, and as which user. `whoami` is the server's reply to `ACL WHOAMI`.
pub(super) fn authentication(config: &Config, addresses: &[Address], whoami: &Result<String>) -> Finding {
    let user = match whoami {
        Ok(user) => format!("as user {user}"),
        Err(error) => format!("user not checked: {}", error.full_message()),
    };
    let has_certificate = config.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
    if config.account.password.is_some() {
        Finding::ok("authentication", format!("with a password, {user}"))
    } else if has_certificate {
        Finding::ok("authentication", format!("no password, with a client certificate, {user}"))
    } else if addresses.iter().all(Address::is_local) {
        Finding::ok("authentication", format!("no password, on this host, {user}"))
    } else {
        let found =
            "no password: every client that can connect to the server can acquire and break every lock";
        Finding::warning("authentication", found).with_advice(
            "`fencepost rights` prints the ACL of a user to create; then use redis://USER:PASSWORD@HOST",
        )
    }
}

/// Asks the server for the user of the connection.
pub(super) async fn whoami(state: &ClientState, node: &Node) -> Result<String> {
    let mut command = redis::cmd("ACL");
    command.arg("WHOAMI");
    let reply: Value = node.query(&command).await?;
    Ok(text(Some(&reply)).ok_or_else(|| unexpected_reply(&state.location))?.to_owned())
}

#[cfg(test)]
mod tests {
    use fencepost_core::{Error, ErrorKind, Severity};

    use super::*;
    use crate::config::parse;

    #[test]
    fn plain_text_and_open_servers_on_other_hosts_are_warnings() {
        use Severity::{Ok as Fine, Warning};
        for (url, encrypted, authenticated) in [
            ("redis://localhost", Fine, Fine),
            ("redis://[::1]:7", Fine, Fine),
            ("redis://:hunter2@127.0.0.1", Fine, Fine),
            ("redis://h", Warning, Warning),
            ("redis://:hunter2@h", Warning, Fine),
            ("redis://ann:hunter2@h", Warning, Fine),
            ("rediss://h", Fine, Warning),
            ("rediss://ann:hunter2@h", Fine, Fine),
            ("rediss://ann:hunter2@h?tls_insecure=true", Warning, Fine),
            ("rediss://h?tls_cert=/a&tls_key=/b", Fine, Fine),
            ("redis+cluster://ann:hunter2@localhost,h", Warning, Fine),
            ("redis+sentinel://localhost,h/main?sentinel_password=hunter2", Warning, Warning),
        ] {
            let config = parse(url).unwrap();
            let addresses = addresses_in_url(&config);
            let findings =
                [encryption(&config, &addresses), authentication(&config, &addresses, &Ok("ann".into()))];
            assert_eq!(
                findings.each_ref().map(|finding| finding.severity),
                [encrypted, authenticated],
                "{url}: {findings:?}"
            );
            assert!(!format!("{findings:?}").contains("hunter2"), "{findings:?}");
        }
    }

    #[test]
    fn a_password_in_plain_text_names_the_host_and_the_scheme_to_use() {
        for (url, host, scheme) in [
            ("redis://:hunter2@h", "h", "rediss://"),
            ("redis+cluster://:hunter2@localhost,h", "h", "rediss+cluster://"),
            ("redis+sentinel://h/main?sentinel_password=hunter2", "h", "rediss+sentinel://"),
        ] {
            let config = parse(url).unwrap();
            let finding = encryption(&config, &addresses_in_url(&config));
            assert!(finding.found.contains(&format!("sent to {host} in plain text")), "{finding:?}");
            assert!(finding.advice.as_ref().is_some_and(|advice| advice.contains(scheme)), "{finding:?}");
        }
    }

    /// The sentinels are on this host, and refer to a primary that is not.
    #[test]
    fn the_address_that_sentinels_report_counts() {
        let config = parse("redis+sentinel://:hunter2@localhost/main").unwrap();
        let mut addresses = addresses_in_url(&config);
        assert_eq!(encryption(&config, &addresses).severity, Severity::Ok);
        addresses.push(Address { host: "10.0.0.1".into(), port: 6379 });
        assert_eq!(encryption(&config, &addresses).severity, Severity::Warning);
    }

    #[test]
    fn a_user_that_may_not_be_checked_is_not_a_warning() {
        let config = parse("rediss://ann:hunter2@h").unwrap();
        let denied = Error::new(ErrorKind::Denied, "ACL WHOAMI is not permitted");
        let finding = authentication(&config, &addresses_in_url(&config), &Err(denied));
        assert_eq!(finding.severity, Severity::Ok);
        assert_eq!(finding.found, "with a password, user not checked: ACL WHOAMI is not permitted");
    }
}
