//! The areas that `--only` can name: the crates of each, and what they need on the machine.
//!
//! A backend that needs a server gets an area here, with the server among its needs.

use crate::shell::Failure;

/// A part of the workspace that can be tested alone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) name: &'static str,
    pub(crate) packages: &'static [&'static str],
    needs: &'static [Need],
}

/// What has to be installed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// A program, by its name, or a file, by its path, in which `*` stands for any folder.
    pub(crate) what: &'static str,
    /// The Debian packages that contain it.
    pub(crate) packages: &'static [&'static str],
    pub(crate) why: &'static str,
}

const CC: Need = Need {
    what: "cc",
    packages: &["gcc", "libc6-dev"],
    why: "compiles the bundled SQLite, and what tests preload into servers",
};
const FLOCK: Need =
    Need { what: "flock", packages: &["util-linux"], why: "is compared with the command line" };
const REDIS_SERVER: Need =
    Need { what: "redis-server", packages: &["redis-server"], why: "is started by tests" };
const REDIS_SENTINEL: Need =
    Need { what: "redis-sentinel", packages: &["redis-sentinel"], why: "replaces a primary that tests kill" };
const REDIS_CLI: Need = Need { what: "redis-cli", packages: &["redis-tools"], why: "inspects Redis" };
const OPENSSL: Need =
    Need { what: "openssl", packages: &["openssl"], why: "creates certificates for servers with TLS" };
const PYTHON: Need = Need {
    what: "python3",
    packages: &["python3", "python3-venv"],
    why: "runs libraries that share locks with ours",
};
const ETCD: Need = Need { what: "etcd", packages: &["etcd-server"], why: "is started by tests" };
const ETCDCTL: Need = Need { what: "etcdctl", packages: &["etcd-client"], why: "inspects etcd" };
const JAVA: Need = Need { what: "java", packages: &["default-jre-headless"], why: "runs ZooKeeper" };
/// The package `zookeeper` would add a service, and the Java of a desktop.
const ZOOKEEPER: Need = Need {
    what: "/usr/share/java/zookeeper.jar",
    packages: &["libzookeeper-java"],
    why: "is started by tests",
};
/// With its tools, such as `psql` and `pgbench`.
const POSTGRES: Need = Need {
    what: "/usr/lib/postgresql/*/bin/postgres",
    packages: &["postgresql"],
    why: "is started by tests",
};
const PGBOUNCER: Need = Need {
    what: "/usr/sbin/pgbouncer",
    packages: &["pgbouncer"],
    why: "stands between tests and PostgreSQL",
};
const MARIADB: Need =
    Need { what: "/usr/sbin/mariadbd", packages: &["mariadb-server"], why: "is started by tests" };
/// What the servers of the test kit need.
const SERVERS: &[Need] = &[
    REDIS_SERVER,
    REDIS_SENTINEL,
    REDIS_CLI,
    OPENSSL,
    CC,
    ETCD,
    ETCDCTL,
    JAVA,
    ZOOKEEPER,
    POSTGRES,
    PGBOUNCER,
    MARIADB,
];

const AREAS: [Area; 10] = [
    Area { name: "core", packages: &["fencepost-core", "fencepost-testkit"], needs: SERVERS },
    Area { name: "memory", packages: &["fencepost-memory"], needs: &[] },
    Area { name: "sqlite", packages: &["fencepost-sql", "fencepost-sqlite"], needs: &[CC] },
    Area {
        name: "redis",
        packages: &["fencepost-redis"],
        needs: &[REDIS_SERVER, REDIS_SENTINEL, REDIS_CLI, OPENSSL, CC],
    },
    Area { name: "etcd", packages: &["fencepost-etcd"], needs: &[ETCD, ETCDCTL, OPENSSL] },
    Area { name: "zookeeper", packages: &["fencepost-zookeeper"], needs: &[JAVA, ZOOKEEPER, OPENSSL] },
    Area { name: "postgres", packages: &["fencepost-postgres"], needs: &[POSTGRES, PGBOUNCER, OPENSSL, CC] },
    Area { name: "mysql", packages: &["fencepost-mysql"], needs: &[MARIADB, OPENSSL, CC] },
    Area {
        name: "interop",
        packages: &["fencepost-interop"],
        needs: &[REDIS_SERVER, REDIS_CLI, ETCD, ETCDCTL, JAVA, ZOOKEEPER, POSTGRES, MARIADB, PYTHON],
    },
    Area {
        name: "cli",
        packages: &["fencepost-cli", "fencepost"],
        needs: &[CC, FLOCK, REDIS_SERVER, REDIS_CLI, ETCD, ETCDCTL, JAVA, ZOOKEEPER, POSTGRES, MARIADB],
    },
];

/// Returns the areas in a list such as `sqlite,memory`.
pub(crate) fn named(list: &str) -> Result<Vec<&'static Area>, Failure> {
    list.split(',')
        .map(|name| AREAS.iter().find(|area| area.name == name).ok_or_else(|| unknown(name)))
        .collect()
}

/// Returns what the areas need, each item once; an empty list stands for every area.
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
    fn an_unknown_area_is_rejected_with_the_known_ones() {
        let expected = "`--only` does not know `floppy`; it knows core, memory, sqlite, redis, etcd, zookeeper, postgres, mysql, interop, cli";
        assert_eq!(named("sqlite,floppy"), Err(Failure::Usage(expected.into())));
    }

    #[test]
    fn needs_are_listed_once_and_only_for_what_is_tested() {
        let things = |list: &[&Area]| needs(list).iter().map(|need| need.what).collect::<Vec<_>>();
        let zookeeper = ["java", "/usr/share/java/zookeeper.jar"];
        let redis = ["redis-server", "redis-sentinel", "redis-cli", "openssl", "cc"];
        let postgres = ["/usr/lib/postgresql/*/bin/postgres", "/usr/sbin/pgbouncer"];
        let databases = [postgres.as_slice(), &["/usr/sbin/mariadbd"]].concat();
        let servers = [redis.as_slice(), &["etcd", "etcdctl"], &zookeeper, &databases].concat();
        assert_eq!(things(&[]), [servers.as_slice(), &["python3", "flock"]].concat());
        assert_eq!(things(&named("sqlite").unwrap()), ["cc"]);
        assert_eq!(things(&named("core").unwrap()), servers);
        assert_eq!(things(&named("core,interop").unwrap()), [servers.as_slice(), &["python3"]].concat());
        assert_eq!(things(&named("etcd").unwrap()), ["etcd", "etcdctl", "openssl"]);
        assert_eq!(things(&named("zookeeper").unwrap()), [zookeeper.as_slice(), &["openssl"]].concat());
        assert_eq!(things(&named("postgres").unwrap()), [postgres.as_slice(), &["openssl", "cc"]].concat());
        assert_eq!(things(&named("mysql").unwrap()), ["/usr/sbin/mariadbd", "openssl", "cc"]);
        assert_eq!(things(&named("memory").unwrap()), Vec::<&str>::new());
    }
}
