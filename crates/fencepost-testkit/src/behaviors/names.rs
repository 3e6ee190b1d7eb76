//! Names are taken literally: not case-folded, normalised, truncated or interpreted.

use fencepost_core::{ErrorKind, Guard, LockName};

use super::{LONG_TTL, hold, refused};
use crate::test_bench::TestBench;

/// Holds all of the names at once, each as a lock of its own, and releases them.
async fn are_different_locks<B: TestBench>(bench: &B, names: &[&str]) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let mut guards: Vec<Guard> = Vec::new();
    for name in names {
        let guard = ours.lock(name).ttl(LONG_TTL).try_acquire().await.unwrap();
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is the same as one before it")));
    }
    for (name, guard) in names.iter().zip(&guards) {
        assert_eq!(guard.name().as_str(), *name);
        assert!(theirs.lock(name).try_acquire().await.unwrap().is_none(), "{name:?} is not held");
        let state = theirs.inspect(name).await.unwrap();
        assert_eq!((state.name.as_str(), state.holders[0].token), (*name, Some(guard.token())));
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    for name in names {
        assert!(theirs.inspect(name).await.unwrap().is_idle(), "{name:?} is still there");
    }
}

/// Scenario 39: names with a special meaning in some backend.
pub async fn hostile_names_are_taken_literally<B: TestBench>(bench: &B) {
    let names = [
        "/",
        "//",
        ".",
        "..",
        "../..",
        "a/../b",
        "{}",
        "{a}",
        "{a}b",
        "%",
        "%s",
        "%00",
        "%2F",
        "'",
        "\"",
        "`",
        "\\",
        "*",
        "?",
        "[a-z]",
        "$",
        ";",
        "--",
        "'; DROP TABLE holders; --",
        " ",
        "a b",
        " a",
        "a ",
        "\u{a0}",
        "null",
        "0",
        "-1",
        "#",
        "a:b",
        "@",
        "~",
        "|",
        "<>",
        "&amp;",
    ];
    are_different_locks(bench, &names).await;
}

/// Scenario 39: upper and lower case are different.
pub async fn case_is_not_folded<B: TestBench>(bench: &B) {
    are_different_locks(bench, &["invoice", "Invoice", "INVOICE", "ß", "ss", "SS", "ı", "i", "I", "İ"]).await;
}

/// Scenario 39: names that look alike are different, and characters outside the basic multilingual plane are kept.
pub async fn unicode_is_not_normalized<B: TestBench>(bench: &B) {
    are_different_locks(bench, &["\u{e9}", "e\u{301}", "\u{435}", "e", "\u{e5}", "\u{212b}", "a\u{30a}"])
        .await;
    are_different_locks(
        bench,
        &["日本", "日本語", "🔒", "🔒🔒", "\u{200b}", "\u{feff}a", "a", "\u{fb01}", "fi"],
    )
    .await;
}

/// Scenario 39: all 512 bytes count.
pub async fn long_names_are_kept_in_full<B: TestBench>(bench: &B) {
    let base = "x".repeat(LockName::MAX_BYTES - 1);
    let wide = "é".repeat(LockName::MAX_BYTES / 2);
    are_different_locks(
        bench,
        &[&base, &format!("{base}a"), &format!("{base}b"), &format!("{base}B"), &wide],
    )
    .await;
}

/// Scenario 40: a name and a name below it are independent, and so are their lists.
pub async fn a_name_and_a_name_below_it_are_independent<B: TestBench>(bench: &B) {
    are_different_locks(bench, &["a", "a/", "a/b", "a/b/c", "ab"]).await;
    let client = bench.client().await;
    let both = hold(&client.lock_all(["a", "a/b"]).ttl(LONG_TTL)).await;
    assert!(client.lock("a/c").try_acquire().await.unwrap().is_some());
    both.release().await.unwrap();
}

/// Scenario 54: a lock that is named like an internal key, node or table is an ordinary lock.
pub async fn internal_names_are_ordinary_names<B: TestBench>(bench: &B) {
    let names = [
        "holders",
        "tickets",
        "cells",
        "departed",
        "meta",
        "locks",
        "lines",
        "fencepost",
        "fencepost:",
        "storage_id",
        "token",
        "tokens",
        "sequence",
        "owner",
        "queue",
        "schema",
        "version",
        "sqlite_master",
        "sqlite_sequence",
        "cleanup",
        "__proto__",
    ];
    are_different_locks(bench, &names).await;
}

/// Scenario 39: an invalid name is rejected with the reason, before anything is sent.
pub async fn an_invalid_name_is_refused<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let long = "x".repeat(LockName::MAX_BYTES + 1);
    for name in ["", "a\0b", "\0", "line\nbreak", "\u{7f}", "\u{85}", long.as_str()] {
        for error in [
            refused(client.lock(name).try_acquire().await),
            refused(client.lock_any(["a", name]).acquire().await),
            refused(client.inspect(name).await),
            refused(client.read_cell(name).await),
        ] {
            assert_eq!(error.kind(), ErrorKind::BadName, "{name:?}");
            assert!(!error.to_string().is_empty());
        }
    }
    assert_eq!(proxy.count_all(), 0);
}
