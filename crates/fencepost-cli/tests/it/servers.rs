//! The commands on servers: what they do there, and the errors of a URL that does not work.

use std::process::Command;

use fencepost_testkit::servers::etcd::{self, EtcdServer};
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::servers::zookeeper::{self, ZooKeeperServer, ZooKeeperServerConfig};
use fencepost_testkit::servers::{free_port, mariadb, postgres};
use serde_json::Value;

use crate::sandbox::{Ran, Running, Sandbox, until};

const SECRET: &str = "geheim";

/// The options of tables of other programs, and their columns.
pub(crate) const SHEDLOCK: (&str, &str) = (
    "dialect=shedlock",
    "name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL, \
     locked_by VARCHAR(255) NOT NULL",
);
pub(crate) const HOME_MADE: (&str, &str) = (
    "dialect=table&name=lock_name&owner=owner_id&expires=expires_at",
    "lock_name text PRIMARY KEY, owner_id text NOT NULL, expires_at timestamptz NOT NULL",
);

/// Returns the name of a namespace or a table that does not exist.
fn unused_name() -> String {
    format!("cli_{:x}_{}", std::process::id(), free_port())
}

/// A folder, and a separate namespace on a server that other tests use too.
pub(crate) struct Stage {
    pub(crate) sandbox: Sandbox,
    pub(crate) url: String,
}

impl Stage {
    fn everywhere() -> Vec<Self> {
        Self::all()
            .into_iter()
            .chain(Self::databases())
            .chain(Self::sessions())
            .chain(Self::tables())
            .collect()
    }

    /// A namespace in each database.
    pub(crate) fn databases() -> [Self; 2] {
        let own = unused_name();
        let postgres = format!("{}?namespace={own}", postgres::shared().url("postgres"));
        let mariadb = format!("{}?namespace={own}", mariadb::shared().url());
        [postgres, mariadb].map(|url| Self { sandbox: Sandbox::new(), url })
    }

    /// The locks of sessions of each database: advisory locks and named locks.
    pub(crate) fn sessions() -> [Self; 2] {
        let modes = ["?mode=advisory&", "?mode=named&"];
        let mut stages = Self::databases();
        for (stage, mode) in stages.iter_mut().zip(modes) {
            stage.url = stage.url.replace('?', mode);
        }
        stages
    }

    /// Tables of other programs in PostgreSQL: that of `ShedLock`, and a home-made one.
    pub(crate) fn tables() -> [Self; 2] {
        [SHEDLOCK, HOME_MADE].map(|(options, columns)| {
            let table = unused_name();
            postgres::shared().psql(&format!("CREATE TABLE {table} ({columns})"));
            let url = format!("{}?{options}&table={table}", postgres::shared().url("postgres"));
            Self { sandbox: Sandbox::new(), url }
        })
    }

    pub(crate) fn is_mariadb(&self) -> bool {
        self.url.starts_with("mysql:")
    }

    /// Returns whether the locks are in a table of another program.
    pub(crate) fn is_table(&self) -> bool {
        self.url.contains("dialect=")
    }

    /// The namespace in a database, or the table of another program.
    pub(crate) fn namespace(&self) -> &str {
        self.url.rsplit('=').next().unwrap()
    }

    fn all() -> [Self; 2] {
        let own = format!("cli-{:x}-{}", std::process::id(), free_port());
        let etcd = format!("{}?namespace={own}", etcd::shared().url());
        let zookeeper = format!("{}/{own}", zookeeper::shared().url());
        [etcd, zookeeper].map(|url| Self { sandbox: Sandbox::new(), url })
    }

    pub(crate) fn fencepost(&self, args: &[&str]) -> Command {
        let mut command = self.sandbox.fencepost(args);
        command.env("FENCEPOST_URL", &self.url);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran(self.fencepost(args).output().unwrap())
    }

    /// What a command says, as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(args).expect(0).stdout()).unwrap()
    }

    /// Starts a holder that ends when the file `go` is there, and waits until it holds.
    pub(crate) fn hold(&self, name: &str, options: &[&str]) -> Running {
        self.sandbox.write("there", "");
        let script = "echo $$ > held; while [ -e there ] && ! [ -e go ]; do sleep 0.02; done";
        let words = [&["run"], options, &[name, "--", "sh", "-c", script]].concat();
        let mut running = Running::start(&mut self.fencepost(&words));
        until("it holds", || {
            assert!(!running.has_ended(), "it has ended: {}", running.said());
            self.sandbox.read("held").ends_with('\n')
        });
        running
    }

    pub(crate) fn let_go(&self) {
        self.sandbox.write("go", "");
    }
}

/// Returns the severity and the text of one check.
#[track_caller]
pub(crate) fn finding<'a>(examined: &'a Value, check: &str) -> (&'a str, &'a str) {
    let findings = examined["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == check);
    let finding = finding.unwrap_or_else(|| panic!("no {check} in {examined}"));
    (finding["verdict"].as_str().unwrap(), finding["found"].as_str().unwrap())
}

#[test]
fn a_lock_is_held_shown_waited_for_and_free_again() {
    for stage in Stage::everywhere() {
        let mut holder = stage.hold("a/b", &["--owner-label", "ours"]);
        let locks = stage.json(&["list", "--json"]);
        assert_eq!((&locks[0]["name"], &locks[0]["scope"]), (&"a/b".into(), &"fleet".into()), "{locks}");
        let lock = stage.json(&["show", "a/b", "--json"]);
        assert_eq!(lock["holders"][0]["label"], "ours", "{lock}");
        stage.run(&["run", "-n", "a/b", "--", "true"]).expect(75);
        let script = r#"echo "$FENCEPOST_TOKEN" > second"#;
        let mut waiter = Running::start(&mut stage.fencepost(&["run", "a/b", "--", "sh", "-c", script]));
        waiter.until_said("waiting for \"a/b\": held by ours");
        // The table of another program has no column for waiters.
        let waiters = usize::from(!stage.is_table());
        assert_eq!(stage.json(&["show", "a/b", "--json"])["waiters"], waiters, "{}", stage.url);
        stage.let_go();
        holder.expect(0);
        waiter.expect(0);
        let second: u64 = stage.sandbox.line("second").parse().unwrap();
        assert!(second > lock["holders"][0]["token"].as_u64().unwrap(), "{second}, {lock}");
        assert_eq!(stage.json(&["list", "--json"]), Value::Array(Vec::new()));
    }
}

#[test]
fn a_lock_is_broken_and_its_command_ends() {
    for stage in Stage::everywhere() {
        // Where the server does not tell the holder, it notices at its next renewal.
        let mut holder = stage.hold("a", &["--ttl", "6s"]);
        stage.run(&["break", "a", "--yes"]).expect(0);
        holder.expect(76);
        assert_eq!(stage.json(&["list", "--json"]), Value::Array(Vec::new()));
    }
}

#[test]
fn changes_are_watched() {
    for stage in Stage::everywhere() {
        stage.run(&["run", "first", "true"]).expect(0);
        let out = std::fs::File::create(stage.sandbox.path("changes")).unwrap();
        let mut watching = stage.fencepost(&["watch", "--every", "100ms"]);
        let watching = Running::start_into(&mut watching, out.into());
        let mut holder = stage.hold("seen", &[]);
        until("it is seen", || stage.sandbox.read("changes").contains("\"seen\""));
        stage.let_go();
        holder.expect(0);
        drop(watching);
    }
}

#[test]
fn the_doctor_checks_the_servers_and_finds_a_lock() {
    for stage in Stage::all() {
        stage.run(&["run", "a", "true"]).expect(0);
        let examined = stage.json(&["doctor", "--json", "a"]);
        let place = stage.url.split(['/', '=']).next_back().unwrap();
        for (check, said) in [
            ("reachability", "127.0.0.1"),
            ("access", "granted"),
            ("scope", "all hosts"),
            ("ttl", "the median of 9"),
            ("encryption", "none"),
            ("failover", "one"),
            ("clocks", "leader"),
            ("leader", ""),
        ] {
            let (verdict, found) = finding(&examined, check);
            assert!(verdict == "fine" && found.contains(said), "{check}: {verdict}, {found}");
        }
        let is_etcd = stage.url.starts_with("etcd");
        let (server, lock) =
            if is_etcd { ("etcd 3.", "lock's keys") } else { ("ZooKeeper 3.", "lock's node") };
        assert!(finding(&examined, "server").1.starts_with(server), "{examined}");
        assert!(finding(&examined, lock).1.contains(place), "{examined}");
    }
}

/// etcd needs no preparation; on ZooKeeper a chroot that does not exist is an error for commands that only read.
#[test]
fn reading_creates_nothing() {
    let [etcd, zookeeper] = Stage::all();
    assert_eq!(etcd.json(&["list", "--json"]), Value::Array(Vec::new()));
    assert!(
        finding(&etcd.json(&["doctor", "--json"]), "namespace").1.contains("no lock has been acquired yet")
    );
    let namespace = etcd.url.rsplit('=').next().unwrap();
    assert_eq!(etcd::shared().ctl(&["get", "--prefix", namespace, "--keys-only"]), "");

    zookeeper.run(&["list"]).expect(125);
    assert_eq!(finding(&zookeeper.json(&["doctor", "--json"]), "storage").0, "warning");
    let chroot = zookeeper.url.rsplit('/').next().unwrap();
    assert!(!zookeeper::shared().cli(&["ls", "/"]).contains(chroot));
}

/// Scenario 69: a foreign node that may not wait for a Fencepost client is a problem for the doctor, and a warning of `run`;
/// one that does not exclude it at all is an error.
#[test]
fn foreign_nodes_that_do_not_exclude_are_reported() {
    let [_, stage] = Stage::all();
    stage.run(&["run", "a", "--", "true"]).expect(0);
    let node = format!("/{}/a", stage.url.rsplit('/').next().unwrap());
    // The servers may have removed the empty node.
    let server = zookeeper::shared();
    let kazoo = format!("{node}/0f1e2d3c4b5a69788796a5b4c3d2e1f0__lock__1000000000");
    let _ = server.try_cli(&zookeeper::CliLogin::Anonymous, &["create", &node]);
    server.cli(&["create", &kazoo, "host"]);
    let ran = stage.run(&["run", "a", "--", "true"]).expect(0);
    assert!(
        ran.stderr().contains("warning: ") && ran.stderr().contains("belongs to kazoo"),
        "{}",
        ran.stderr()
    );
    let doctor = stage.run(&["doctor", "--json", "a"]).expect(1);
    let examined = serde_json::from_str(&doctor.stdout()).unwrap();
    assert_eq!(finding(&examined, "foreign nodes").0, "problem");
    server.cli(&["delete", &kazoo]);

    server.cli(&["create", &format!("{node}/leases")]);
    server.cli(&["create", &format!("{node}/leases/lease-0000000000")]);
    let ran = stage.run(&["run", "a", "--", "true"]).expect(125);
    assert!(ran.stderr().contains("InterProcessSemaphoreV2"), "{}", ran.stderr());
}

#[test]
fn rights_are_printed_without_connecting() {
    let sandbox = Sandbox::new();
    for (url, said) in [
        (
            "etcd://ann:geheim@nowhere.invalid",
            "etcdctl role grant-permission fencepost --prefix=true readwrite fencepost/",
        ),
        ("zk://ann:geheim@nowhere.invalid/team", "setAcl /team digest:USER:HASH:cdrwa"),
        (
            "postgres://ann:geheim@nowhere.invalid/jobs?namespace=team",
            "GRANT USAGE ON SCHEMA \"team\" TO \"ACCOUNT\";",
        ),
        (
            "mysql://ann:geheim@nowhere.invalid/jobs?namespace=team",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON `jobs`.`team_locks` TO 'ann'@'%';",
        ),
        (
            "postgres://ann:geheim@nowhere.invalid/jobs?mode=advisory&namespace=team",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON \"team\".advisory_sessions TO \"ACCOUNT\";",
        ),
        (
            "mysql://ann:geheim@nowhere.invalid/jobs?mode=named&namespace=team",
            "GRANT CREATE, SELECT, INSERT, DELETE ON `jobs`.`team_named_sessions` TO 'ann'@'%';",
        ),
        (
            "postgres://ann:geheim@nowhere.invalid/jobs?dialect=shedlock",
            "GRANT SELECT, INSERT, UPDATE ON \"shedlock\" TO \"ACCOUNT\";",
        ),
        (
            "postgres://ann:geheim@nowhere.invalid/jobs?dialect=table&table=team.jobs&name=n&owner=o",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON \"team\".\"jobs\" TO \"ACCOUNT\";",
        ),
    ] {
        let ran = sandbox.run(&["rights", "--url", url]).expect(0);
        assert!(ran.stdout().contains(said) && !ran.stdout().contains(SECRET), "{}", ran.stdout());
    }
}

#[test]
fn malformed_urls_are_rejected_and_their_secrets_not_quoted() {
    let sandbox = Sandbox::new();
    for (url, said) in [
        ("etcd://u:geheim@h/path", "has a path"),
        ("etcd://u:geheim@h?nonsense=1", "unknown option \"nonsense\""),
        ("etcd://u:geheim@h?layout=nonsense", "\"layout\""),
        ("etcd://", ""),
        ("zk://u:geheim@h?dialect=nonsense", "\"dialect\""),
        ("zk://u:geheim@h?auth=nonsense", "\"auth\""),
        ("zk://h?auth=sasl", "user and password"),
        ("zk://h?tls_insecure=true", "TLS"),
        ("postgres://:geheim@h/d", "has no user"),
        ("postgres://u:geheim@h/d?mode=nonsense", "\"mode\""),
        ("postgres://u:geheim@h/d?sslmode=prefer", "without encryption"),
        ("postgresql://u:geheim@h/d?namespace=pg_catalog", "namespace"),
        ("mysql://u:geheim@h", "must name one database"),
        ("mysql://u:geheim@a,b/d", "several hosts"),
        ("mysql://u:geheim@h/d?mode=nonsense", "\"mode\""),
        ("mysql://u:geheim@h/d?mode=advisory", "\"mode\""),
        ("mysql://u:geheim@h/d?dialect=shedlock", "unknown option \"dialect\""),
        ("postgres://u:geheim@h/d?mode=named", "\"mode\""),
        ("postgres://u:geheim@h/d?mode=advisory&dialect=shedlock", "mode=advisory has none"),
        ("postgres://u:geheim@h/d?dialect=table&table=t&name=n", "needs the option \"owner\""),
        ("mariadb://u:geheim@h/d?namespace=A-b", "namespace"),
    ] {
        for args in
            [&["run", "--url", url, "a", "true"][..], &["list", "--url", url], &["rights", "--url", url]]
        {
            let ran = sandbox.run(args).expect(125);
            let told = ran.stdout() + &ran.stderr();
            assert!(told.contains(said) && !told.contains(SECRET), "{args:?}: {told}");
        }
        let ran = sandbox.run(&["doctor", "--url", url, "--json"]).expect(1);
        assert_eq!(finding(&serde_json::from_str(&ran.stdout()).unwrap(), "URL").0, "problem");
        assert!(!(ran.stdout() + &ran.stderr()).contains(SECRET), "{}", ran.stdout());
    }
}

#[test]
fn an_unreachable_server_is_reported_without_the_password() {
    let sandbox = Sandbox::new();
    let port = free_port();
    for (scheme, path) in [("etcd", ""), ("etcds", ""), ("zk", ""), ("postgres", ""), ("mysql", "/d")] {
        let url = format!("{scheme}://user:{SECRET}@127.0.0.1:{port}{path}");
        for args in
            [&["run", "-v", "a", "true"][..], &["list"], &["show", "a"], &["watch"], &["break", "a", "--yes"]]
        {
            let output = sandbox.fencepost(args).env("FENCEPOST_URL", &url).output().unwrap();
            let ran = Ran(output).expect(125);
            let told = ran.stdout() + &ran.stderr();
            assert!(told.contains(&format!("127.0.0.1:{port}")), "{args:?}: {told}");
            assert!(!told.contains(SECRET), "{args:?}: {told}");
        }
        let output = sandbox.fencepost(["doctor", "--json"]).env("FENCEPOST_URL", &url).output().unwrap();
        let ran = Ran(output).expect(1);
        let examined = serde_json::from_str(&ran.stdout()).unwrap();
        assert_eq!(finding(&examined, "reachability").0, "problem");
        assert_eq!(finding(&examined, "configuration").0, "fine");
        assert!(!ran.stdout().contains(SECRET), "{}", ran.stdout());
    }
}

#[test]
fn a_wrong_password_is_denied_and_not_shown() {
    let sandbox = Sandbox::new();
    let server = EtcdServer::start(&etcd::EtcdServerConfig::plain().with_user("ann", SECRET));
    let url = server.url_as("ann").replace(SECRET, "geheimnis");
    let output = sandbox.fencepost(["doctor", "--json"]).env("FENCEPOST_URL", &url).output().unwrap();
    let ran = Ran(output).expect(1);
    let examined = serde_json::from_str(&ran.stdout()).unwrap();
    assert_eq!(finding(&examined, "reachability").0, "fine");
    assert_eq!(finding(&examined, "access").0, "problem");
    assert!(!ran.stdout().contains(SECRET), "{}", ran.stdout());
}

/// What a backend cannot do is an error before the command runs.
#[test]
fn an_unsupported_mode_is_rejected() {
    let ([mut etcd, _], [advisory, named], [shedlock, table]) =
        (Stage::all(), Stage::sessions(), Stage::tables());
    etcd.url += "&layout=raw";
    let semaphore = &["--semaphore", "2"][..];
    for (stage, options, said, hint) in [
        (&etcd, &["--shared"][..], "layout=raw", ""),
        (&advisory, semaphore, "advisory locks do not support semaphores", "use mode=lease"),
        (&named, semaphore, "named locks do not support semaphores", "use mode=lease"),
        (&named, &["--shared"], "named locks do not support the mode shared", "use mode=lease"),
        (&shedlock, semaphore, "locks with dialect=shedlock are exclusive", "without that option"),
        (&shedlock, &["--shared"], "locks with dialect=shedlock are exclusive", "without that option"),
        (&table, semaphore, "locks with dialect=table are exclusive", "without that option"),
        (&table, &["--shared"], "locks with dialect=table are exclusive", "without that option"),
    ] {
        let words = [&["run"], options, &["a", "--", "touch", "ran"]].concat();
        let ran = stage.run(&words).expect(125);
        let told = ran.stderr();
        assert!(told.contains(said) && told.contains(&format!("hint: {hint}")), "{words:?}: {told}");
        assert!(!stage.sandbox.path("ran").exists(), "{words:?}");
    }
    advisory.run(&["run", "--shared", "a", "--", "touch", "ran"]).expect(0);
    assert!(advisory.sandbox.path("ran").exists());
}

/// Scenario 66: a Redis that lacks replicas for a while. A waiter keeps waiting; a new run retries until its wait is over,
/// and reports the reason.
#[test]
fn a_server_that_rejects_writes_for_a_while_ends_no_waiter() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let stage = Stage { sandbox: Sandbox::new(), url: server.url() };
    let mut holder = stage.hold("a", &["--ttl", "20s"]);
    let mut waiter = Running::start(&mut stage.fencepost(&["run", "--ttl", "2s", "a", "--", "true"]));
    until("it waits", || stage.json(&["show", "a", "--json"])["waiters"] == 1);
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let refused = stage.run(&["run", "--wait", "1s", "b", "--", "true"]).expect(125);
    assert!(refused.stderr().contains("NOREPLICAS"), "{}", refused.stderr());
    assert!(refused.stderr().contains("min-replicas-to-write"), "{}", refused.stderr());
    let mut newcomer = Running::start(&mut stage.fencepost(&["run", "--ttl", "2s", "b", "--", "true"]));
    newcomer.until_said("does not grant it now");
    until("the ticket has ended", || stage.json(&["show", "a", "--json"])["waiters"] == 0);
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    newcomer.expect(0);
    stage.let_go();
    holder.expect(0);
    waiter.expect(0);
}

/// Scenario 73: a default is never an error: it is the nearest ttl that the servers can keep. An explicit one is rejected.
#[test]
fn the_default_ttl_is_one_that_the_backend_can_keep() {
    let server =
        ZooKeeperServer::start(&ZooKeeperServerConfig::plain().with_config("maxSessionTimeout=10000"));
    let stage = Stage { sandbox: Sandbox::new(), url: server.url() };
    let said = stage.run(&["run", "-v", "a", "--", "true"]).expect(0).stderr();
    assert!(said.contains(", the nearest to the default of 30s that zk can keep\n"), "{said}");
    let refused = stage.run(&["run", "--ttl", "30s", "a", "--", "true"]).expect(125).stderr();
    assert!(refused.contains("ttl"), "{refused}");
    let quiet = stage.run(&["run", "a", "--", "true"]).expect(0).stderr();
    assert_eq!(quiet, "");
}
