//! Where the URL comes from, and whether others could read a password in it.

use std::os::unix::fs::MetadataExt;

use fencepost::Finding;

use crate::storage::{Chosen, Origin, URL_FILE};
use crate::words::SECRET_OPTION;

const CHECK: &str = "configuration";
const OTHERS_READ: u32 = 0o004;

pub(super) fn judge(chosen: &Chosen) -> Finding {
    let from = &chosen.origin;
    if !has_password(&chosen.url) {
        return Finding::ok(CHECK, format!("the URL is {from}"));
    }
    let found = format!("the URL, with a password, is {from}");
    match from {
        Origin::Flag => {
            Finding::warning(CHECK, format!("{found}: everybody on this host can see it among the processes"))
                .with_advice(format!(
                    "put the URL into a file that only you can read, and name it in {URL_FILE}"
                ))
        }
        Origin::File(path) if is_open_to_others(path) => {
            Finding::warning(CHECK, format!("{found}: everybody on this host can read it"))
                .with_advice("take the right to read it from others: chmod o-r")
        }
        _ => Finding::ok(CHECK, found),
    }
}

/// Whether there is something secret before the host or among the options.
fn has_password(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    if rest.split_once('?').is_some_and(|(_, options)| options.contains(SECRET_OPTION)) {
        return true;
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

fn is_open_to_others(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.mode() & OTHERS_READ != 0)
}

#[cfg(test)]
mod tests {
    use fencepost::Severity;

    use super::*;

    #[test]
    fn a_password_is_known_by_its_place() {
        for with in [
            "redis://u:p@h",
            "redis://:p@h/0",
            "redis://u:p@a,b/x",
            "etcds://u:p@a,b,c?tls_ca=/a",
            "zk://u:p@a:2181,b/locks",
            "redis+sentinel://h/main?replicas=1&sentinel_password=p",
        ] {
            assert!(has_password(with), "{with}");
        }
        for without in [
            "etcd://a:1,b:2",
            "zk://a:1/locks",
            "redis://h:6379/0",
            "redis://u@h",
            "redis://h/a:b@c",
            "sqlite:/a:b@c",
            "sqlite:",
        ] {
            assert!(!has_password(without), "{without}");
        }
    }

    #[test]
    fn a_password_on_the_command_line_is_warned_of_and_not_repeated() {
        let judged = |url: &str, origin| judge(&Chosen { url: url.to_owned(), origin });
        let seen = judged("redis://u:geheim@h", Origin::Flag);
        assert_eq!(seen.severity, Severity::Warning);
        assert!(!format!("{seen:?}").contains("geheim"));
        assert_eq!(judged("redis://u:geheim@h", Origin::Variable).severity, Severity::Ok);
        assert_eq!(judged("redis://h", Origin::Flag).severity, Severity::Ok);
    }
}
