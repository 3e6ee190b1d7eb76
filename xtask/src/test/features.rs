//! Stage "features": the facade compiles with each of its features alone, and with none.

use crate::manifest;
use crate::shell::{self, Failure, Outcome, cargo, root};
use std::fs;

/// The feature that is only a list of the others.
const ALL: &str = "full";

/// Checks the facade once for every feature in its manifest.
pub(crate) fn run() -> Outcome {
    let path = root().join("crates/fencepost/Cargo.toml");
    let manifest = fs::read_to_string(&path)
        .map_err(|why| Failure::Failed(format!("could not read {}: {why}", path.display())))?;
    check(&[])?;
    alone(&manifest).iter().try_for_each(|feature| check(&["--features", feature]))
}

fn check(extra: &[&str]) -> Outcome {
    shell::run(cargo(["check", "--quiet", "-p", "fencepost", "--no-default-features"]).args(extra))
}

fn alone(manifest: &str) -> Vec<String> {
    let features = manifest::keys(manifest, "features");
    features.into_iter().filter(|feature| feature != "default" && feature != ALL).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_features_are_not_checked_alone() {
        let manifest =
            "[features]\ndefault = [\"sqlite\"]\nfull = [\"sqlite\", \"memory\"]\nsqlite = []\nmemory = []\n";
        assert_eq!(alone(manifest), ["sqlite", "memory"]);
    }
}
