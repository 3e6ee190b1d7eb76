//! Which rights an account needs, as the lines that an administrator can paste.

use crate::config::{Auth, Config};

/// A path as the command line reads it.
fn quoted(path: &str) -> String {
    if path.contains(char::is_whitespace) { format!("\"{path}\"") } else { path.into() }
}

/// The chroot and what is above it, from the top.
fn nodes(chroot: &str) -> impl Iterator<Item = &str> {
    let ends = chroot.match_indices('/').map(|(at, _)| at).skip(1).chain([chroot.len()]);
    ends.map(|end| &chroot[..end])
}

/// The rights that an account needs, with what they are for.
pub(crate) fn rights_on(config: &Config) -> String {
    let (location, chroot) = (config.location(), quoted(&config.chroot));
    let (who, meaning) = match config.auth {
        None | Some(Auth::Digest(_)) => (
            "digest:USER:HASH",
            "\
# and for HASH what this prints in a shell:
#   printf %s 'USER:PASSWORD' | openssl dgst -sha1 -binary | openssl base64",
        ),
        Some(Auth::Sasl(_)) => (
            "sasl:USER",
            "\
# whose password the servers know: user_USER=\"PASSWORD\" in the section Server of their JAAS file.",
        ),
    };
    let create: Vec<_> = nodes(&config.chroot).map(|node| format!("create {}", quoted(node))).collect();
    format!(
        "\
# Rights for locks in {location}
#
# Paste the lines without # into zkCli.sh, with the account's name for USER
{meaning}
# A node that exists is not created again, and what is below it keeps the rights that it has: begin with an empty one, or
# log in as USER and repeat the last line with -R.
# Who can write there can take or break every lock. Others who share these locks, such as programs with Curator or kazoo,
# log in as the same user.
{create}
setAcl {chroot} {who}:cdrwa
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
    fn the_chroot_belongs_to_the_user() {
        let (text, lines) = rights("zk://ann:hunter2@h");
        assert_eq!(lines, ["create /fencepost", "setAcl /fencepost digest:USER:HASH:cdrwa"]);
        assert!(text.contains("openssl dgst -sha1"), "{text}");
        assert_eq!(rights("zk://h").1, lines);
    }

    #[test]
    fn what_is_above_the_chroot_is_created_and_left_to_all() {
        let expected =
            ["create /team", "create \"/team/a b\"", "setAcl \"/team/a b\" digest:USER:HASH:cdrwa"];
        assert_eq!(rights("zk://ann:hunter2@h/team/a%20b").1, expected);
    }

    #[test]
    fn users_that_the_servers_know() {
        let (text, lines) = rights("zk://ann:hunter2@h/x?auth=sasl");
        assert_eq!(lines[1], "setAcl /x sasl:USER:cdrwa");
        assert!(text.contains("JAAS") && !text.contains("HASH"), "{text}");
    }
}
