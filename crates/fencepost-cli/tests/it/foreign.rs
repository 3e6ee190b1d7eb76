//! A lock that a foreign client holds: what the commands say about it, and how it is broken.

use std::fs::File;
use std::process::Command;

use fencepost_testkit::servers::etcd;
use fencepost_testkit::servers::free_port;
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::servers::zookeeper;
use serde_json::Value;

use crate::sandbox::{Ran, Running, Sandbox, until};

struct Stage {
    sandbox: Sandbox,
    server: RedisServer,
}

impl Stage {
    fn new() -> Self {
        Self { sandbox: Sandbox::new(), server: RedisServer::start(&RedisServerConfig::plain()) }
    }

    fn fencepost(&self, args: &[&str]) -> Command {
        let mut command = self.sandbox.fencepost(args);
        command.env("FENCEPOST_URL", format!("{}?dialect=redis-py", self.server.url()));
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran(self.fencepost(args).output().unwrap())
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(args).expect(0).stdout()).unwrap()
    }

    /// Returns the first change of this kind that the watcher has written.
    fn change(&self, event: &str) -> Option<Value> {
        let text = self.sandbox.read("changes");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut changes = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        changes.find(|change| change["event"] == event)
    }

    fn until_change(&self, event: &str) -> Value {
        until(&format!("{event} is written"), || self.change(event).is_some());
        self.change(event).unwrap()
    }
}

/// redis-py creates such keys with `timeout=None`, its default.
#[test]
fn a_key_without_a_ttl_has_no_expiry() {
    let stage = Stage::new();
    stage.server.cli(&["SET", "a", "theirs"]);
    let shown = stage.run(&["show", "a"]).expect(0).stdout();
    assert!(shown.contains("\n  ttl:    no expiry\n"), "{shown}");
    let busy = stage.run(&["run", "-n", "a", "--", "true"]).expect(75).stderr();
    assert!(busy.contains(", no expiry"), "{busy}");

    // Locks of other libraries are listed while a Fencepost client waits for them.
    let mut waiter = Running::start(&mut stage.fencepost(&["run", "-q", "a", "--", "true"]));
    until("it waits", || stage.json(&["show", "a", "--json"])["waiters"] == 1);
    let table = stage.run(&["list"]).expect(0).stdout();
    assert!(table.contains("  no expiry  1        -\n"), "{table}");
    let changes = File::create(stage.sandbox.path("changes")).unwrap();
    let mut watch = stage.fencepost(&["watch", "--every", "100ms"]);
    let _watching = Running::start_into(&mut watch, changes.into());
    for lock in [stage.json(&["show", "a", "--json"]), stage.json(&["list", "--json"])[0].clone()] {
        let holder = lock["holders"][0].as_object().unwrap();
        assert_eq!((&holder["ttl_ms"], &holder["ttl_left_ms"]), (&Value::Null, &Value::Null), "{lock}");
    }
    assert_eq!(stage.until_change("held")["holder"]["ttl_left_ms"], Value::Null);
    stage.server.cli(&["DEL", "a"]);
    waiter.expect(0);
    assert_eq!(stage.until_change("ended").as_object().unwrap()["lease_left_ms"], Value::Null);
}

/// What the key does not say is unknown, and not zero.
#[test]
fn unknown_facts_are_null() {
    let stage = Stage::new();
    stage.server.cli(&["SET", "a", "theirs", "PX", "60000"]);
    let lock = stage.json(&["show", "a", "--json"]);
    for field in ["token", "held_for_ms", "ttl_ms"] {
        assert_eq!(lock["holders"][0].as_object().unwrap()[field], Value::Null, "{field}: {lock}");
    }
    let shown = stage.run(&["show", "a"]).expect(0).stdout();
    for line in ["  token:  unknown\n", "  since:  unknown\n"] {
        assert!(shown.contains(line), "{line:?} is missing in {shown}");
    }
    let busy = stage.run(&["run", "-n", "a", "--", "true"]).expect(75).stderr();
    assert!(
        busy.contains("\"a\" is held by a program that is not a Fencepost client, ttl 59s left"),
        "{busy}"
    );
}

/// A key without a token cannot be broken safely: the command that removes it is printed instead.
#[test]
fn a_foreign_key_on_redis_is_removed_by_hand() {
    let stage = Stage::new();
    stage.server.cli(&["SET", "my lock", "theirs"]);
    let said = stage.run(&["break", "my lock", "--yes"]).expect(125).stderr();
    assert!(said.contains("the holder of \"my lock\" is not a Fencepost client and has no token"), "{said}");
    let port = stage.server.port();
    let command = format!("remove its entry by hand: redis-cli -h 127.0.0.1 -p {port} DEL 'my lock'\n");
    assert!(said.contains(&command), "{said}");
    assert!(!said.contains("moved on"), "{said}");
    assert_eq!(stage.server.cli(&["DEL", "my lock"]).trim(), "1");

    // The same without a dialect, at a key that should be Fencepost's.
    let native = |args: &[&str]| {
        let mut command = stage.sandbox.fencepost(args);
        Ran(command.env("FENCEPOST_URL", stage.server.url()).output().unwrap())
    };
    native(&["run", "a", "--", "true"]).expect(0);
    let doctor = native(&["doctor", "a", "--json"]).stdout();
    let findings: Value = serde_json::from_str(&doctor).unwrap();
    let findings = findings["findings"].as_array().unwrap();
    let key = findings.iter().find(|finding| finding["check"] == "lock's key").unwrap();
    let key = key["found"].as_str().unwrap().split(" (").next().unwrap();
    stage.server.cli(&["SET", key, "theirs"]);
    let said = native(&["break", "a", "--yes"]).expect(125).stderr();
    let command = format!("remove its entry by hand: redis-cli -h 127.0.0.1 -p {port} DEL ");
    assert!(said.contains(&command) && said.contains(key), "{said}");
}

/// The entries of other programs on etcd and ZooKeeper have a revision, which is their token.
#[test]
fn a_foreign_entry_on_etcd_and_zookeeper_is_broken_and_its_program_not_notified() {
    let sandbox = Sandbox::new();
    let own = format!("foreign-{:x}-{}", std::process::id(), free_port());
    let (etcd, zookeeper) = (etcd::shared(), zookeeper::shared());
    etcd.ctl(&["put", &format!("{own}/694d"), ""]);
    zookeeper.cli(&["create", &format!("/{own}")]);
    zookeeper.cli(&["create", &format!("/{own}/a")]);
    zookeeper.cli(&["create", &format!("/{own}/a/_c_0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-lock-0000000000")]);
    for (url, name) in
        [(format!("{}?layout=raw", etcd.url()), own.as_str()), (format!("{}/{own}", zookeeper.url()), "a")]
    {
        let run = |args: &[&str]| Ran(sandbox.fencepost(args).env("FENCEPOST_URL", &url).output().unwrap());
        run(&["run", "-n", name, "--", "true"]).expect(75);
        let ran = run(&["break", name, "--yes"]).expect(0);
        let said = ran.stderr();
        assert!(said.contains("The holder is not a Fencepost client."), "{said}");
        assert!(said.contains("it is not notified"), "{said}");
        assert!(ran.stdout().starts_with(&format!("broke {name:?}: token ")), "{}", ran.stdout());
        run(&["run", "-n", name, "--", "true"]).expect(0);
    }
}
