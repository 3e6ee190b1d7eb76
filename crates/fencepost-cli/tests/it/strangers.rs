//! A lock that another library holds: what the commands say about it.

use std::fs::File;
use std::process::Command;

use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
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

    /// The first change of this kind that a watcher has told.
    fn told(&self, event: &str) -> Option<Value> {
        let text = self.sandbox.read("changes");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut changes = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        changes.find(|change| change["event"] == event)
    }

    fn until_told(&self, event: &str) -> Value {
        until(&format!("{event} is told"), || self.told(event).is_some());
        self.told(event).unwrap()
    }
}

/// redis-py makes such keys with `timeout=None`, its default.
#[test]
fn a_key_without_a_ttl_has_no_expiry() {
    let stage = Stage::new();
    stage.server.cli(&["SET", "a", "theirs"]);
    let shown = stage.run(&["show", "a"]).expect(0).stdout();
    assert!(shown.contains("\n  ttl:    no expiry\n"), "{shown}");
    let busy = stage.run(&["run", "-n", "a", "--", "true"]).expect(75).stderr();
    assert!(busy.contains(", no expiry"), "{busy}");

    // Other libraries' locks are listed while one of ours waits for them.
    let mut waiter = Running::start(&mut stage.fencepost(&["run", "-q", "a", "--", "true"]));
    until("it waits", || stage.json(&["show", "a", "--json"])["waiters"] == 1);
    let table = stage.run(&["list"]).expect(0).stdout();
    assert!(table.contains("  no expiry  1\n"), "{table}");
    let changes = File::create(stage.sandbox.path("changes")).unwrap();
    let mut watch = stage.fencepost(&["watch", "--every", "100ms"]);
    let _watching = Running::start_into(&mut watch, changes.into());
    for lock in [stage.json(&["show", "a", "--json"]), stage.json(&["list", "--json"])[0].clone()] {
        let holder = lock["holders"][0].as_object().unwrap();
        assert_eq!((&holder["ttl_ms"], &holder["ttl_left_ms"]), (&Value::Null, &Value::Null), "{lock}");
    }
    assert_eq!(stage.until_told("held")["holder"]["ttl_left_ms"], Value::Null);
    stage.server.cli(&["DEL", "a"]);
    waiter.expect(0);
    assert_eq!(stage.until_told("ended").as_object().unwrap()["lease_left_ms"], Value::Null);
}
