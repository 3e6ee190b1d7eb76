//! Who can read what is said to the servers, and who can change what is there.

use fencepost_core::Finding;
use fencepost_net::encryption_finding;
use zookeeper_client::{Acl, Permission};

use crate::config::{Auth, Config};

/// Whether the way to the servers is encrypted.
pub(super) fn encryption(config: &Config) -> Finding {
    let advice = "give the servers certificates (secureClientPort), and write ?tls=true";
    encryption_finding(config.tls.as_ref(), &config.servers, advice)
}

/// Who we are there.
pub(super) fn authentication(config: &Config) -> Finding {
    let found = match &config.auth {
        None => "nobody in particular: what we make is everybody's".to_owned(),
        Some(Auth::Digest(login)) => format!("{}, by digest: what we make is that user's alone", login.user),
        Some(Auth::Sasl(login)) => format!("{}, by SASL: what we make is that user's alone", login.user),
    };
    Finding::ok("authentication", found)
}

/// Who may do what with the chroot.
pub(super) fn rights(acls: &[Acl]) -> Finding {
    let anybody = |permission: Permission| {
        acls.iter().any(|acl| acl.scheme() == "world" && acl.permission().has(permission))
    };
    let advice = "`fencepost rights` prints what to paste; let the URL name the account";
    if [Permission::CREATE, Permission::DELETE, Permission::ADMIN].into_iter().any(anybody) {
        return Finding::warning("rights", "whoever reaches a server can take or break every lock")
            .with_advice(advice);
    }
    let read = if anybody(Permission::READ) { "; everybody can see the names of locks" } else { "" };
    Finding::ok("rights", format!("only known accounts can take locks{read}"))
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;
    use zookeeper_client::AuthId;

    use super::*;
    use crate::config::parse;

    #[test]
    fn what_others_can_read_is_a_warning() {
        for (url, verdict) in [
            ("zk://localhost,127.0.0.1", Severity::Ok),
            ("zk://localhost,h", Severity::Warning),
            ("zk://h?tls=true", Severity::Ok),
            ("zk://ann:hunter2@h", Severity::Warning),
        ] {
            let config = parse(url).unwrap();
            let findings = [encryption(&config), authentication(&config)];
            assert_eq!(findings[0].severity, verdict, "{url}");
            assert!(!format!("{findings:?}").contains("hunter2"));
        }
    }

    #[test]
    fn what_everybody_may_do_is_a_warning() {
        let ann = || Acl::new(Permission::ALL, AuthId::new("digest", "ann:hash"));
        let world = |permission| Acl::new(permission, AuthId::anyone());
        for (acls, verdict, said) in [
            (vec![world(Permission::ALL)], Severity::Warning, "every lock"),
            (vec![ann(), world(Permission::DELETE)], Severity::Warning, "every lock"),
            (vec![ann(), world(Permission::READ)], Severity::Ok, "names of locks"),
            (vec![ann()], Severity::Ok, "only known accounts"),
        ] {
            let finding = rights(&acls);
            assert_eq!(finding.severity, verdict, "{finding}");
            assert!(finding.found.contains(said), "{finding}");
        }
    }
}
