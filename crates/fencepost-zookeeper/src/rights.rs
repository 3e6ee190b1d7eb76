//! Generates the `zkCli.sh` commands that give an account access to the chroot.

use crate::config::{Auth, Config};

/// Quotes a path for `zkCli.sh`.
fn quoted(path: &str) -> String {
    if path.contains(char::is_whitespace) { format!("\"{path}\"") } else { path.into() }
}

/// Returns the chroot and its parents, from the top.
fn nodes(chroot: &str) -> impl Iterator<Item = &str> {
    let ends = chroot.match_indices('/').map(|(at, _)| at).skip(1).chain([chroot.len()]);
    ends.map(|end| &chroot[..end])
}

/// Returns the commands, with explanations as comments.
pub(crate) fn rights_on(config: &Config) -> String {
    let (location, chroot) = (config.location(), quoted(&config.chroot));
    let (account, explanation) = match config.auth {
        None | Some(Auth::Digest(_)) => (
            "digest:USER:HASH",
            "\
# and for HASH the output of this shell command:
#   printf %s 'USER:PASSWORD' | openssl dgst -sha1 -binary | openssl base64",
        ),
        Some(Auth::Sasl(_)) => (
            "sasl:USER",
            "\
# which is in the section Server of the servers' JAAS file: user_USER=\"PASSWORD\".",
        ),
    };
    let create: Vec<_> = nodes(&config.chroot).map(|node| format!("create {}", quoted(node))).collect();
    format!(
        "\
# Rights for locks in {location}
#
# Run the lines without # in zkCli.sh, with the account's name for USER
{explanation}
# An existing node is not created again, and the nodes below it keep their ACLs: start with an empty one, or log in as
# USER and repeat the last line with -R.
# A client that can write there can acquire or break every lock. Other programs that share these locks, such as those
# with Curator or kazoo, must log in as the same user.
{create}
setAcl {chroot} {account}:cdrwa
",
        create = create.join("\n"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn rights(url: &str) -> (String, Vec<String>) {
        let text = rights_on(&parse(url).unwrap());
        assert!(!text.contains("ann") && !text.contains("hunter2"), "{text}");
        let lines = text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        (text, lines)
    }

    #[test]
    fn the_user_owns_the_chroot() {
        let (text, lines) = rights("zk://ann:hunter2@h");
        assert_eq!(lines, ["create /fencepost", "setAcl /fencepost digest:USER:HASH:cdrwa"]);
        assert!(text.contains("openssl dgst -sha1"), "{text}");
        assert_eq!(rights("zk://h").1, lines);
    }

    #[test]
    fn parents_of_the_chroot_are_created_and_stay_open() {
        let expected =
            ["create /team", "create \"/team/a b\"", "setAcl \"/team/a b\" digest:USER:HASH:cdrwa"];
        assert_eq!(rights("zk://ann:hunter2@h/team/a%20b").1, expected);
    }

    #[test]
    fn sasl_users() {
        let (text, lines) = rights("zk://ann:hunter2@h/x?auth=sasl");
        assert_eq!(lines[1], "setAcl /x sasl:USER:cdrwa");
        assert!(text.contains("JAAS") && !text.contains("HASH"), "{text}");
    }
}
