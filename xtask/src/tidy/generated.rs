//! Whether what is generated was generated from what is there now.

use super::repo::{Complaint, Repo};
use crate::proto::{GENERATED, SOURCE, mark};

/// Compares the checksum in the generated messages with the text they were generated from.
pub(crate) fn check(repo: &Repo) -> Vec<Complaint> {
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
}
