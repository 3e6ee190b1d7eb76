//! Finds the tests that name a scenario.

use crate::tidy::repo::Repo;
use crate::tidy::scan;

const BEHAVIORS: &str = "crates/fencepost-testkit/src/behaviors/";
const LIST: &str = "crates/fencepost-testkit/src/list.rs";
/// The suites that not every backend runs.
const SUITES: [&str; 2] = ["wire_suite", "session_suite"];

/// The column of a test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Suite,
    Backend(String),
    Elsewhere,
}

impl Place {
    pub(super) fn heading(&self) -> &str {
        match self {
            Self::Suite => "every backend",
            Self::Backend(name) => name,
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// A scenario that a test names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) number: usize,
    pub(super) place: Place,
    /// The test, as the page shows it.
    pub(super) test: String,
}

/// Returns every scenario that a test names in its documentation.
pub(super) fn all(repo: &Repo, backends: &[String]) -> Vec<Mention> {
    let sources = repo.ending(".rs").filter(|(path, _)| path.starts_with("crates/"));
    sources.flat_map(|(path, text)| in_file(repo, backends, path, text)).collect()
}

fn in_file(repo: &Repo, backends: &[String], path: &str, text: &str) -> Vec<Mention> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let numbers = numbers(line);
        if numbers.is_empty() {
            continue;
        }
        let Some(name) = test_at(path, &lines[at..]) else { continue };
        let (place, note) = place(repo, backends, path, &name);
        let name = format!("`{name}`{note}");
        found.extend(numbers.into_iter().map(|number| Mention {
            number,
            place: place.clone(),
            test: name.clone(),
        }));
    }
    found
}

/// Returns the numbers that a line of documentation names: `Scenario 59: …`, `Scenarios 20 and 31: …`.
fn numbers(line: &str) -> Vec<usize> {
    let is_documentation = line.starts_with("///") || line.starts_with("//!");
    let named = line.split_once("Scenario").filter(|_| is_documentation);
    let Some((_, rest)) = named else { return Vec::new() };
    let named = rest.trim_start_matches('s').split([':', '.', ';']).next().unwrap_or_default();
    let words = named.split([' ', ',']).filter(|word| !word.is_empty());
    let number = |word: &str| if word == "and" { Some(None) } else { word.parse().ok().map(Some) };
    words.map_while(number).flatten().collect()
}

/// Returns the test that the documentation at the first line belongs to, with its module; none if it is not that of a test.
fn test_at(path: &str, lines: &[&str]) -> Option<String> {
    let module = module(path);
    if lines[0].starts_with("//!") {
        return Some(module);
    }
    let is_about_next = |line: &&&str| line.starts_with("///") || line.starts_with("#[");
    let head: Vec<&&str> = lines.iter().take_while(is_about_next).collect();
    let name = function(lines.get(head.len())?)?;
    let is_test = head.iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"));
    // A function that several tests share stands for them.
    let is_of_tests = is_test || path.contains("/tests/") || path.starts_with(BEHAVIORS);
    is_of_tests.then(|| format!("{module}::{name}"))
}

fn function(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ")?;
    rest.split(|c| !scan::is_word(c)).next()
}

/// Returns the module of a file within its crate or its tests: `dialect::foreign`.
fn module(path: &str) -> String {
    let inner = ["/tests/it/", "/src/behaviors/", "/src/", "/tests/"];
    let inner = inner.iter().find_map(|folder| Some(path.split_once(folder)?.1)).unwrap_or(path);
    let inner = inner.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/main");
    inner.replace('/', "::")
}

/// Returns the column of a test, and what is added to its name there.
fn place(repo: &Repo, backends: &[String], path: &str, test: &str) -> (Place, String) {
    if path.starts_with(BEHAVIORS) {
        let suite = SUITES.into_iter().find(|suite| lists(repo, suite, test));
        let runs =
            |suite| backends.iter().map(String::as_str).filter(move |backend| calls(repo, backend, suite));
        let note = suite.map(|suite| format!(" ({})", runs(suite).collect::<Vec<_>>().join(", ")));
        return (Place::Suite, note.unwrap_or_default());
    }
    let package = path.trim_start_matches("crates/").split('/').next().unwrap_or_default();
    let short = package.trim_start_matches("fencepost-").to_owned();
    if backends.contains(&short) {
        (Place::Backend(short), String::new())
    } else {
        (Place::Elsewhere, format!(" ({short})"))
    }
}

/// Returns whether a behaviour is in the list of this suite.
fn lists(repo: &Repo, suite: &str, test: &str) -> bool {
    let list = repo.text(LIST).unwrap_or_default();
    let (_, list) = list.split_once(&format!("macro_rules! {suite} ")).unwrap_or_default();
    let name = test.rsplit("::").next().unwrap_or(test);
    list.split("macro_rules!").next().is_some_and(|list| !scan::lines_with(list, name).is_empty())
}

/// Returns whether the tests of a backend run this suite.
fn calls(repo: &Repo, backend: &str, suite: &str) -> bool {
    let folder = format!("crates/fencepost-{backend}/tests/it/");
    let mut tests = repo.ending(".rs").filter(|(path, _)| path.starts_with(&folder));
    tests.any(|(_, text)| !scan::lines_with(&scan::code(text), &format!("{suite}!")).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, Place, String)> {
        let list =
            "macro_rules! wire_suite { silence { a_cut, } } macro_rules! table_suite { silence { a_lock, } }";
        let wired = "wire_suite!(x, y);";
        let repo = Repo::of([(path, text), (LIST, list), ("crates/fencepost-etcd/tests/it/main.rs", wired)]);
        let all = all(&repo, &["etcd".into(), "sqlite".into()]);
        all.into_iter().map(|Mention { number, place, test }| (number, place, test)).collect()
    }

    fn on(backend: &str) -> Place {
        Place::Backend(backend.into())
    }

    #[test]
    fn a_test_of_a_backend_counts_for_that_backend() {
        let text = "/// Scenarios 1 and 2: 25,000 more\n/// words.\n#[tokio::test(flavor = \"multi_thread\")]\nasync fn a() {}\n";
        let expected = [1, 2].map(|number| (number, on("etcd"), "`leases::a`".to_owned()));
        assert_eq!(found("crates/fencepost-etcd/tests/it/leases.rs", text), expected);
    }

    #[test]
    fn a_whole_module_may_be_about_a_scenario() {
        let expected = [(59, on("sqlite"), "`swapped`".to_owned())];
        assert_eq!(found("crates/fencepost-sqlite/tests/it/swapped.rs", "//! Scenario 59: x.\n"), expected);
    }

    #[test]
    fn a_behaviour_counts_for_every_backend_that_runs_it() {
        let path = "crates/fencepost-testkit/src/behaviors/silence.rs";
        let text =
            |name: &str| format!("/// Scenario 20: x.\npub async fn {name}<B: TestBench>(bench: &B) {{}}\n");
        let expected = |test: &str| vec![(20, Place::Suite, test.to_owned())];
        assert_eq!(found(path, &text("a_cut")), expected("`silence::a_cut` (etcd)"));
        assert_eq!(found(path, &text("a_lock")), expected("`silence::a_lock`"));
    }

    #[test]
    fn what_is_no_test_does_not_count() {
        assert_eq!(found("crates/fencepost-etcd/src/keys.rs", "/// Scenario 40.\nfn key() {}\n"), []);
        assert_eq!(found("crates/fencepost-etcd/src/keys.rs", "// Scenario 40.\n#[test]\nfn key() {}\n"), []);
    }
}
