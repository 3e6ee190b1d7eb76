//! The commands on databases: schema, rights, sweep, and what the doctor reports there.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use fencepost_testkit::servers::mariadb::{self, MariadbServer, MariadbServerConfig};
use fencepost_testkit::servers::postgres::{self, PostgresServer, PostgresServerConfig};
use serde_json::Value;

use crate::sandbox::{Ran, Running, Sandbox};
use crate::servers::{Stage, finding};

const SECRET: &str = "geheim";

#[test]
fn the_doctor_checks_the_server_and_prints_the_statement_for_a_lock() {
    for stage in Stage::databases() {
        stage.run(&["run", "a", "true"]).expect(0);
        let examined = stage.json(&["doctor", "--json", "a"]);
        let namespace = stage.namespace();
        let (server, isolation) = if stage.is_mariadb() {
            ("MariaDB ", "READ COMMITTED on Fencepost's connections")
        } else {
            ("PostgreSQL ", "read committed")
        };
        for (check, said) in [
            ("reachability", "127.0.0.1"),
            ("access", "granted"),
            ("scope", "all hosts"),
            ("ttl", "the median of 9"),
            ("namespace", namespace),
            ("encryption", "none"),
            ("authentication", "no password, on this host"),
            ("server", server),
            ("role", "primary"),
            ("isolation", isolation),
            if stage.is_mariadb() { ("cluster", "none") } else { ("pooler", "none") },
            ("rights", "all that locks need"),
            ("lock's row", namespace),
        ] {
            let (verdict, found) = finding(&examined, check);
            assert!(verdict == "fine" && found.contains(said), "{check}: {verdict}, {found}");
        }
    }
}

#[test]
fn reading_creates_no_schema() {
    for stage in Stage::databases() {
        let ran = stage.run(&["list"]).expect(125);
        let said = if stage.is_mariadb() { "has no tables" } else { "has no schema" };
        assert!(ran.stderr().contains(said), "{}", ran.stderr());
        assert_eq!(finding(&stage.json(&["doctor", "--json"]), "storage").0, "warning");
        stage.run(&["sweep"]).expect(125);
        let namespace = stage.namespace();
        let left = if stage.is_mariadb() {
            mariadb::shared().sql(&format!("SHOW TABLES LIKE '{namespace}%'"))
        } else {
            postgres::shared()
                .psql(&format!("SELECT nspname FROM pg_namespace WHERE nspname = '{namespace}'"))
        };
        assert_eq!(left, "");
    }
}

/// As an administrator would: the printed schema, then the printed rights, then the account uses locks.
#[test]
fn the_printed_schema_and_rights_are_all_that_an_account_needs() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_password("admin"));
    let sandbox = Sandbox::new();
    let run = |args: &[&str]| Ran(sandbox.fencepost(args).output().unwrap());
    let schema = run(&["schema", "postgres", "--namespace", "team-a"]).expect(0).stdout();
    let url = format!("postgres://app:{SECRET}@127.0.0.1:{}/postgres?namespace=team-a", server.port());
    assert_eq!(run(&["schema", "--url", &url]).expect(0).stdout(), schema);
    let rights = run(&["rights", "--url", &url]).expect(0).stdout();
    assert!(!(schema.clone() + &rights).contains(SECRET));
    server.psql(&schema);
    server.psql(&schema);
    server.psql(&rights.replace("ACCOUNT", "app").replace("'PASSWORD'", &format!("'{SECRET}'")));

    uses_locks(url, "with a password, as role app\n");
}

/// The same on MariaDB.
#[test]
fn the_printed_tables_and_rights_are_all_that_an_account_needs() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_password("admin"));
    let sandbox = Sandbox::new();
    let run = |args: &[&str]| Ran(sandbox.fencepost(args).output().unwrap());
    let schema = run(&["schema", "mysql", "--namespace", "team_a"]).expect(0).stdout();
    let url = format!("mysql://app:{SECRET}@127.0.0.1:{}/app?namespace=team_a", server.port());
    assert_eq!(run(&["schema", "--url", &url]).expect(0).stdout(), schema);
    let rights = run(&["rights", "--url", &url]).expect(0).stdout();
    assert!(!(schema.clone() + &rights).contains(SECRET));
    server.sql(&schema);
    server.sql(&schema);
    server.sql(&rights.replace("'PASSWORD'", &format!("'{SECRET}'")));
    uses_locks(url, "with a password, as account app@%\n");
}

/// Holds locks, with an account that the doctor finds no fault with.
fn uses_locks(url: String, authentication: &str) {
    let stage = Stage { sandbox: Sandbox::new(), url };
    let mut holder = stage.hold("a", &["--ttl", "20s"]);
    stage.run(&["run", "-n", "a", "--", "true"]).expect(75);
    stage.let_go();
    holder.expect(0);
    let mut command = stage.fencepost(&["hold", "--json", "b"]);
    let mut held = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(held.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"name\":\"b\""), "{line}");
    drop(held.stdin.take());
    assert!(held.wait().unwrap().success());
    let ran = stage.run(&["doctor"]).expect(0);
    assert!(ran.stdout().contains(&format!("authentication: {authentication}")), "{}", ran.stdout());
    assert!(!(ran.stdout() + &ran.stderr()).contains(SECRET));
}

#[test]
fn a_sweep_says_how_many_names_are_gone() {
    for stage in Stage::databases() {
        stage.run(&["run", "a", "true"]).expect(0);
        fill(&stage, "old", 20);
        let swept = stage.json(&["sweep", "--json"]);
        // The name that was just used may be old enough, too.
        assert!([20, 21].contains(&swept["removed"].as_u64().unwrap()), "{swept}");
        fill(&stage, "new", 2);
        let said = stage.run(&["sweep"]).expect(0);
        assert!(
            ["removed 2 unused names\n", "removed 3 unused names\n"].contains(&said.stdout().as_str()),
            "{}",
            said.stdout()
        );
    }
}

/// Stores names that are not used.
fn fill(stage: &Stage, prefix: &str, count: usize) {
    let namespace = stage.namespace();
    if stage.is_mariadb() {
        let names = format!("SELECT CONCAT('{prefix}/', seq) FROM seq_1_to_{count}");
        mariadb::shared().sql(&format!("INSERT INTO `{namespace}_locks` (name) {names}"));
    } else {
        postgres::shared().psql(&format!(
            "INSERT INTO \"{namespace}\".locks (name, token, expires_at) \
             SELECT '{prefix}/' || n, n, clock_timestamp() - interval '1 h' FROM generate_series(1, {count}) AS n"
        ));
    }
}

#[test]
fn other_backends_have_nothing_to_sweep_and_no_schema() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    assert_eq!(sandbox.run(&["sweep"]).expect(0).stdout(), "nothing to sweep on sqlite\n");
    let swept: Value = serde_json::from_str(&sandbox.run(&["sweep", "--json"]).expect(0).stdout()).unwrap();
    assert_eq!(swept["removed"], Value::Null);
    let ran = sandbox.run(&["schema"]).expect(125);
    assert!(ran.stderr().contains("the backend sqlite has no schema"), "{}", ran.stderr());
    for args in [
        &["schema", "--namespace", "a"][..],
        &["schema", "redis"],
        &["schema", "postgres", "--namespace", "a\"b"],
        &["schema", "--url", "postgres://u:geheim@h/d?dialect=shedlock"],
        &["schema", "mysql", "--namespace", "a`b"],
    ] {
        let ran = sandbox.run(args).expect(125);
        assert!(!ran.stderr().contains(SECRET), "{}", ran.stderr());
    }
}

#[test]
fn a_wrong_password_and_an_unknown_database_are_told_apart() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_password(SECRET));
    let mariadb = MariadbServer::start(&MariadbServerConfig::plain().with_password(SECRET));
    let sandbox = Sandbox::new();
    let (url, denied) = (server.url("postgres"), "does not accept this user and password");
    for (url, check, said) in [
        (url.replace(SECRET, "geheimnis"), "access", denied),
        (server.url("nosuch"), "storage", "no such database"),
        (mariadb.url().replace(SECRET, "geheimnis"), "access", denied),
        (mariadb.url().replace("/app", "/nosuch"), "storage", "no such database"),
    ] {
        let output = sandbox.fencepost(["doctor", "--json"]).env("FENCEPOST_URL", &url).output().unwrap();
        let ran = Ran(output);
        let examined = serde_json::from_str(&ran.stdout()).unwrap();
        assert!(finding(&examined, check).1.contains(said), "{}", ran.stdout());
        assert!(!ran.stdout().contains(SECRET), "{}", ran.stdout());
        let run = sandbox.fencepost(["run", "a", "--", "touch", "ran"]).env("FENCEPOST_URL", &url).output();
        let ran = Ran(run.unwrap()).expect(125);
        assert!(ran.stderr().contains(said) && !ran.stderr().contains(SECRET), "{}", ran.stderr());
    }
    assert!(!sandbox.path("ran").exists());
}

/// A transaction of the user's own, in psql or mariadb, excludes a run, and a run excludes it.
#[test]
fn a_transaction_and_a_run_exclude_each_other() {
    for stage in Stage::databases() {
        let mut holder: Running = stage.hold("a", &[]);
        let namespace = stage.namespace();
        let is_held = || {
            if !stage.is_mariadb() {
                return postgres::shared().psql(&format!("SELECT \"{namespace}\".lock_in('a', 0) IS NULL"));
            }
            mariadb::shared().sql(&format!(
                "START TRANSACTION; INSERT INTO {namespace}_locks (name) VALUES ('a') ON DUPLICATE KEY UPDATE name = name; \
                 SELECT IF(COUNT(*) > 0, 't', 'f') FROM {namespace}_holders WHERE name = 'a' AND until_ns > \
                 1000 * TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)); ROLLBACK"
            ))
        };
        assert_eq!(is_held(), "t");
        stage.let_go();
        holder.expect(0);
        assert_eq!(is_held(), "f");
    }
}

/// `run` has at most two connections while its command runs.
#[test]
fn a_run_has_at_most_two_connections() {
    let postgres = PostgresServer::start(&PostgresServerConfig::plain());
    let url = format!("{}?application_name=counted", postgres.url("postgres"));
    let sandbox = Sandbox::new();
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'";
    let ran =
        sandbox.run(&["run", "--url", &url, "a", "--", "psql", "-Atc", count, &postgres.url("postgres")]);
    let connections: u32 = ran.expect(0).stdout().trim().parse().unwrap();
    assert!((1..=2).contains(&connections), "{connections}");
    let mariadb = MariadbServer::start(&MariadbServerConfig::plain());
    // The holder ends if this file is gone.
    sandbox.write("locks.db", "");
    let mut holder = sandbox.hold("a", &["--url", &mariadb.url()]);
    let count =
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'root' AND ID <> CONNECTION_ID()";
    let connections: u32 = mariadb.sql(count).parse().unwrap();
    sandbox.let_go();
    holder.expect(0);
    assert!((1..=2).contains(&connections), "{connections}");
}
