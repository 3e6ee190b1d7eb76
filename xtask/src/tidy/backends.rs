//! The grid of backends: each one runs the behaviour suite, and has a page with the headings of the others.

use super::layers;
use super::markdown;
use super::repo::{Complaint, Repo};
use super::scan;

const SUITE: &str = "behavior_suite!";

/// Checks that every backend has both.
pub(crate) fn check(repo: &Repo) -> Vec<Complaint> {
    let backends = layers::backends(repo);
    let untested = backends.iter().filter_map(|backend| untested(repo, backend));
    untested.chain(no_suite(repo)).chain(pages(repo, &backends)).collect()
}

/// The test kit has the suite that every backend runs.
fn no_suite(repo: &Repo) -> Option<Complaint> {
    let mut sources =
        repo.ending(".rs").filter(|(path, _)| path.starts_with("crates/fencepost-testkit/src/"));
    let defined = sources
        .any(|(_, text)| !scan::lines_with(&scan::code(text), "macro_rules! behavior_suite").is_empty());
    (!defined).then(|| {
        Complaint::new("crates/fencepost-testkit/src/lib.rs", 1, "the macro `behavior_suite!` is missing")
    })
}

fn untested(repo: &Repo, backend: &str) -> Option<Complaint> {
    let folder = format!("crates/{backend}/tests/it/");
    let mut tests = repo.ending(".rs").filter(|(path, _)| path.starts_with(&folder));
    let invoked = tests.any(|(_, text)| !scan::lines_with(&scan::code(text), SUITE).is_empty());
    (!invoked)
        .then(|| Complaint::new(&format!("{folder}main.rs"), 1, format!("{backend} does not run `{SUITE}`")))
}

fn pages(repo: &Repo, backends: &[String]) -> Vec<Complaint> {
    let paths = backends.iter().map(|backend| page(backend));
    let (present, absent): (Vec<String>, Vec<String>) = paths.partition(|path| repo.text(path).is_some());
    let absent =
        absent.iter().map(|path| Complaint::new(path, 1, "every backend has its page: this one is missing"));
    let Some((model, others)) = present.split_first() else {
        return absent.collect();
    };
    absent.chain(others.iter().filter_map(|path| differs(repo, model, path))).collect()
}

fn page(backend: &str) -> String {
    format!("docs/backends/{}.md", backend.trim_start_matches("fencepost-"))
}

/// Returns the first heading in which a page differs from the model.
fn differs(repo: &Repo, model: &str, path: &str) -> Option<Complaint> {
    let mut expected = markdown::headings(repo.text(model)?).into_iter().map(|(_, heading)| heading);
    let text = repo.text(path)?;
    for (line, heading) in markdown::headings(text) {
        match expected.next() {
            Some(other) if other == heading => {}
            Some(other) => {
                return Some(Complaint::new(path, line, format!("here {model} has `## {other}`")));
            }
            None => {
                return Some(Complaint::new(path, line, format!("{model} has no `## {heading}`")));
            }
        }
    }
    let missing = expected.next()?;
    Some(Complaint::new(path, text.lines().count().max(1), format!("`## {missing}` of {model} is missing")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACADE: (&str, &str) = (
        "crates/fencepost/Cargo.toml",
        "[dependencies]\nfencepost-memory.workspace = true\nfencepost-sqlite.workspace = true\n",
    );
    const SUITE_DEFINED: (&str, &str) =
        ("crates/fencepost-testkit/src/suite.rs", "macro_rules! behavior_suite { () => {} }");
    const MEMORY_TEST: (&str, &str) =
        ("crates/fencepost-memory/tests/it/main.rs", "behavior_suite!(memory, Bench::new());");
    const SQLITE_TEST: (&str, &str) =
        ("crates/fencepost-sqlite/tests/it/suite.rs", "behavior_suite!(sqlite, Bench::new());");
    const MEMORY_PAGE: (&str, &str) = ("docs/backends/memory.md", "# Memory\n## Guarantees\n## Limits\n");

    fn with_page(sqlite: &str) -> Vec<Complaint> {
        check(&Repo::of([
            FACADE,
            SUITE_DEFINED,
            MEMORY_TEST,
            SQLITE_TEST,
            MEMORY_PAGE,
            ("docs/backends/sqlite.md", sqlite),
        ]))
    }

    #[test]
    fn a_full_grid_is_fine() {
        assert_eq!(with_page("# SQLite\n## Guarantees\ntext\n## Limits\n"), []);
    }

    #[test]
    fn a_page_with_other_headings_is_refused_at_the_line() {
        let path = "docs/backends/sqlite.md";
        let model = MEMORY_PAGE.0;
        let swapped = Complaint::new(path, 1, format!("here {model} has `## Guarantees`"));
        assert_eq!(with_page("## Limits\n## Guarantees\n"), [swapped]);
        let short = Complaint::new(path, 1, format!("`## Limits` of {model} is missing"));
        assert_eq!(with_page("## Guarantees\n"), [short]);
        let long = Complaint::new(path, 3, format!("{model} has no `## More`"));
        assert_eq!(with_page("## Guarantees\n## Limits\n## More\n"), [long]);
    }

    #[test]
    fn holes_in_the_grid_are_refused() {
        let commented = (SQLITE_TEST.0, "// behavior_suite!(sqlite)");
        let complaints = check(&Repo::of([FACADE, MEMORY_TEST, commented, MEMORY_PAGE]));
        let texts: Vec<String> = complaints.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "crates/fencepost-sqlite/tests/it/main.rs:1: fencepost-sqlite does not run `behavior_suite!`",
                "crates/fencepost-testkit/src/lib.rs:1: the macro `behavior_suite!` is missing",
                "docs/backends/sqlite.md:1: every backend has its page: this one is missing",
            ]
        );
    }
}
