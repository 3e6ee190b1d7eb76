//! The findings of `doctor`, also when the backend cannot be used, and what `rights` prints.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use rusqlite::Connection;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::sandbox::Sandbox;

/// The findings of one run, and its exit code.
struct Examined {
    code: Option<i32>,
    answer: Value,
}

impl Examined {
    fn by(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        let answer = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        Self { code: output.status.code(), answer }
    }

    fn at(sandbox: &Sandbox, args: &[&str]) -> Self {
        Self::by(&mut sandbox.fencepost(["doctor", "--json"].iter().chain(args)))
    }

    fn finding(&self, check: &str) -> Option<&Value> {
        self.answer["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == check)
    }

    #[track_caller]
    fn expect(&self, check: &str, verdict: &str, found: &str) -> &Self {
        let finding = self.finding(check).unwrap_or_else(|| panic!("no {check} in {}", self.answer));
        assert_eq!(finding["verdict"], verdict, "{finding}");
        assert!(finding["found"].as_str().unwrap().contains(found), "{found:?} is not in {finding}");
        self
    }

    #[track_caller]
    fn expect_code(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}", self.answer);
        let worst = if code == 1 { &["problem"][..] } else { &["fine", "warning"] };
        assert!(worst.contains(&self.answer["verdict"].as_str().unwrap()), "{}", self.answer);
        self
    }
}

#[test]
fn a_healthy_backend_has_no_problem() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    Examined::at(&sandbox, &[])
        .expect_code(0)
        .expect("program", "fine", env!("CARGO_PKG_VERSION"))
        .expect("configuration", "fine", "from the variable FENCEPOST_URL")
        .expect("reachability", "fine", &sandbox.url())
        .expect("access", "fine", "granted")
        .expect("scope", "fine", "this host")
        .expect("ttl", "fine", "the median of 9")
        .expect("file", "fine", "locks.db, mode 0600, belongs to you")
        .expect("journal mode", "fine", "wal")
        .expect("integrity", "fine", "ok");
}

#[test]
fn without_json_there_is_a_line_for_each_check_and_a_summary() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    let ran = sandbox.run(&["doctor"]).expect(0);
    let findings = Examined::at(&sandbox, &[]).answer["findings"].as_array().unwrap().len();
    let (hints, lines): (Vec<_>, Vec<_>) =
        ran.stdout().lines().map(str::to_owned).partition(|line| line.starts_with("         hint: "));
    assert_eq!(lines.len(), findings, "{lines:?}");
    assert!(lines.contains(&"fine     scope: this host".to_owned()), "{lines:?}");
    let warnings = lines.iter().filter(|line| line.starts_with("warning  ")).count();
    assert_eq!(hints.len(), warnings, "whatever is not fine says what to do: {}", ran.stdout());
    assert!(ran.stderr().starts_with("no problems, "), "{}", ran.stderr());
}

#[test]
fn the_origin_of_the_url_is_reported() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    sandbox.write("url", &sandbox.url());
    let doctor = || {
        let mut command = sandbox.fencepost(["doctor", "--json"]);
        command.env_remove("FENCEPOST_URL").env("XDG_STATE_HOME", sandbox.path("state"));
        command
    };
    Examined::at(&sandbox, &["--url", &sandbox.url()]).expect("configuration", "fine", "from --url");
    Examined::by(doctor().env("FENCEPOST_URL_FILE", "url"))
        .expect_code(0)
        .expect("configuration", "fine", "from the file \"url\"")
        .expect("reachability", "fine", &sandbox.url());
    Examined::by(doctor().env("FENCEPOST_URL_FILE", "gone")).expect_code(1).expect(
        "configuration",
        "problem",
        "could not read \"gone\"",
    );
    Examined::by(doctor().env("FENCEPOST_URL_FILE", "url").env("FENCEPOST_URL", sandbox.url()))
        .expect_code(1)
        .expect("configuration", "problem", "both FENCEPOST_URL and FENCEPOST_URL_FILE are set");
    Examined::by(&mut doctor())
        .expect_code(0)
        .expect("configuration", "fine", "the default, sqlite:")
        .expect("storage", "warning", "there is no database");
    assert!(!sandbox.path("state").exists(), "nothing was made");
}

#[test]
fn a_backend_that_does_not_exist_is_a_warning_and_is_not_created() {
    let sandbox = Sandbox::new();
    let examined = Examined::at(&sandbox, &["a"]);
    examined.expect_code(0).expect("storage", "warning", "there is no database").expect("folder", "fine", "");
    assert!(examined.finding("reachability").is_none());
    assert_eq!(std::fs::read_dir(sandbox.path(".")).unwrap().count(), 0);
    let nowhere = format!("sqlite:{}", sandbox.path("no/such/locks.db").display());
    Examined::at(&sandbox, &["--url", &nowhere]).expect_code(1).expect("folder", "problem", "no/such");
}

#[test]
fn a_malformed_url_is_a_finding() {
    let sandbox = Sandbox::new();
    for (url, said) in [
        ("nonsense", "no scheme"),
        ("gopher:x", "unknown"),
        ("sqlite:a.db?x=1", "unknown option \"x\" in the sqlite URL"),
    ] {
        Examined::at(&sandbox, &["--url", url])
            .expect_code(1)
            .expect("configuration", "fine", "from --url")
            .expect("URL", "problem", said);
    }
    std::fs::create_dir(sandbox.path("folder")).unwrap();
    Examined::at(&sandbox, &["--url", "sqlite:folder"]).expect_code(1).expect(
        "URL",
        "problem",
        "is a folder",
    );
}

#[test]
fn a_file_that_is_no_database_or_of_another_program_is_not_changed() {
    let sandbox = Sandbox::new();
    sandbox.write("garbage.db", &"this is not a database ".repeat(100));
    let other = Connection::open(sandbox.path("other.db")).unwrap();
    other.execute_batch("CREATE TABLE theirs (x)").unwrap();
    drop(other);
    for (name, said) in [("garbage.db", "not an SQLite database"), ("other.db", "another program")] {
        let url = format!("sqlite:{}", sandbox.path(name).display());
        Examined::at(&sandbox, &["--url", &url]).expect_code(1).expect("storage", "problem", said);
        assert!(!sandbox.path(&format!("{name}-peers")).exists());
    }
    assert!(sandbox.read("garbage.db").starts_with("this is not a database"));
}

#[test]
fn a_database_that_every_user_can_write_to_is_a_problem() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    set_permissions(sandbox.path("."), Permissions::from_mode(0o755)).unwrap();
    set_permissions(sandbox.path("locks.db"), Permissions::from_mode(0o644)).unwrap();
    Examined::at(&sandbox, &[]).expect_code(0).expect("file", "warning", "all users can read");
    set_permissions(sandbox.path("locks.db"), Permissions::from_mode(0o666)).unwrap();
    Examined::at(&sandbox, &[]).expect_code(1).expect("file", "problem", "all users can remove every lock");
    let ran = sandbox.run(&["doctor"]).expect(1);
    assert!(ran.stderr().starts_with("1 problem, "), "{}", ran.stderr());
    assert!(ran.stdout().contains("\n         hint: chmod o-rwx "), "{}", ran.stdout());
    // Opening it is rejected, and the doctor reports what it can check without opening it.
    set_permissions(sandbox.path("locks.db-peers"), Permissions::from_mode(0o777)).unwrap();
    Examined::at(&sandbox, &[])
        .expect_code(1)
        .expect("access", "problem", "writable by all users")
        .expect("peers folder", "problem", "all users can block all clients")
        .expect("free space", "fine", "MiB");
}

#[test]
fn a_scope_that_is_too_small_is_a_problem() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    let mut command = sandbox.fencepost(["doctor", "--json"]);
    Examined::by(command.env("FENCEPOST_REQUIRE_SHARED", "1"))
        .expect_code(1)
        .expect("scope", "problem", "reaches no further than this host")
        .expect("integrity", "fine", "ok");
}

/// A process that was stopped in the middle of a transaction blocks every other one from opening the database.
#[test]
fn a_backend_that_hangs_is_a_finding_in_the_end() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    let turn = File::options().write(true).open(sandbox.path("locks.db-peers/turn")).unwrap();
    flock(&turn, FlockOperation::LockExclusive).unwrap();
    Examined::at(&sandbox, &[])
        .expect_code(1)
        .expect("reachability", "problem", "no reply within 10s")
        .expect("file", "fine", "locks.db");
}

#[test]
fn locks_are_counted_and_a_name_is_found() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("it's", &[]);
    let examined = Examined::at(&sandbox, &["it's"]);
    examined.expect_code(0).expect("locks", "fine", "1 held, 0 waiting");
    examined.expect("lock", "fine", "rows with name = 'it''s'").expect("lock", "fine", "locks.db");
    assert!(Examined::at(&sandbox, &[]).finding("lock").is_none());
    sandbox.run(&["doctor", ""]).expect(125);
    sandbox.let_go();
    holder.expect(0);
}

#[test]
fn a_visible_password_is_a_warning_and_never_shown() {
    let sandbox = Sandbox::new();
    let url = "redis://user:geheim@localhost:1/0";
    sandbox.write("url", url);
    let by_file = |mode: u32| {
        set_permissions(sandbox.path("url"), Permissions::from_mode(mode)).unwrap();
        let mut command = sandbox.fencepost(["doctor", "--json"]);
        command.env_remove("FENCEPOST_URL").env("FENCEPOST_URL_FILE", "url");
        Examined::by(&mut command)
    };
    for (examined, verdict) in [
        (Examined::at(&sandbox, &["--url", url]), "warning"),
        (by_file(0o644), "warning"),
        (by_file(0o600), "fine"),
    ] {
        examined.expect_code(1).expect("configuration", verdict, "with a password");
        assert!(!examined.answer.to_string().contains("geheim"), "{}", examined.answer);
    }
    for args in [["doctor", "--url", url].as_slice(), &["doctor", url, "a"], &["rights", "--url", url]] {
        let ran = sandbox.run(args);
        assert!(!(ran.stdout() + &ran.stderr()).contains("geheim"), "{args:?}");
    }
}

/// No server, a server that denies access and one that grants it have different findings.
#[test]
fn reachability_and_access_are_separate_findings() {
    let sandbox = Sandbox::new();
    let server = RedisServer::start(&RedisServerConfig::plain().with_password("geheim"));
    let examined = |url: &str| {
        let mut command = sandbox.fencepost(["doctor", "--json"]);
        let examined = Examined::by(command.env("FENCEPOST_URL", url));
        assert!(!examined.answer.to_string().contains("geheim"), "{}", examined.answer);
        examined
    };
    let url = server.url();
    examined(&url)
        .expect("reachability", "fine", &format!("127.0.0.1:{}", server.port()))
        .expect("access", "fine", "granted")
        .expect("scope", "fine", "all hosts");
    examined(&url.replace("geheim", "geheimnis"))
        .expect_code(1)
        .expect("reachability", "fine", "")
        .expect("access", "problem", "");
    drop(server);
    let away = examined(&url);
    away.expect_code(1).expect("configuration", "fine", "with a password").expect(
        "reachability",
        "problem",
        "",
    );
    assert!(away.finding("access").is_none());
}

#[test]
fn findings_that_cannot_be_written_are_a_failure() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = sandbox.fencepost(["doctor", "--json"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn rights_are_printed_without_creating_anything() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["rights"]).expect(0);
    let path = sandbox.path("locks.db");
    for part in ["", "-wal", "-shm", "-peers/"] {
        let part = format!("#   {}{part} ", path.display());
        assert!(ran.stdout().contains(&part), "{part} is missing in {}", ran.stdout());
    }
    assert_eq!(ran.stderr(), "");
    assert_eq!(std::fs::read_dir(sandbox.path(".")).unwrap().count(), 0);
    let nowhere = sandbox.run(&["rights", "--url", "sqlite:/no/such/folder/x.db"]).expect(0);
    assert!(nowhere.stdout().contains("/no/such/folder"), "{}", nowhere.stdout());
    sandbox.run(&["rights", "--url", "nonsense"]).expect(125);
}
