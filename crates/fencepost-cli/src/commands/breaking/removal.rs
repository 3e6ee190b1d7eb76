//! The command of the backend's own tool that removes the entry of a foreign holder.

use fencepost::{Finding, HolderState, shell_quote};

/// Returns the command, with the server that it is sent to, without user and password. `location` is that of the backend,
/// `findings` say where in it the lock is.
pub(super) fn removal(location: &str, holder: &HolderState, findings: &[Finding]) -> Option<String> {
    let located = |check: &str| {
        let found = findings.iter().find(|finding| finding.check == check)?.found.as_str();
        // What is stored there follows in parentheses.
        Some(found.rsplit_once(" (").map_or(found, |(key, _)| key))
    };
    let (scheme, rest) = location.split_once("://")?;
    let address = rest.split_once('?').map_or(rest, |(address, _)| address);
    let (hosts, path) = address.split_once('/').unwrap_or((address, ""));
    let (backend, is_tls) = match scheme.split_once('+') {
        Some((scheme, kind)) => (kind, scheme == "rediss"),
        None => (scheme, matches!(scheme, "rediss" | "etcds")),
    };
    match backend {
        "redis" | "rediss" | "sentinel" | "cluster" => {
            let redis = Redis { hosts, path, tls: if is_tls { " --tls" } else { "" } };
            let key = shell_quote(located("lock's key")?);
            Some(match backend {
                "sentinel" => redis.behind_sentinel(&key),
                "cluster" => redis.in_cluster(&key),
                _ => redis.on_one_server(&key),
            })
        }
        // The label of a foreign holder is the name of its key or node.
        "etcd" | "etcds" => {
            let key = shell_quote(holder.label.strip_prefix("key ")?);
            let scheme = if is_tls { "https://" } else { "" };
            let endpoints: Vec<String> = hosts.split(',').map(|host| format!("{scheme}{host}")).collect();
            Some(format!("etcdctl --endpoints={} del {key}", shell_quote(&endpoints.join(","))))
        }
        "zk" => {
            let node = format!("{}/{}", located("lock's node")?, holder.label);
            Some(format!("zkCli.sh -server {} delete {}", shell_quote(hosts), shell_quote(&node)))
        }
        _ => None,
    }
}

/// The parts of a location on Redis.
struct Redis<'a> {
    hosts: &'a str,
    /// The database; with sentinels the name of the primary, and the database.
    path: &'a str,
    tls: &'static str,
}

impl Redis<'_> {
    fn on_one_server(&self, key: &str) -> String {
        format!("{}{} DEL {key}", self.cli(), database(self.path))
    }

    fn behind_sentinel(&self, key: &str) -> String {
        let (primary, db) = self.path.split_once('/').unwrap_or((self.path, ""));
        let (cli, tls, db, primary) = (self.cli(), self.tls, database(db), shell_quote(primary));
        format!(
            "redis-cli -h HOST -p PORT{tls}{db} DEL {key}, on the primary of {primary}, whose HOST and PORT are printed by \
             {cli} SENTINEL GET-MASTER-ADDR-BY-NAME {primary}"
        )
    }

    fn in_cluster(&self, key: &str) -> String {
        format!("{} -c DEL {key}, which runs on the primary of the key", self.cli())
    }

    /// Returns the tool with the address of the first server.
    fn cli(&self) -> String {
        let first = self.hosts.split(',').next().unwrap_or(self.hosts);
        let (host, port) = first.rsplit_once(':').unwrap_or((first, "6379"));
        let host = shell_quote(host.trim_start_matches('[').trim_end_matches(']'));
        format!("redis-cli -h {host} -p {port}{}", self.tls)
    }
}

fn database(db: &str) -> String {
    if db.is_empty() { String::new() } else { format!(" -n {}", shell_quote(db)) }
}

#[cfg(test)]
mod tests {
    use fencepost::Mode;

    use super::*;

    fn foreign(label: &str) -> HolderState {
        HolderState::new(Mode::Exclusive, label)
    }

    #[test]
    fn a_key_on_redis_is_removed_on_its_server_and_in_its_database() {
        let key = [Finding::ok("lock's key", "my lock (a string)")];
        let removal = |location: &str| removal(location, &foreign("x"), &key).unwrap();
        assert_eq!(removal("redis://h:6380"), "redis-cli -h h -p 6380 DEL 'my lock'");
        assert_eq!(
            removal("rediss://[::1]:6379/2?dialect=redis-py"),
            "redis-cli -h ::1 -p 6379 --tls -n 2 DEL 'my lock'"
        );
        assert_eq!(
            removal("redis+sentinel://a:1,b:2/main/3"),
            "redis-cli -h HOST -p PORT -n 3 DEL 'my lock', on the primary of main, whose HOST and PORT are printed by \
             redis-cli -h a -p 1 SENTINEL GET-MASTER-ADDR-BY-NAME main"
        );
        assert_eq!(
            removal("rediss+cluster://a:1,b:2"),
            "redis-cli -h a -p 1 --tls -c DEL 'my lock', which runs on the primary of the key"
        );
    }

    #[test]
    fn an_entry_on_etcd_and_zookeeper_is_removed_on_its_servers() {
        let holder = foreign("key a/694d");
        assert_eq!(
            removal("etcd://a:1,b:2?layout=raw", &holder, &[]).unwrap(),
            "etcdctl --endpoints=a:1,b:2 del a/694d"
        );
        assert_eq!(
            removal("etcds://a:1,b:2", &holder, &[]).unwrap(),
            "etcdctl --endpoints=https://a:1,https://b:2 del a/694d"
        );
        let node = [Finding::ok("lock's node", "/locks/a (1 first, 0 behind)")];
        let holder = foreign("_c_1-lock-0000000001");
        assert_eq!(
            removal("zk://a:1,b:2/locks?tls=true", &holder, &node).unwrap(),
            "zkCli.sh -server a:1,b:2 delete /locks/a/_c_1-lock-0000000001"
        );
    }

    #[test]
    fn without_a_location_there_is_no_command() {
        let key = [Finding::ok("lock's key", "a")];
        assert_eq!(removal("redis://h:1", &foreign("x"), &[]), None);
        assert_eq!(removal("sqlite:/a", &foreign("x"), &key), None);
    }
}
