//! Checks that generated files were generated from the present sources.

use super::repo::{Complaint, Repo};
use crate::proto::{GENERATED, SOURCE, mark};
use crate::scenarios;

/// Checks everything that is generated and checked in.
pub(crate) fn check(repo: &Repo) -> Vec<Complaint> {
    messages(repo).into_iter().chain(page(repo)).collect()
}

/// Compares the list of scenarios with the comments of the tests.
fn page(repo: &Repo) -> Option<Complaint> {
    let is_current = repo.text(scenarios::PAGE)? == scenarios::page(repo);
    (!is_current).then(|| {
        Complaint::new(scenarios::PAGE, 1, "the tests name other scenarios now: run `cargo xtask scenarios`")
    })
}

/// Compares the checksum in the generated messages with their source.
fn messages(repo: &Repo) -> Vec<Complaint> {
    let Some(source) = repo.text(SOURCE) else {
        return Vec::new();
    };
    let mark = mark(source);
    let generated = repo.text(GENERATED).unwrap_or_default();
    if generated.lines().any(|line| line == mark) {
        return Vec::new();
    }
    vec![Complaint::new(GENERATED, 1, format!("{SOURCE} has changed since: run `cargo xtask proto`"))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_has_changed_since_is_noticed() {
        let generated = format!("//! Generated.\n{}\n", mark("old"));
        assert_eq!(check(&Repo::of([(SOURCE, "old"), (GENERATED, &generated)])), []);
        assert_eq!(check(&Repo::of([(SOURCE, "new"), (GENERATED, &generated)])).len(), 1);
        assert_eq!(check(&Repo::of([(SOURCE, "new")])).len(), 1);
    }

    #[test]
    fn a_list_of_scenarios_that_is_not_current_is_noticed() {
        let current = scenarios::page(&Repo::of([]));
        assert_eq!(check(&Repo::of([(scenarios::PAGE, &current)])), []);
        assert_eq!(check(&Repo::of([(scenarios::PAGE, "old")])).len(), 1);
    }
}
