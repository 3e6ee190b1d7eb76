//! Words that are allowed only in certain places, and the doc comment that opens every module.

use super::repo::{Complaint, Repo, extension};
use super::scan;

/// Words, the files in which they are banned, and why.
struct Rule {
    words: &'static [&'static str],
    view: View,
    banned_in: fn(&str) -> bool,
    why: &'static str,
}

/// The part of a file that a rule checks.
enum View {
    Everything,
    Code,
    ShippedCode,
}

const RULES: [Rule; 5] = [
    Rule {
        words: &["rusqlite"],
        view: View::Everything,
        banned_in: |path| {
            let its_own = path.starts_with("crates/fencepost-sqlite/");
            is_crate_source(path) && !its_own && !path.contains("/tests/")
        },
        why: "is a word of crates/fencepost-sqlite, and of tests that read its file directly",
    },
    Rule {
        words: &["println!", "eprintln!", "print!", "eprint!"],
        view: View::ShippedCode,
        banned_in: |path| is_crate_source(path) && !may_print(path),
        why: "is for crates/fencepost-cli/src/output.rs: nothing else prints",
    },
    Rule {
        words: &["todo!", "unimplemented!", "dbg!", "#[ignore"],
        view: View::Code,
        banned_in: |path| extension(path) == "rs",
        why: "is unfinished work",
    },
    Rule {
        words: &["SystemTime::now", "Instant::now", "thread::sleep", "time::sleep"],
        view: View::Code,
        banned_in: |path| is_crate_source(path) && path.contains("/src/") && !may_read_time(path),
        why: "is for clock.rs: take the time from a clock, and wait on a condition",
    },
    Rule {
        // Cut in two, so that this file does not complain about itself.
        words: &[concat!("/ro", "ot/"), concat!("/Use", "rs/"), concat!("/mn", "t/")],
        view: View::Everything,
        banned_in: |_| true,
        why: "is a path of one machine",
    },
];

/// Checks every file against every rule.
pub(crate) fn check(repo: &Repo) -> Vec<Complaint> {
    let words =
        repo.files().flat_map(|(path, text)| RULES.iter().flat_map(move |rule| broken(rule, path, text)));
    words.chain(unopened(repo)).collect()
}

fn broken(rule: &Rule, path: &str, text: &str) -> Vec<Complaint> {
    if !(rule.banned_in)(path) {
        return Vec::new();
    }
    let text = match rule.view {
        View::Everything => text.to_owned(),
        View::Code => scan::code(text),
        View::ShippedCode => scan::shipped(&scan::code(text)),
    };
    let lines = |word: &'static str| scan::lines_with(&text, word).into_iter().map(move |line| (word, line));
    let found = rule.words.iter().flat_map(|word| lines(word));
    found.map(|(word, line)| Complaint::new(path, line, format!("`{word}` {}", rule.why))).collect()
}

/// Returns the modules that do not start with their purpose.
fn unopened(repo: &Repo) -> impl Iterator<Item = Complaint> {
    let modules =
        repo.ending(".rs").filter(|(path, _)| path.starts_with("crates/") && path.contains("/src/"));
    modules.filter(|(_, text)| !opens_with_doc(text)).map(|(path, _)| {
        Complaint::new(path, 1, "a module starts with a `//!` line that says what it is for")
    })
}

fn opens_with_doc(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("#!["));
    first.is_some_and(|line| line.starts_with("//!"))
}

fn is_crate_source(path: &str) -> bool {
    path.starts_with("crates/") && extension(path) == "rs"
}

fn may_print(path: &str) -> bool {
    let for_tests =
        |folder: &str| matches!(folder, "tests" | "examples" | "benches" | "tests.rs" | "build.rs");
    path == "crates/fencepost-cli/src/output.rs"
        || path.starts_with("crates/fencepost-bench/")
        || path == "crates/fencepost-interop/src/main.rs"
        || path.split('/').any(for_tests)
}

fn may_read_time(path: &str) -> bool {
    path.ends_with("/clock.rs")
        || path.starts_with("crates/fencepost-bench/")
        || path == "crates/fencepost-testkit/src/wait.rs"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<String> {
        check(&Repo::of([(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn refused(path: &str, line: &str) {
        let text = format!("//! A module.\n{line}\n");
        let found = complaints(path, &text);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{path}:2: `")), "{found:?}");
    }

    #[track_caller]
    fn accepted(path: &str, line: &str) {
        assert_eq!(complaints(path, &format!("//! A module.\n{line}\n")), Vec::<String>::new());
    }

    #[test]
    fn a_driver_is_named_only_in_its_crate() {
        refused("crates/fencepost-core/src/lib.rs", "/// Like rusqlite.");
        accepted("crates/fencepost-sqlite/src/open.rs", "use rusqlite::Connection;");
        accepted("crates/fencepost-cli/tests/it/losing.rs", "use rusqlite::Connection;");
    }

    #[test]
    fn only_the_output_prints() {
        refused("crates/fencepost-core/src/lib.rs", "fn f() { eprintln!(); }");
        refused("crates/fencepost-cli/src/main.rs", "fn f() { println!(); }");
        accepted("crates/fencepost-cli/src/output.rs", "fn f() { println!(); }");
        accepted("crates/fencepost/examples/hello.rs", "fn f() { println!(); }");
        accepted("crates/fencepost/src/lib.rs", "/// println!()");
        accepted("crates/fencepost/src/lib.rs", "#[cfg(test)] mod tests { fn f() { println!(); } }");
    }

    #[test]
    fn unfinished_work_is_refused_in_tests_too() {
        refused("crates/fencepost/tests/it/main.rs", "#[ignore = \"slow\"] fn f() {}");
        refused("xtask/src/main.rs", "fn f() { todo!() }");
        accepted("xtask/src/main.rs", "const F: &str = \"todo!\";");
    }

    #[test]
    fn time_is_read_in_the_clock() {
        refused("crates/fencepost-core/src/keeper.rs", "let now = std::time::Instant::now();");
        refused("crates/fencepost-cli/src/main.rs", "use tokio::time::sleep;");
        refused("crates/fencepost-testkit/src/lib.rs", "std::thread::sleep(x);");
        accepted("crates/fencepost-testkit/src/wait.rs", "std::thread::sleep(x);");
        accepted("crates/fencepost-core/src/clock.rs", "let now = Instant::now();");
    }

    #[test]
    fn paths_of_a_machine_are_refused_anywhere() {
        refused("docs/guide.md", concat!("see /ro", "ot/notes"));
        accepted("docs/guide.md", "see workshop/notes");
    }

    #[test]
    fn a_module_opens_with_its_purpose() {
        let path = "crates/fencepost-core/src/lib.rs";
        assert_eq!(complaints(path, "use std::fs;\n").len(), 1);
        assert_eq!(complaints(path, "").len(), 1);
        assert_eq!(complaints(path, "\n#![warn(x)]\n//! Here.\n").len(), 0);
    }
}
