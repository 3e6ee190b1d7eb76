//! `cargo xtask lines`: the number of lines of code, by crate and role.

use std::collections::BTreeMap;

use crate::shell::{Failure, Outcome};
use crate::tidy::repo::{Repo, extension};
use crate::tidy::{scan, sizes};

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "count the lines of src without tests and generated code, by crate and by role";

/// The roles, and which files of any crate have them: a folder or a file, by its name without `.rs`. All others have the
/// first role.
const ROLES: [(&str, &[&str]); 5] = [
    ("semantics", &["flight", "operations", "rules"]),
    (
        "transport",
        &[
            "account",
            "address",
            "backoff",
            "batch_waker",
            "blocked",
            "config",
            "connect",
            "engine",
            "first_turn",
            "flights",
            "handle",
            "identity",
            "inbox",
            "interests",
            "link",
            "listener",
            "maintenance",
            "node",
            "open",
            "poller",
            "pool",
            "push",
            "reconnect",
            "replaced",
            "request",
            "response",
            "route",
            "sent",
            "sentinel",
            "session",
            "sessions",
            "state",
            "stream",
            "timers",
            "tls",
            "turnstile",
            "url",
            "wake",
            "writer",
        ],
    ),
    (
        "layouts, dialects",
        &[
            "about",
            "codec",
            "conversion",
            "decode",
            "dialect",
            "encode",
            "fetch",
            "keys",
            "layout",
            "literal",
            "node_name",
            "read",
            "reply",
            "rows",
            "save",
            "schema",
            "scripts",
            "statements",
            "storage",
            "storage_id",
            "suffixes",
            "value",
            "write",
        ],
    ),
    (
        "doctor, listing, layers",
        &[
            "diagnose",
            "duration_text",
            "file_system",
            "finding",
            "foreign",
            "layers",
            "listing",
            "locate",
            "lock_state",
            "preflight",
            "rights",
            "watch",
        ],
    ),
    (
        "interface",
        &[
            "blocking",
            "client",
            "defaults",
            "guard",
            "lib",
            "lock",
            "locks",
            "options",
            "serde_impls",
            "shell",
        ],
    ),
];

/// The crates that are counted role by role.
const CRATES: [&str; 11] = [
    "core",
    "net",
    "contenders",
    "sql",
    "memory",
    "sqlite",
    "redis",
    "etcd",
    "zookeeper",
    "postgres",
    "mysql",
];

/// Prints a table in Markdown.
pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(word) = args.first() {
        return Err(Failure::Usage(format!("`lines` takes no arguments, but got `{word}`")));
    }
    print!("{}", table(&Repo::load(&crate::shell::root())?));
    Ok(())
}

fn table(repo: &Repo) -> String {
    let counted = count(repo);
    let roles = ROLES.map(|(role, _)| role);
    let mut table =
        format!("| crate | {} | all |\n|---|{}\n", roles.join(" | "), "---|".repeat(ROLES.len() + 1));
    let mut totals = [0; ROLES.len()];
    for name in CRATES {
        let lines = counted.get(name).copied().unwrap_or_default();
        totals.iter_mut().zip(lines).for_each(|(total, lines)| *total += lines);
        table += &row(name, lines);
    }
    table + &row("together", totals)
}

fn row(name: &str, lines: [usize; ROLES.len()]) -> String {
    let cells = lines.map(|lines| if lines == 0 { "–".into() } else { lines.to_string() });
    format!("| {name} | {} | {} |\n", cells.join(" | "), lines.iter().sum::<usize>())
}

fn count(repo: &Repo) -> BTreeMap<&'static str, [usize; ROLES.len()]> {
    let mut counted: BTreeMap<&'static str, [usize; ROLES.len()]> = BTreeMap::new();
    for (path, text) in repo.files().filter(|(path, _)| sizes::is_shipped(path)) {
        let Some((folder, file)) = path.split_once("/src/") else { continue };
        let Some(name) = CRATES.into_iter().find(|name| folder == format!("crates/fencepost-{name}")) else {
            continue;
        };
        let lines = match extension(path) {
            "rs" => scan::shipped_lines(text),
            "lua" | "sql" => text.lines().count(),
            _ => continue,
        };
        counted.entry(name).or_default()[role(file)] += lines;
    }
    counted
}

/// Returns the role of a file: that of the first of its folders, or of its own name, that has one. What is called like one of
/// the first role has it in any folder.
fn role(file: &str) -> usize {
    let words: Vec<&str> = file.split(['/', '.']).collect();
    let (_, first) = ROLES[0];
    if words.iter().any(|word| first.contains(word)) {
        return 0;
    }
    let of = |word: &&str| ROLES.iter().position(|(_, words)| words.contains(word));
    words.iter().find_map(of).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_crate_and_role() {
        let repo = Repo::of([
            ("crates/fencepost-etcd/src/enter.rs", "a\nb\n#[cfg(test)]\nmod tests {}\n"),
            ("crates/fencepost-etcd/src/link/calls.rs", "a\n"),
            ("crates/fencepost-etcd/src/link/tests.rs", "a\n"),
            ("crates/fencepost-redis/src/scripts/execute.lua", "a\nb\n"),
            ("crates/fencepost-postgres/src/schema/rules.sql", "a\nb\nc\n"),
            ("crates/fencepost-postgres/src/schema/tables.sql", "a\n"),
            ("crates/fencepost-cli/src/main.rs", "a\n"),
        ]);
        let counted = count(&repo);
        assert_eq!(counted["etcd"], [2, 1, 0, 0, 0]);
        assert_eq!(counted["redis"], [0, 0, 2, 0, 0]);
        assert_eq!(counted["postgres"], [3, 0, 1, 0, 0]);
        assert_eq!(counted.len(), 3);
    }
}
