//! Names as nodes: a lock of another library with the same name is the same lock.

use std::collections::HashSet;

use fencepost_core::{Keep, Page};
use zookeeper_client::{Acls, CreateMode};

use crate::actions::{LONG_TTL, connect, hold};
use crate::bench::ZooKeeperBench;

/// Scenario 68: names that other libraries write verbatim are the same locks, whichever client is first.
#[tokio::test]
async fn a_name_is_the_node_that_other_libraries_use() {
    let bench = ZooKeeperBench::plain();
    let (client, driver) = (connect(&bench.direct()).await, bench.driver().await);
    let (entry, container) = (CreateMode::EphemeralSequential, CreateMode::Container);
    let all = Acls::anyone_all();
    for name in ["müller", "a%b", "a b", "100%", "Ä漢字", "a%20b", "m%C3%BCller", "a%25b", "zookeeper"] {
        let lock = client.lock(name).ttl(LONG_TTL);
        let guard = hold(&lock).await;
        assert_eq!(bench.contenders(&driver, name).await.len(), 1, "{name}");
        guard.release().await.unwrap();

        // The servers may have removed the empty node.
        let _ = driver.create(&bench.lock_path(name), b"", &container.with_acls(all)).await;
        let theirs = format!("{}/_c_0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-lock-", bench.lock_path(name));
        let (_, number) = driver.create(&theirs, b"", &entry.with_acls(all)).await.unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none(), "{name} is held by a foreign client");
        driver.delete(&format!("{theirs}{number}"), None).await.unwrap();
        hold(&lock).await.release().await.unwrap();
    }
}

/// Scenario 68: the servers accept the node of every name, and no other name has it.
#[tokio::test]
async fn every_name_is_a_separate_lock() {
    let longest = ["🦀".repeat(128), "/".repeat(512), "%2F".repeat(170)];
    let mut names = vec![
        "a",
        "A",
        "a/b",
        "a%2Fb",
        "a%252Fb",
        "a%2fb",
        ".",
        "..",
        "...",
        "%2E",
        "%2E.",
        "_fencepost",
        "%5Ffencepost",
        "_fencepost/about",
        "🦀",
        "%F0%9F%A6%80",
        "\u{e000}",
        "\u{f8ff}",
        "\u{fff0}\u{fffd}",
        "\u{f900}\u{ffef}",
        "ü",
        "u\u{308}",
        "/",
        "//",
        "%",
        "%%",
        "%/",
        "\u{a0}",
        "zookeeper",
        "locks",
    ];
    names.extend(longest.iter().map(String::as_str));
    names.sort_unstable();
    let bench = ZooKeeperBench::plain();
    let (client, other) = (connect(&bench.direct()).await, connect(&bench.direct()).await);
    let mut guards = Vec::new();
    for name in &names {
        let guard = hold(&client.lock(name).ttl(LONG_TTL)).await;
        guard.write_cell(name.as_bytes(), Keep::Always).await.unwrap();
        guards.push(guard);
    }
    let mut listed_names = Vec::new();
    let mut page = Page::new(10);
    loop {
        let listed = other.list("", page.clone()).await.unwrap();
        listed_names.extend(listed.locks.into_iter().map(|state| state.name.as_str().to_owned()));
        let Some(next) = listed.next else { break };
        page.after = Some(next);
    }
    assert_eq!(listed_names, names);
    let tokens: HashSet<u64> = guards.iter().map(|guard| guard.token().get()).collect();
    assert_eq!(tokens.len(), names.len());
    for (name, guard) in names.iter().zip(guards) {
        assert!(other.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
        guard.release().await.unwrap();
        assert_eq!(&*other.read_cell(name).await.unwrap().expect("the cell is kept").bytes, name.as_bytes());
    }
}

/// Scenario 67: names that are used once leave a bounded number of empty nodes, whatever the servers remove themselves.
#[tokio::test]
async fn names_that_are_used_once_do_not_accumulate() {
    const NAMES: usize = 1_500;
    let bench = ZooKeeperBench::plain();
    let client = connect(&bench.direct()).await;
    let tasks = (0..16).map(|task| {
        let client = client.clone();
        tokio::spawn(async move {
            for number in (task..NAMES).step_by(16) {
                hold(&client.lock(format!("once-{number}")).ttl(LONG_TTL)).await.release().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let driver = bench.driver().await;
    fencepost_testkit::wait::until("few nodes are left", async || {
        driver.list_children(&bench.lock_path("")[..bench.lock_path("").len() - 1]).await.unwrap().len() < 400
    })
    .await;
    assert!(client.list("", Page::new(10)).await.unwrap().locks.is_empty());
}
