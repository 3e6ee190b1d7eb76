//! The list of behaviours is complete.

use std::collections::BTreeSet;
use std::path::Path;

fn source(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `group::behaviour` for every public function of every group.
fn defined() -> BTreeSet<String> {
    let groups = source("behaviors/mod.rs");
    let groups = groups.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let behaviors = |group: &str| {
        let text = source(&format!("behaviors/{group}.rs"));
        let names = text.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split('<').next());
        names.map(|name| format!("{group}::{name}")).collect::<Vec<_>>()
    };
    groups.flat_map(behaviors).collect()
}

/// `group::behaviour` for every entry of the list.
fn listed() -> BTreeSet<String> {
    let text = source("list.rs");
    let (mut group, mut found) = ("", BTreeSet::new());
    for line in text.lines().map(str::trim) {
        let is_word =
            |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if let Some(word) = line.strip_suffix(" {").filter(|word| is_word(word)) {
            group = word;
        } else if let Some(word) = line
            .strip_suffix(',')
            .and_then(|line| line.split(" [").next())
            .filter(|word| !group.is_empty() && is_word(word))
        {
            found.insert(format!("{group}::{word}"));
        }
    }
    found
}

#[test]
fn every_behavior_is_in_the_list() {
    let defined = defined();
    assert!(defined.len() > 100, "only {} were found", defined.len());
    assert_eq!(listed(), defined);
}

/// Each guarantee in the contract names the behaviour, or the group of behaviours, that checks it.
#[test]
fn every_guarantee_of_the_contract_is_checked() {
    let contract = source("../../fencepost-core/src/backend.rs");
    let named: Vec<&str> = contract.split("(`").skip(1).filter_map(|rest| rest.split("`)").next()).collect();
    assert!(!named.is_empty());
    let known = defined();
    for name in named {
        let is_known = |path: &String| path.split("::").any(|part| part == name);
        assert!(known.iter().any(is_known), "no behaviour is called {name}");
    }
}
