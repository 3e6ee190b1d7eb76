//! Which rights an account needs, as the lines that an administrator can paste.

use crate::config::{Config, Layout};

/// The role that these lines make.
fn role(config: &Config) -> String {
    let namespace = &config.namespace;
    if namespace == Config::DEFAULT_NAMESPACE { namespace.clone() } else { format!("fencepost-{namespace}") }
}

/// Where the locks are, if not below the namespace.
fn elsewhere(config: &Config) -> String {
    let role = role(config);
    let (why, grant) = match config.layout {
        Layout::Own => return String::new(),
        Layout::Raw => (
            "below their own names: a line for each lock NAME",
            format!("etcdctl role grant-permission {role} --prefix=true readwrite NAME/"),
        ),
        Layout::Single => (
            "at their own names: a line for each lock NAME",
            format!("etcdctl role grant-permission {role} readwrite NAME"),
        ),
    };
    let listing = format!("etcdctl role grant-permission {role} --prefix=true read PREFIX");
    format!(
        "
# The locks are {why}. With --prefix=true it is for all that begin so.
{grant}

# Only for lists of the locks whose names begin with PREFIX:
{listing}
"
    )
}

/// The rights that an account needs, with what they are for.
pub(crate) fn rights_on(config: &Config) -> String {
    let (location, role, namespace) = (config.location(), role(config), &config.namespace);
    format!(
        "\
# Rights for locks in {location}
#
# Paste into a shell where etcdctl is root on one of the members (--endpoints, --user), with the account's name for USER
# and its password for PASSWORD. Once `etcdctl auth enable` was said, nobody has more than this.
# Who can write to these keys can take or break every lock of the namespace.
etcdctl role add {role}
etcdctl role grant-permission {role} --prefix=true readwrite {namespace}/
etcdctl user add USER:PASSWORD
etcdctl user grant-role USER {role}
{elsewhere}",
        elsewhere = elsewhere(config),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn lines(url: &str) -> Vec<String> {
        let text = rights_on(&parse(url).unwrap());
        assert!(!text.contains("ann") && !text.contains("hunter2"), "{text}");
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn a_role_for_the_namespace() {
        let expected = [
            "etcdctl role add fencepost",
            "etcdctl role grant-permission fencepost --prefix=true readwrite fencepost/",
            "etcdctl user add USER:PASSWORD",
            "etcdctl user grant-role USER fencepost",
        ];
        assert_eq!(lines("etcds://ann:hunter2@h?tls_server_name=hunter2"), expected);
        let another = lines("etcd://h?namespace=team/a");
        assert_eq!(
            another[1],
            "etcdctl role grant-permission fencepost-team/a --prefix=true readwrite team/a/"
        );
    }

    #[test]
    fn locks_elsewhere_need_more() {
        let raw = lines("etcd://ann:hunter2@h?layout=raw");
        assert_eq!(raw.len(), 6);
        assert_eq!(raw[4], "etcdctl role grant-permission fencepost --prefix=true readwrite NAME/");
        let single = lines("etcd://h?layout=single");
        assert_eq!(single[4], "etcdctl role grant-permission fencepost readwrite NAME");
        assert_eq!(single[5], "etcdctl role grant-permission fencepost --prefix=true read PREFIX");
    }
}
