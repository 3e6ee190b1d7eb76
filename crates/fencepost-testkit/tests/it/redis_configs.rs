//! Further configurations of Redis servers.

use std::process::Command;

use fencepost_testkit::servers::redis::{
    Cluster, RedisServer, RedisServerConfig, Replicas, Sentinels, TlsClients,
};
use fencepost_testkit::wait;

/// Runs `redis-cli` with these arguments; returns its output, and whether it succeeded.
fn cli(args: &[&str]) -> (bool, String) {
    let answer = Command::new("redis-cli").args(["-e", "--no-auth-warning"]).args(args).output().unwrap();
    let said = [answer.stdout, answer.stderr].concat();
    (answer.status.success(), String::from_utf8_lossy(&said).trim().to_owned())
}

#[test]
fn a_user_has_exactly_the_rights_it_is_given() {
    let setup = RedisServerConfig::plain().with_password("secret").with_user("app", "word", "~app:* +get");
    let server = RedisServer::start(&setup);
    assert_eq!(server.cli(&["SET", "app:x", "1"]), "OK");
    let port = server.port().to_string();
    assert!(cli(&["-p", &port, "PING"]).1.contains("NOAUTH"));
    assert_eq!(cli(&["-u", &server.url_as("app"), "GET", "app:x"]), (true, "1".into()));
    assert!(cli(&["-u", &server.url_as("app"), "GET", "other"]).1.contains("NOPERM"));
    assert!(cli(&["-u", &server.url_as("app"), "SET", "app:x", "2"]).1.contains("NOPERM"));
    assert_eq!(cli(&["-u", &server.url(), "PING"]), (true, "PONG".into()));
}

#[test]
fn tls_accepts_the_configured_clients() {
    for clients in [TlsClients::All, TlsClients::WithCertificate] {
        let server = RedisServer::start(&RedisServerConfig::plain().with_tls(clients));
        let made = server.certificates();
        let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let (url, ca, other_ca) = (server.tls_url(), path(&made.ca), path(&made.other_ca));
        let (cert, key) = (path(&made.client_cert), path(&made.client_key));
        let known = cli(&["-u", &url, "--cacert", &ca, "--cert", &cert, "--key", &key, "PING"]);
        assert_eq!(known, (true, "PONG".into()));
        let (anonymous, said) = cli(&["-u", &url, "--cacert", &ca, "PING"]);
        assert_eq!(anonymous, clients == TlsClients::All, "{said}");
        let (misled, _) = cli(&["-u", &url, "--cacert", &other_ca, "--cert", &cert, "--key", &key, "PING"]);
        assert!(!misled, "a server of another authority is believed");
    }
}

#[test]
fn the_wall_clock_of_a_server_can_be_moved() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_movable_clock());
    let straight = RedisServer::start(&RedisServerConfig::plain());
    let difference = || {
        let seconds =
            |server: &RedisServer| server.cli(&["TIME"]).lines().next().unwrap().parse::<i64>().unwrap();
        // Between two readings of the unmoved clock, so that a slow machine only widens the range.
        let before = seconds(&straight);
        let moved = seconds(&server);
        moved - seconds(&straight)..=moved - before
    };
    assert!(difference().contains(&0));
    server.cli(&["SET", "short", "1", "PX", "3000000"]);
    server.shift_clock(-3600);
    assert!(difference().contains(&-3600));
    assert_eq!(server.cli(&["EXISTS", "short"]), "1");
    server.shift_clock(3600);
    assert!(difference().contains(&3600));
    assert_eq!(server.cli(&["EXISTS", "short"]), "0");
    server.restart();
    assert!(difference().contains(&3600));
    server.shift_clock(0);
    assert!(difference().contains(&0));
}

#[test]
fn sentinels_promote_the_replica_of_a_killed_primary() {
    let group = Sentinels::start();
    group.primary().cli(&["SET", "here", "1"]);
    assert_eq!(group.primary().cli(&["WAIT", "1", "0"]), "1");
    let old = group.kill_primary();
    let new = group.wait_for_promotion(old);
    assert_ne!(new, old);
    assert_eq!((group.primary_port(), group.primary().cli(&["GET", "here"])), (new, "1".to_owned()));
}

#[test]
fn sentinels_replace_a_paused_primary() {
    let group = Sentinels::start();
    let old = group.pause_primary();
    let new = group.wait_for_promotion(old);
    group.server(old).resume();
    wait::block_until("the old primary follows the new one", || {
        // A server that becomes a replica closes its connections.
        group.server(old).try_cli(&["ROLE"]).is_ok_and(|role| role.contains(&new.to_string()))
    });
}

#[test]
fn a_slot_of_a_cluster_is_migrated_step_by_step() {
    let cluster = Cluster::start(Replicas::None);
    assert_eq!(cluster.ports().len(), 3);
    let slot = cluster.slot_of("{a}1");
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    cluster.cli(from, &["MSET", "{a}1", "1", "{a}2", "2"]);
    let migration = cluster.migrate_slot(slot, from, to);
    migration.move_keys(&["{a}1"]);
    let refused = |node: usize, command: &[&str]| cluster.node(node).try_cli(command).unwrap_err();
    assert!(refused(from, &["GET", "{a}1"]).starts_with("ASK "));
    assert!(refused(from, &["MGET", "{a}1", "{a}2"]).starts_with("TRYAGAIN "));
    assert_eq!(cluster.cli(from, &["GET", "{a}2"]), "2");
    migration.finish();
    assert!(refused(from, &["GET", "{a}1"]).starts_with("MOVED "));
    assert_eq!(cluster.cli(to, &["MGET", "{a}1", "{a}2"]), "1\n2");
    assert_eq!(cluster.owner_of(slot), to);
}

#[test]
fn a_replica_takes_over_from_a_killed_primary_of_a_cluster() {
    let cluster = Cluster::start(Replicas::OneEach);
    let slot = cluster.slot_of("a");
    let old = cluster.owner_of(slot);
    cluster.node(old).kill();
    let others: Vec<usize> = (0..6).filter(|node| *node != old).collect();
    wait::block_until("a replica takes over", || {
        others.iter().any(|node| cluster.node(*node).try_cli(&["SET", "a", "1"]).is_ok())
    });
    assert!(others.contains(&cluster.owner_of(slot)));
}
