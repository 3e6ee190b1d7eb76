//! The commands on databases: schema, rights, sweep, and what the doctor reports there.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use fencepost_testkit::servers::mariadb::{self, MariadbServer, MariadbServerConfig};
use fencepost_testkit::servers::postgres::{self, PostgresServer, PostgresServerConfig};
use serde_json::Value;

use crate::sandbox::{Ran, Running, Sandbox};
use crate::servers::{HOME_MADE, SHEDLOCK, Stage, finding};

const SECRET: &str = "geheim";

/// Everything in the databases: leases, locks of sessions, and tables of other programs.
fn stages() -> impl Iterator<Item = Stage> {
    Stage::databases().into_iter().chain(Stage::sessions()).chain(Stage::tables())
}

/// Returns the checks of the doctor that are about the server, the account and the lock, and what they find.
fn expected_findings(stage: &Stage) -> Vec<(&'static str, &str)> {
    let own = stage.namespace();
    if stage.is_table() {
        return vec![
            ("not guaranteed", "in any order"),
            ("table", own),
            ("rights on the table", "SELECT, INSERT, UPDATE"),
            ("guarantees of the table", "exclusive locks"),
            ("end of leases", "free after its ttl"),
            ("row", own),
        ];
    }
    let mut expected = vec![
        ("namespace", own),
        ("encryption", "none"),
        ("authentication", "no password, on this host"),
        ("role", "primary"),
        ("rights", "all that locks need"),
    ];
    expected.extend(if stage.is_mariadb() {
        [("server", "MariaDB "), ("cluster", "none")]
    } else {
        [("server", "PostgreSQL "), ("pooler", "none")]
    });
    expected.extend(match (stage.url.contains("mode="), stage.is_mariadb()) {
        (false, true) => [("isolation", "READ COMMITTED on Fencepost's connections"), ("lock's row", own)],
        (false, false) => [("isolation", "read committed"), ("lock's row", own)],
        (true, true) => [("crash release", ""), ("named lock", "GET_LOCK(")],
        (true, false) => [("crash release", ""), ("advisory lock", "pg_advisory_lock(")],
    });
    expected
}

#[test]
fn the_doctor_checks_the_server_and_tells_where_a_lock_is() {
    for stage in stages() {
        stage.run(&["run", "a", "true"]).expect(0);
        let examined = stage.json(&["doctor", "--json", "a"]);
        let everywhere = [
            ("reachability", "127.0.0.1"),
            ("access", "granted"),
            ("scope", "all hosts"),
            ("ttl", "the median of 9"),
        ];
        for (check, said) in everywhere.into_iter().chain(expected_findings(&stage)) {
            let (verdict, found) = finding(&examined, check);
            assert!(verdict == "fine" && found.contains(said), "{}: {check}: {verdict}, {found}", stage.url);
        }
    }
}

/// Commands that only read create nothing, and neither does a run where the table of another program is missing.
#[test]
fn reading_creates_no_schema() {
    for stage in stages() {
        let namespace = stage.namespace();
        let said = match (stage.is_table(), stage.is_mariadb()) {
            (true, _) => "has no table",
            (false, true) => "has no tables",
            (false, false) => "has no schema",
        };
        if stage.is_table() {
            postgres::shared().psql(&format!("DROP TABLE {namespace}"));
            let ran = stage.run(&["run", "a", "--", "touch", "ran"]).expect(125);
            assert!(ran.stderr().contains("hint: it is not created: CREATE TABLE"), "{}", ran.stderr());
        }
        for args in [&["list"][..], &["show", "a"], &["watch"], &["break", "a", "--yes"], &["sweep"]] {
            let ran = stage.run(args).expect(125);
            assert!(ran.stderr().contains(said) && ran.stderr().contains("hint: "), "{}", ran.stderr());
        }
        let examined = stage.json(&["doctor", "--json"]);
        let (verdict, found) = finding(&examined, "storage");
        assert!(verdict == "warning" && found.contains(said), "{examined}");
        let left = if stage.is_mariadb() {
            mariadb::shared().sql(&format!("SHOW TABLES LIKE '{namespace}%'"))
        } else {
            postgres::shared().psql(&format!(
                "SELECT nspname FROM pg_namespace WHERE nspname = '{namespace}' \
                 UNION SELECT relname FROM pg_class WHERE relname = '{namespace}'"
            ))
        };
        assert_eq!(left, "", "{}", stage.url);
    }
}

/// A ttl that no server can keep is rejected before anything is stored.
#[test]
fn an_absurd_ttl_is_rejected() {
    for stage in stages() {
        for (ttl, said) in [
            ("999ms", "--ttl 999ms is out of range: from 1s to 24h"),
            ("24h1s", "--ttl 1d1s is out of range: from 1s to 24h"),
            ("99999999999999999999", "'--ttl <DUR>': it is too long"),
        ] {
            let ran = stage.run(&["run", "--ttl", ttl, "a", "--", "touch", "ran"]).expect(125);
            assert!(ran.stderr().contains(said), "{}: {}", stage.url, ran.stderr());
        }
        stage.run(&["run", "--ttl", "24h", "a", "--", "true"]).expect(0);
        assert_eq!(stage.json(&["list", "--json"]), Value::Array(Vec::new()), "{}", stage.url);
        assert!(!stage.sandbox.path("ran").exists(), "{}", stage.url);
    }
}

/// As an administrator would: the printed schema, then the printed rights, then the account uses locks.
#[test]
fn the_printed_schema_and_rights_are_all_that_an_account_needs() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_password("admin"));
    let sandbox = Sandbox::new();
    let schema = sandbox.run(&["schema", "postgres", "--namespace", "team-a"]).expect(0).stdout();
    for (account, options) in [
        ("app", "namespace=team-a"),
        ("sessions", "mode=advisory&namespace=team-a"),
        ("shedlock", SHEDLOCK.0),
        ("home-made", &format!("{}&table=locks", HOME_MADE.0)),
    ] {
        let url = format!("postgres://{account}:{SECRET}@127.0.0.1:{}/postgres?{options}", server.port());
        let rights = sandbox.run(&["rights", "--url", &url]).expect(0).stdout();
        let schema_of_url = sandbox.run(&["schema", "--url", &url]);
        let statements = if options.contains("dialect=") {
            statement_in_hint(&server, options, &schema_of_url.expect(125))
        } else {
            schema_of_url.expect(0).stdout()
        };
        assert!(account != "app" || statements == schema, "{statements}");
        assert!(!(statements.clone() + &rights).contains(SECRET));
        server.psql(&statements);
        if !options.contains("dialect=") {
            server.psql(&statements);
        }
        server.psql(&rights.replace("ACCOUNT", account).replace("'PASSWORD'", &format!("'{SECRET}'")));
        uses_locks(url, &format!("with a password, as role {account}\n"));
    }
}

/// Returns the statement that creates a table of another program, as the error of a run tells it. `schema` does not print it.
fn statement_in_hint(server: &PostgresServer, options: &str, schema: &Ran) -> String {
    let told = schema.stderr();
    assert!(told.contains("are in a table of another program"), "{told}");
    assert!(told.contains("hint: that program, or its documentation, says how to create it"), "{told}");
    let stage = Stage { sandbox: Sandbox::new(), url: format!("{}?{options}", server.url("postgres")) };
    let told = stage.run(&["run", "a", "--", "true"]).expect(125).stderr();
    let hint = told.lines().find_map(|line| line.split_once("it is not created: "));
    hint.unwrap_or_else(|| panic!("no statement in {told}")).1.to_owned()
}

/// The same on MariaDB.
#[test]
fn the_printed_tables_and_rights_are_all_that_an_account_needs() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_password("admin"));
    let sandbox = Sandbox::new();
    let schema = sandbox.run(&["schema", "mysql", "--namespace", "team_a"]).expect(0).stdout();
    for (account, options) in [("app", "namespace=team_a"), ("sessions", "mode=named&namespace=team_a")] {
        let url = format!("mysql://{account}:{SECRET}@127.0.0.1:{}/app?{options}", server.port());
        let statements = sandbox.run(&["schema", "--url", &url]).expect(0).stdout();
        assert!(account != "app" || statements == schema, "{statements}");
        let rights = sandbox.run(&["rights", "--url", &url]).expect(0).stdout();
        assert!(!(statements.clone() + &rights).contains(SECRET));
        server.sql(&statements);
        server.sql(&statements);
        server.sql(&rights.replace("'PASSWORD'", &format!("'{SECRET}'")));
        uses_locks(url, &format!("with a password, as account {account}@%\n"));
    }
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
    // For a table of another program the doctor checks the table, not the server.
    let expected = if stage.is_table() {
        "rights on the table: SELECT, INSERT, UPDATE".to_owned()
    } else {
        format!("authentication: {authentication}")
    };
    assert!(ran.stdout().contains(&expected), "{}", ran.stdout());
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

/// A row of the other program is waited for and shown; it has no token, so that `break` leaves it alone.
#[test]
fn a_row_of_another_program_excludes_a_run_and_is_not_broken() {
    let [shedlock, table] = Stage::tables();
    let (end, now) = ("timezone('UTC', now()) + interval '1 h'", "timezone('UTC', now())");
    for (stage, row) in [
        (shedlock, format!("(name, lock_until, locked_at, locked_by) VALUES ('a', {end}, {now}, 'theirs')")),
        (table, "VALUES ('a', 'theirs', now() + interval '1 h')".to_owned()),
    ] {
        postgres::shared().psql(&format!("INSERT INTO {} {row}", stage.namespace()));
        stage.run(&["run", "-n", "a", "--", "true"]).expect(75);
        let lock = stage.json(&["show", "a", "--json"]);
        let holder = &lock["holders"][0];
        assert_eq!(holder["label"], "theirs (not a Fencepost client)", "{lock}");
        assert_eq!(holder["token"], Value::Null, "{lock}");
        let told = stage.run(&["break", "a", "--yes"]).expect(125).stderr();
        let refused = "the holder of \"a\" is not a Fencepost client and has no token";
        assert!(told.contains(&format!("nothing was broken: {refused}")), "{told}");
        assert!(told.contains("hint: `fencepost doctor a` shows where the lock is"), "{told}");
        let examined = stage.json(&["doctor", "--json", "a"]);
        let (_, found) = finding(&examined, "row");
        assert!(found.contains("held by \"theirs\""), "{found}");
    }
}

/// Locks of sessions have rows of sessions that ended; the table of another program is not swept.
#[test]
fn a_sweep_of_sessions_and_tables_removes_no_lock() {
    for stage in Stage::sessions().into_iter().chain(Stage::tables()) {
        let mut holder = stage.hold("a", &[]);
        let said = stage.run(&["sweep"]).expect(0).stdout();
        let swept = stage.json(&["sweep", "--json"]);
        if stage.is_table() {
            assert_eq!((said.as_str(), &swept["removed"]), ("nothing to sweep on postgres\n", &Value::Null));
        } else {
            assert_eq!((said.as_str(), &swept["removed"]), ("removed 0 unused names\n", &0.into()));
        }
        assert_eq!(stage.json(&["show", "a", "--json"])["holders"].as_array().unwrap().len(), 1);
        stage.let_go();
        holder.expect(0);
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
