//! Checks encryption, authentication and the ACLs of the chroot.

use fencepost_core::Finding;
use fencepost_net::encryption_finding;
use zookeeper_client::{Acl, Permission};

use crate::config::{Auth, Config};

/// Checks whether connections to the servers are encrypted.
pub(super) fn encryption(config: &Config) -> Finding {
    let advice = "configure certificates on the servers (secureClientPort), and set tls=true in the URL";
    encryption_finding(config.tls.as_ref(), &config.servers, advice)
}

/// Describes the account of this client.
pub(super) fn authentication(config: &Config) -> Finding {
    let found = match &config.auth {
        None => "none: every client has access to the nodes".to_owned(),
        Some(Auth::Digest(login)) => {
            format!("{}, by digest: only this user has access to the nodes", login.user)
        }
        Some(Auth::Sasl(login)) => format!("{}, by SASL: only this user has access to the nodes", login.user),
    };
    Finding::ok("authentication", found)
}

/// Checks which accounts can change the chroot.
pub(super) fn rights(acls: &[Acl]) -> Finding {
    let world_has = |permission: Permission| {
        acls.iter().any(|acl| acl.scheme() == "world" && acl.permission().has(permission))
    };
    let advice = "run the commands that `fencepost rights` prints, and put the account into the URL";
    if [Permission::CREATE, Permission::DELETE, Permission::ADMIN].into_iter().any(world_has) {
        return Finding::warning(
            "rights",
            "every client that reaches a server can acquire or break every lock",
        )
        .with_advice(advice);
    }
    let read = if world_has(Permission::READ) { "; every client can read the names of locks" } else { "" };
    Finding::ok("rights", format!("only known accounts can acquire locks{read}"))
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;
    use zookeeper_client::AuthId;

    use super::*;
    use crate::config::parse;

    #[test]
    fn an_unencrypted_connection_to_another_host_is_a_warning() {
        for (url, severity) in [
            ("zk://localhost,127.0.0.1", Severity::Ok),
            ("zk://localhost,h", Severity::Warning),
            ("zk://h?tls=true", Severity::Ok),
            ("zk://ann:hunter2@h", Severity::Warning),
        ] {
            let config = parse(url).unwrap();
            let findings = [encryption(&config), authentication(&config)];
            assert_eq!(findings[0].severity, severity, "{url}");
            assert!(!format!("{findings:?}").contains("hunter2"));
        }
    }

    #[test]
    fn write_access_for_all_is_a_warning() {
        let ann = || Acl::new(Permission::ALL, AuthId::new("digest", "ann:hash"));
        let world = |permission| Acl::new(permission, AuthId::anyone());
        for (acls, severity, found) in [
            (vec![world(Permission::ALL)], Severity::Warning, "every lock"),
            (vec![ann(), world(Permission::DELETE)], Severity::Warning, "every lock"),
            (vec![ann(), world(Permission::READ)], Severity::Ok, "names of locks"),
            (vec![ann()], Severity::Ok, "only known accounts"),
        ] {
            let finding = rights(&acls);
            assert_eq!(finding.severity, severity, "{finding}");
            assert!(finding.found.contains(found), "{finding}");
        }
    }
}
