//! The areas that `--only` can name: which crates belong to each, and what these need on the machine.
//!
//! A backend that needs a server gets an area here, with the server among its needs.

use crate::shell::Failure;

/// A part of the workspace that can be tested by itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) name: &'static str,
    pub(crate) packages: &'static [&'static str],
    needs: &'static [Need],
}

/// What has to be on the machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// A program, by its name, or a file, by its path.
    pub(crate) what: &'static str,
    /// The Debian packages that bring it.
    pub(crate) packages: &'static [&'static str],
    pub(crate) why: &'static str,
}

const CC: Need = Need {
    what: "cc",
    packages: &["gcc", "libc6-dev"],
    why: "compiles the bundled SQLite, and the clock that tests move under Redis",
};
const FLOCK: Need =
    Need { what: "flock", packages: &["util-linux"], why: "is what the command line is compared with" };
const REDIS_SERVER: Need =
    Need { what: "redis-server", packages: &["redis-server"], why: "is the storage that tests start" };
const REDIS_SENTINEL: Need = Need {
    what: "redis-sentinel",
    packages: &["redis-sentinel"],
    why: "replaces a primary that tests have killed",
};
const REDIS_CLI: Need =
    Need { what: "redis-cli", packages: &["redis-tools"], why: "looks into Redis from outside" };
const OPENSSL: Need =
    Need { what: "openssl", packages: &["openssl"], why: "makes certificates for servers with TLS" };
const PYTHON: Need = Need {
    what: "python3",
    packages: &["python3", "python3-venv"],
    why: "runs libraries whose locks ours must exclude",
};
const ETCD: Need = Need { what: "etcd", packages: &["etcd-server"], why: "is the storage that tests start" };
const ETCDCTL: Need =
    Need { what: "etcdctl", packages: &["etcd-client"], why: "looks into etcd from outside" };
const JAVA: Need = Need { what: "java", packages: &["default-jre-headless"], why: "runs ZooKeeper" };
/// The service of the package `zookeeper` is of no use here, and brings a desktop's Java with it.
const ZOOKEEPER: Need = Need {
    what: "/usr/share/java/zookeeper.jar",
    packages: &["libzookeeper-java"],
    why: "is the storage that tests start",
};
/// What the servers of the test kit take.
const SERVERS: &[Need] =
    &[REDIS_SERVER, REDIS_SENTINEL, REDIS_CLI, OPENSSL, CC, ETCD, ETCDCTL, JAVA, ZOOKEEPER];

const AREAS: [Area; 8] = [
    Area { name: "core", packages: &["fencepost-core", "fencepost-testkit"], needs: SERVERS },
    Area { name: "memory", packages: &["fencepost-memory"], needs: &[] },
    Area { name: "sqlite", packages: &["fencepost-sqlite"], needs: &[CC] },
    Area {
        name: "redis",
        packages: &["fencepost-redis"],
        needs: &[REDIS_SERVER, REDIS_SENTINEL, REDIS_CLI, OPENSSL, CC],
    },
    Area { name: "etcd", packages: &["fencepost-etcd"], needs: &[ETCD, ETCDCTL, OPENSSL] },
    Area { name: "zookeeper", packages: &["fencepost-zookeeper"], needs: &[JAVA, ZOOKEEPER, OPENSSL] },
    Area {
        name: "interop",
        packages: &["fencepost-interop"],
        needs: &[REDIS_SERVER, REDIS_CLI, ETCD, ETCDCTL, JAVA, ZOOKEEPER, PYTHON],
    },
    Area {
        name: "cli",
        packages: &["fencepost-cli", "fencepost"],
        needs: &[CC, FLOCK, REDIS_SERVER, REDIS_CLI, ETCD, ETCDCTL, JAVA, ZOOKEEPER],
    },
];

/// The areas in a list such as `sqlite,memory`.
pub(crate) fn named(list: &str) -> Result<Vec<&'static Area>, Failure> {
    list.split(',')
        .map(|name| AREAS.iter().find(|area| area.name == name).ok_or_else(|| unknown(name)))
        .collect()
}

/// What the areas need, each thing once; no area at all stands for every area.
pub(crate) fn needs(areas: &[&Area]) -> Vec<&'static Need> {
    let mut needs: Vec<&Need> = Vec::new();
    let chosen = AREAS.iter().filter(|area| areas.is_empty() || areas.contains(area));
    for need in chosen.flat_map(|area| area.needs) {
        if !needs.contains(&need) {
            needs.push(need);
        }
    }
    needs
}

fn unknown(name: &str) -> Failure {
    let known = AREAS.each_ref().map(|area| area.name).join(", ");
    Failure::Usage(format!("`--only` does not know `{name}`; it knows {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_area_is_answered_with_the_known_ones() {
        let expected = "`--only` does not know `floppy`; it knows core, memory, sqlite, redis, etcd, zookeeper, interop, cli";
        assert_eq!(named("sqlite,floppy"), Err(Failure::Usage(expected.into())));
    }

    #[test]
    fn needs_are_listed_once_and_only_for_what_is_tested() {
        let things = |list: &[&Area]| needs(list).iter().map(|need| need.what).collect::<Vec<_>>();
        let zookeeper = ["java", "/usr/share/java/zookeeper.jar"];
        let redis = ["redis-server", "redis-sentinel", "redis-cli", "openssl", "cc"];
        let servers = [redis.as_slice(), &["etcd", "etcdctl"], &zookeeper].concat();
        assert_eq!(things(&[]), [servers.as_slice(), &["python3", "flock"]].concat());
        assert_eq!(things(&named("sqlite").unwrap()), ["cc"]);
        assert_eq!(things(&named("core").unwrap()), servers);
        assert_eq!(things(&named("core,interop").unwrap()), [servers.as_slice(), &["python3"]].concat());
        assert_eq!(things(&named("etcd").unwrap()), ["etcd", "etcdctl", "openssl"]);
        assert_eq!(things(&named("zookeeper").unwrap()), [zookeeper.as_slice(), &["openssl"]].concat());
        assert_eq!(things(&named("memory").unwrap()), Vec::<&str>::new());
    }
}
