//! The doctor's findings about a database.

use fencepost_core::{Client, ErrorKind, Finding, Severity};
use fencepost_testkit::wait;

use crate::bench::SqliteBench;

async fn connected(bench: &SqliteBench) -> Client {
    fencepost_sqlite::connect(bench.path().to_str().unwrap()).await.unwrap()
}

async fn found(client: &Client, check: &str) -> Finding {
    let findings = client.diagnose().await.unwrap();
    let found = findings.iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("{check} is not among {findings:?}")).clone()
}

#[tokio::test]
async fn a_healthy_database_has_no_problem_and_a_finding_for_every_check() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let checks = [
        "file",
        "folder",
        "peers folder",
        "write-ahead log",
        "file system",
        "free space",
        "SQLite",
        "schema",
        "storage id",
        "journal mode",
        "synchronous",
        "integrity",
        "locks",
        "clock",
    ];
    let findings = client.diagnose().await.unwrap();
    assert_eq!(findings.iter().map(|finding| finding.check.as_str()).collect::<Vec<_>>(), checks);
    for finding in &findings {
        assert_ne!(finding.severity, Severity::Problem, "{finding}");
        assert!(!finding.found.is_empty(), "{finding}");
        assert!(finding.severity == Severity::Ok || finding.advice.is_some(), "{finding}");
    }
    let id = client.info().storage_id.to_string();
    assert_eq!(found(&client, "storage id").await, Finding::ok("storage id", id));
    assert_eq!(found(&client, "journal mode").await.found, "wal");
}

#[tokio::test]
async fn locks_and_waiters_are_counted() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").acquire().await.unwrap();
    let waiting = client.clone();
    let waiter = tokio::spawn(async move { waiting.lock("a").acquire().await });
    wait::until("the waiter is queued", async || {
        found(&client, "locks").await.found == "1 held, 1 waiting, 0 cells"
    })
    .await;
    drop(guard);
    drop(waiter.await.unwrap().unwrap());
}

#[tokio::test]
async fn damage_is_reported_by_the_check_it_concerns() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let _guard = client.lock("a").acquire().await.unwrap();
    let cases = [
        ("UPDATE holders SET clock = clock + 1", "clock", Severity::Warning),
        ("PRAGMA user_version = 2", "schema", Severity::Problem),
        ("PRAGMA ignore_check_constraints = ON; UPDATE storage SET id = 2", "integrity", Severity::Problem),
        ("DROP TABLE tickets", "locks", Severity::Problem),
    ];
    for (damage, check, severity) in cases {
        assert_eq!(found(&client, check).await.severity, Severity::Ok, "before: {check}");
        bench.driver().execute_batch(damage).unwrap();
        let finding = found(&client, check).await;
        assert_eq!(finding.severity, severity, "{finding}");
    }
}

#[tokio::test]
async fn a_replaced_file_is_reported() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    std::fs::rename(bench.path(), bench.folder().join("elsewhere.db")).unwrap();
    let finding = found(&client, "identity").await;
    assert_eq!(finding.severity, Severity::Problem);
    assert!(finding.found.contains("removed or replaced") && finding.advice.is_some(), "{finding}");
}

/// Uses the condition that `locate` prints with the driver itself.
#[tokio::test]
async fn a_lock_is_found_where_locate_says() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let name = "it's \"one\"; DROP TABLE holders";
    let _guard = client.lock(name).acquire().await.unwrap();
    let findings = client.locate(name).await.unwrap();
    let (before, after) = findings[0].found.split_once(" in holders").unwrap();
    assert!(after.ends_with(bench.path().canonicalize().unwrap().to_str().unwrap()), "{after}");
    let condition = before.strip_prefix("rows with ").unwrap();
    let sql = format!("SELECT name FROM holders WHERE {condition}");
    assert_eq!(bench.driver().query_row(&sql, [], |row| row.get::<_, String>(0)).unwrap(), name);
    assert_eq!(client.locate("").await.unwrap_err().kind(), ErrorKind::BadName);
}

/// `rights` names exactly the files that exist.
#[tokio::test]
async fn the_rights_name_all_files() {
    let bench = SqliteBench::new();
    let url = bench.path().to_str().unwrap().to_owned();
    let rights = fencepost_sqlite::rights(&url).unwrap();
    assert_eq!(std::fs::read_dir(bench.folder()).unwrap().count(), 0, "a file was created");
    let client = connected(&bench).await;
    let _guard = client.lock("a").acquire().await.unwrap();
    for entry in std::fs::read_dir(bench.folder()).unwrap() {
        let path = entry.unwrap().path();
        let path = path.to_str().unwrap();
        assert!(rights.lines().any(|line| line.starts_with(&format!("#   {path}"))), "{path}: {rights}");
    }
}

/// The commands for several accounts create a database that can be opened.
#[tokio::test]
async fn the_rights_for_several_accounts_can_be_pasted() {
    let bench = SqliteBench::new();
    let path = bench.folder().join("it's here/locks.db");
    let path = path.to_str().unwrap();
    let rights = fencepost_sqlite::rights(path).unwrap();
    let (_, several) = rights.split_once("# Or several accounts").unwrap();
    let ours = |id: &str| std::process::Command::new("id").arg(id).output().unwrap().stdout;
    let (user, group) = (String::from_utf8(ours("-u")).unwrap(), String::from_utf8(ours("-g")).unwrap());
    let script = several.replace("-o root", &format!("-o {}", user.trim())).replace("GROUP", group.trim());
    let pasted = std::process::Command::new("sh").args(["-ec", &format!("# {script}")]).output().unwrap();
    assert!(pasted.status.success(), "{script}: {}", String::from_utf8_lossy(&pasted.stderr));
    let client = fencepost_sqlite::connect(path).await.unwrap();
    client.lock("a").acquire().await.unwrap().release().await.unwrap();
    for finding in client.diagnose().await.unwrap() {
        assert_ne!(finding.severity, Severity::Problem, "{finding}");
    }
}
