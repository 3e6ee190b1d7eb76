//! Limits for the length of functions and the number of methods.

use std::collections::BTreeMap;

use super::repo::{Complaint, Repo};
use super::scan;

/// A function has fewer lines than this.
const FUNCTION: usize = 60;
/// The largest number of methods of a type.
const METHODS: usize = 40;

/// Complains about long functions and large types in what the crates ship.
pub(crate) fn check(repo: &Repo) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut types: BTreeMap<(String, String), (usize, String)> = BTreeMap::new();
    for (path, text) in repo.ending(".rs").filter(|(path, _)| is_shipped(path)) {
        let code = scan::shipped(&scan::code(text));
        for function in scan::functions(&code).filter(|function| function.lines >= FUNCTION) {
            let message =
                format!("`{}` has {} lines; split it below {FUNCTION}", function.name, function.lines);
            complaints.push(Complaint::new(path, function.line, message));
        }
        let folder = path.split("/src/").next().unwrap_or(path);
        for (name, methods) in scan::impls(&code) {
            let key = (folder.to_owned(), name.to_owned());
            types.entry(key).or_insert((0, path.to_owned())).0 += methods;
        }
    }
    let large = types.into_iter().filter(|(_, (methods, _))| *methods > METHODS);
    complaints.extend(large.map(|((_, name), (methods, path))| {
        Complaint::new(
            &path,
            1,
            format!("`{name}` has {methods} methods in its crate; the most is {METHODS}"),
        )
    }));
    complaints
}

/// Returns whether a file is part of what a crate ships, and not generated.
pub(crate) fn is_shipped(path: &str) -> bool {
    path.contains("/src/")
        && !path.contains("/tests/")
        && !path.ends_with("/tests.rs")
        && !path.ends_with("etcdserverpb.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_function_and_a_large_type_are_told() {
        let long = format!("fn long() {{\n{}}}\n", "    a();\n".repeat(58));
        let large = format!("impl A {{\n{}}}\n", "    fn a() {}\n".repeat(41));
        let repo = Repo::of([("crates/x/src/long.rs", &long), ("crates/x/src/large.rs", &large)]);
        let found: Vec<String> = check(&repo).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "crates/x/src/long.rs:1: `long` has 60 lines; split it below 60",
                "crates/x/src/large.rs:1: `A` has 41 methods in its crate; the most is 40"
            ]
        );
        let fine = Repo::of([("crates/x/src/tests.rs", &*long), ("crates/x/tests/it/large.rs", &*large)]);
        assert!(check(&fine).is_empty());
    }
}
