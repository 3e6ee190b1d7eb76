//! Further configurations of PostgreSQL servers.

use std::path::Path;
use std::process::Command;

use fencepost_testkit::servers::postgres::{
    PgBouncer, PostgresPair, PostgresServer, PostgresServerConfig, Replication, TlsClients, shared,
};
use fencepost_testkit::wait;

/// Runs `psql` with a connection string and a query; returns its output, and whether it succeeded.
fn psql(connection: &str, sql: &str) -> (bool, String) {
    let answer = Command::new("psql").args(["-X", "-w", "-A", "-t", "-c", sql, connection]).output().unwrap();
    let said = [answer.stdout, answer.stderr].concat();
    (answer.status.success(), String::from_utf8_lossy(&said).trim().to_owned())
}

#[test]
fn a_user_has_exactly_the_rights_it_is_given() {
    let setup = PostgresServerConfig::plain().with_password("se'cret").with_user("app", "word");
    let server = PostgresServer::start(&setup);
    server.psql("CREATE TABLE t AS SELECT 1; GRANT SELECT ON t TO app");
    assert_eq!(server.try_psql_as("app", "postgres", "TABLE t"), Ok("1".into()));
    assert!(
        server.try_psql_as("app", "postgres", "DELETE FROM t").unwrap_err().contains("permission denied")
    );
    assert_eq!(psql(&server.url_as("app", "postgres"), "SELECT current_user"), (true, "app".into()));
    let anonymous = format!("host=127.0.0.1 port={} user=app dbname=postgres", server.port());
    assert!(psql(&anonymous, "SELECT 1").1.contains("no password supplied"));
    assert!(psql(&format!("{anonymous} password=wrong"), "SELECT 1").1.contains("authentication failed"));
    assert!(
        server.psql("SELECT rolpassword FROM pg_authid WHERE rolname = 'app'").starts_with("SCRAM-SHA-256$")
    );
}

#[test]
fn tls_accepts_the_configured_clients() {
    for clients in [TlsClients::All, TlsClients::WithCertificate] {
        let server = PostgresServer::start(&PostgresServerConfig::plain().with_tls(clients));
        let made = server.certificates();
        let connect = |ca: &Path, more: &str| {
            let options = format!("sslmode=verify-full&sslrootcert={}{more}", ca.display());
            psql(
                &format!("{}?{options}", server.tls_url("postgres")),
                "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
            )
        };
        let certificate =
            format!("&sslcert={}&sslkey={}", made.client_cert.display(), made.client_key.display());
        assert_eq!(connect(&made.ca, &certificate), (true, "t".into()));
        let (anonymous, said) = connect(&made.ca, "");
        assert_eq!(anonymous, clients == TlsClients::All, "{said}");
        assert!(!connect(&made.other_ca, &certificate).0, "a server of another authority is believed");
        assert_eq!(server.psql("SELECT 1"), "1", "it also speaks without TLS");
    }
}

#[test]
fn a_server_can_reject_unencrypted_connections() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_password("word").with_tls_only());
    let (accepted, said) = psql(&format!("{}?sslmode=disable", server.url("postgres")), "SELECT 1");
    assert!(!accepted && said.contains("no encryption"), "{said}");
    assert_eq!(server.psql("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"), "t");
}

#[test]
fn the_wall_clock_of_a_server_can_be_moved() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_movable_clock());
    let difference = || {
        let seconds = |server: &PostgresServer| {
            server.psql("SELECT extract(epoch FROM clock_timestamp())::bigint").parse::<i64>().unwrap()
        };
        // Between two readings of the unmoved clock, so that a slow machine only widens the range.
        let before = seconds(shared());
        let moved = seconds(&server);
        moved - seconds(shared())..=moved - before
    };
    assert!(difference().contains(&0));
    server.shift_clock(-3600);
    assert!(difference().contains(&-3600));
    server.shift_clock(3600);
    assert!(difference().contains(&3600));
    server.restart();
    assert!(difference().contains(&3600));
    server.shift_clock(0);
    assert!(difference().contains(&0));
}

#[test]
fn the_disk_of_a_server_can_be_filled() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_fillable_disk());
    let add = "INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 100)";
    server.psql(&format!("CREATE TABLE t (x text); {add}"));
    server.fill_disk();
    let code = format!("\\set VERBOSITY sqlstate\n{add}");
    let refused = server.try_psql("postgres", &code).unwrap_err();
    assert!(refused.contains("53100"), "{refused}");
    assert!(server.try_psql("postgres", add).unwrap_err().contains("No space left on device"));
    // What fits into the pages that exist is still written.
    server.psql("DELETE FROM t; INSERT INTO t VALUES ('small')");
    server.clear_disk();
    server.psql(add);
    server.restart();
    assert_eq!(server.psql("SELECT count(*) FROM t"), "101");
}

#[test]
fn a_promoted_standby_lacks_what_it_was_not_sent() {
    let pair = PostgresPair::start(Replication::Asynchronous);
    pair.primary().psql("CREATE TABLE t AS SELECT 1 AS x");
    pair.wait_until_caught_up();
    assert_eq!(pair.standby().psql("TABLE t"), "1");
    let refused = pair.standby().try_psql("postgres", "INSERT INTO t VALUES (2)").unwrap_err();
    assert!(refused.contains("read-only transaction"), "{refused}");
    pair.wire().cut();
    pair.primary().psql("INSERT INTO t VALUES (2)");
    pair.primary().kill();
    pair.promote();
    pair.standby().psql("INSERT INTO t VALUES (3)");
    assert_eq!(pair.standby().psql("SELECT x FROM t ORDER BY x"), "1\n3");
}

#[test]
fn a_synchronous_standby_has_every_confirmed_commit() {
    let pair = PostgresPair::start(Replication::Synchronous);
    pair.primary().psql("CREATE TABLE t AS SELECT 1 AS x");
    pair.wire().cut();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pair.primary().psql("INSERT INTO t VALUES (2)"));
        let blocked = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        wait::block_until("the commit waits for the standby", || !pair.primary().psql(blocked).is_empty());
        pair.wire().heal();
        waits.join().unwrap();
    });
    pair.primary().kill();
    pair.promote();
    assert_eq!(pair.standby().psql("SELECT x FROM t ORDER BY x"), "1\n2");
}

#[test]
fn pgbouncer_shares_a_connection_among_idle_sessions() {
    for setup in [PostgresServerConfig::plain(), PostgresServerConfig::plain().with_password("wo\"rd")] {
        let server = PostgresServer::start(&setup);
        let bouncer = PgBouncer::start_with(&server, &["default_pool_size = 1"]);
        assert_eq!(bouncer.try_psql("postgres", "SELECT 1"), Ok("1".into()));
        let lists = bouncer.try_psql("pgbouncer", "SHOW CONFIG").unwrap();
        assert!(lists.lines().any(|line| line.starts_with("pool_mode|transaction|")), "{lists}");
        // A second session, while the first one is idle.
        let pid = "SELECT pg_backend_pid()";
        let second = format!("psql -X -A -t -c '{pid}'");
        let pids = bouncer.try_psql("postgres", &format!("{pid};\n\\! {second}")).unwrap();
        assert!(pids.lines().count() == 2 && pids.lines().all(|pid| pids.starts_with(pid)), "{pids}");
        bouncer.kill();
        assert!(bouncer.try_psql("postgres", "SELECT 1").is_err());
        bouncer.restart();
        assert_eq!(bouncer.try_psql("postgres", "SELECT 1"), Ok("1".into()));
    }
}

#[test]
fn pgbouncer_asks_for_the_password() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_password("word").with_tls_only());
    let bouncer = PgBouncer::start(&server);
    assert_eq!(psql(&bouncer.url("postgres"), "SELECT 1"), (true, "1".into()));
    let (accepted, said) = psql(&bouncer.url("postgres").replace(":word@", ":wrong@"), "SELECT 1");
    assert!(!accepted && said.contains("authentication failed"), "{said}");
}
