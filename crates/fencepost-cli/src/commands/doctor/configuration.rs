//! The origin of the URL, and whether other users can read a password in it.

use std::os::unix::fs::MetadataExt;

use fencepost::Finding;

use crate::backend::{Chosen, Origin, URL_FILE};
use crate::secrets::has_password;

const CHECK: &str = "configuration";
const OTHERS_READ: u32 = 0o004;

pub(super) fn check(chosen: &Chosen) -> Finding {
    let from = &chosen.origin;
    if !has_password(&chosen.url) {
        return Finding::ok(CHECK, format!("the URL is {from}"));
    }
    let found = format!("the URL, with a password, is {from}");
    match from {
        Origin::Flag => Finding::warning(
            CHECK,
            format!("{found}: every user of this host can see it in the list of processes"),
        )
        .with_advice(format!(
            "put the URL into a file that only you can read, and set {URL_FILE} to its path"
        )),
        Origin::File(path) if is_open_to_others(path) => {
            Finding::warning(CHECK, format!("{found}: every user of this host can read it"))
                .with_advice("make it unreadable for other users: chmod o-r")
        }
        _ => Finding::ok(CHECK, found),
    }
}

fn is_open_to_others(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.mode() & OTHERS_READ != 0)
}

#[cfg(test)]
mod tests {
    use fencepost::Severity;

    use super::*;

    #[test]
    fn a_password_on_the_command_line_is_a_warning_that_does_not_quote_it() {
        let checked = |url: &str, origin| check(&Chosen { url: url.to_owned(), origin });
        for url in ["redis://u:geheim@h", "redis://u:ge/geheim@h"] {
            let seen = checked(url, Origin::Flag);
            assert_eq!(seen.severity, Severity::Warning);
            assert!(!format!("{seen:?}").contains("geheim"));
        }
        assert_eq!(checked("redis://u:geheim@h", Origin::Variable).severity, Severity::Ok);
        assert_eq!(checked("redis://h", Origin::Flag).severity, Severity::Ok);
    }
}
