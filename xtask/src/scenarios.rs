//! `cargo xtask scenarios`: lists which test covers which regression scenario, by the comments of the tests. The page is
//! checked in, and `cargo xtask tidy` compares it.

mod mentions;
mod titles;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use crate::shell::{self, Failure, Outcome};
use crate::tidy::layers;
use crate::tidy::repo::Repo;
use mentions::{Mention, Place};
use titles::TITLES;

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "list which test covers which scenario";

/// The generated page.
pub(crate) const PAGE: &str = "docs/reference/scenarios.md";

const HEAD: &str = "# Scenarios

Defects that other lock systems had, or that were found in this one, by the number that tests name in their comments. A test
under *every backend* is a behaviour of the suite, which each backend runs; with a list of backends, only these do.
The last column has tests of the client, the command and the test kit. `cargo xtask scenarios` writes this page.
";

/// Writes the page.
pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(word) = args.first() {
        return Err(Failure::Usage(format!("`scenarios` takes no arguments, but got `{word}`")));
    }
    let root = shell::root();
    let page = page(&Repo::load(&root)?);
    fs::write(root.join(PAGE), page).map_err(|why| Failure::Failed(format!("could not write {PAGE}: {why}")))
}

/// Returns the page as it should be.
pub(crate) fn page(repo: &Repo) -> String {
    let backends: Vec<String> = layers::backends(repo)
        .iter()
        .map(|backend| backend.trim_start_matches("fencepost-").to_owned())
        .collect();
    let mut rows: BTreeMap<usize, BTreeMap<Place, BTreeSet<String>>> = BTreeMap::new();
    for Mention { number, place, test } in mentions::all(repo, &backends) {
        rows.entry(number).or_default().entry(place).or_default().insert(test);
    }
    let mut columns = vec![Place::Suite];
    columns.extend(backends.iter().map(|backend| Place::Backend(backend.clone())));
    columns.push(Place::Elsewhere);
    let headings: Vec<&str> = columns.iter().map(Place::heading).collect();
    let mut page = format!("{HEAD}\n| | scenario | {} |\n", headings.join(" | "));
    let _ = writeln!(page, "|---|---|{}", "---|".repeat(columns.len()));
    for (number, places) in &rows {
        let cell = |column: &Place| {
            let tests = places.get(column).into_iter().flatten();
            tests.map(String::as_str).collect::<Vec<_>>().join("<br>")
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        let _ = writeln!(page, "| {number} | {} | {} |", title(*number), cells.join(" | "));
    }
    let uncovered: Vec<String> = (1..=TITLES.len())
        .filter(|number| !rows.contains_key(number))
        .map(|number| format!("* {number}: {}\n", title(number)))
        .collect();
    if !uncovered.is_empty() {
        let _ = write!(page, "\nNo test names these:\n\n{}", uncovered.concat());
    }
    page
}

fn title(number: usize) -> &'static str {
    number.checked_sub(1).and_then(|at| TITLES.get(at)).copied().unwrap_or("(without a title)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_tests_of_each_backend() {
        let facade = "[dependencies]\nfencepost-redis.workspace = true\nfencepost-sqlite.workspace = true\n";
        let page = page(&Repo::of([
            ("crates/fencepost/Cargo.toml", facade),
            ("crates/fencepost-sqlite/tests/it/a.rs", "/// Scenario 41: x.\n#[test]\nfn busy() {}\n"),
            (
                "crates/fencepost-testkit/src/behaviors/names.rs",
                "/// Scenario 40.\npub async fn parts<B>() {}\n",
            ),
        ]));
        assert!(page.contains("| | scenario | every backend | redis | sqlite | elsewhere |\n"), "{page}");
        assert!(page.contains(&format!("| 40 | {} | `names::parts` |  |  |  |\n", title(40))), "{page}");
        assert!(page.contains(&format!("| 41 | {} |  |  | `a::busy` |  |\n", title(41))), "{page}");
        assert!(page.contains("No test names these:\n\n* 1: "), "{page}");
    }
}
