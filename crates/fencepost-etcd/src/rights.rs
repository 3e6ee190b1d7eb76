//! The permissions that an account needs, as shell commands for an administrator.

use crate::config::{Config, Layout};

/// Returns the name of the role that the commands create.
fn role(config: &Config) -> String {
    let namespace = &config.namespace;
    if namespace == Config::DEFAULT_NAMESPACE { namespace.clone() } else { format!("fencepost-{namespace}") }
}

/// Returns the commands for locks that are not below the namespace.
fn foreign_layout(config: &Config) -> String {
    let role = role(config);
    let (location, grant) = match config.layout {
        Layout::Own => return String::new(),
        Layout::Raw => (
            "below their own names: one command for each lock NAME",
            format!("etcdctl role grant-permission {role} --prefix=true readwrite NAME/"),
        ),
        Layout::Single => (
            "at their own names: one command for each lock NAME",
            format!("etcdctl role grant-permission {role} readwrite NAME"),
        ),
    };
    let listing = format!("etcdctl role grant-permission {role} --prefix=true read PREFIX");
    format!(
        "
# The locks are {location}. With --prefix=true, NAME is a prefix of lock names.
{grant}

# Only to list the locks whose names start with PREFIX:
{listing}
"
    )
}

/// Returns the commands, with comments.
pub(crate) fn rights_on(config: &Config) -> String {
    let (location, role, namespace) = (config.location(), role(config), &config.namespace);
    format!(
        "\
# Permissions for locks in {location}
#
# Run in a shell where etcdctl is root on one of the members (--endpoints, --user); replace USER and PASSWORD by those of
# the account. They are enforced once authentication is on: `etcdctl auth enable`.
# An account that can write these keys can acquire or break every lock of the namespace.
etcdctl role add {role}
etcdctl role grant-permission {role} --prefix=true readwrite {namespace}/
etcdctl user add USER:PASSWORD
etcdctl user grant-role USER {role}
{foreign}",
        foreign = foreign_layout(config),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn commands(url: &str) -> Vec<String> {
        let text = rights_on(&parse(url).unwrap());
        assert!(!text.contains("ann") && !text.contains("hunter2"), "{text}");
        let commands = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        commands.map(str::to_owned).collect()
    }

    #[test]
    fn one_role_for_the_namespace() {
        let expected = [
            "etcdctl role add fencepost",
            "etcdctl role grant-permission fencepost --prefix=true readwrite fencepost/",
            "etcdctl user add USER:PASSWORD",
            "etcdctl user grant-role USER fencepost",
        ];
        assert_eq!(commands("etcds://ann:hunter2@h?tls_server_name=hunter2"), expected);
        let another = commands("etcd://h?namespace=team/a");
        assert_eq!(
            another[1],
            "etcdctl role grant-permission fencepost-team/a --prefix=true readwrite team/a/"
        );
    }

    #[test]
    fn foreign_layouts_need_more_permissions() {
        let raw = commands("etcd://ann:hunter2@h?layout=raw");
        assert_eq!(raw.len(), 6);
        assert_eq!(raw[4], "etcdctl role grant-permission fencepost --prefix=true readwrite NAME/");
        let single = commands("etcd://h?layout=single");
        assert_eq!(single[4], "etcdctl role grant-permission fencepost readwrite NAME");
        assert_eq!(single[5], "etcdctl role grant-permission fencepost --prefix=true read PREFIX");
    }
}
