//! Which of our crates may depend on which: cli → facade → backends → what they share → core.

use super::repo::{Complaint, Repo};
use crate::manifest::{self, Dependency, Kind};

const CORE: &str = "fencepost-core";
const FACADE: &str = "fencepost";
const TESTKIT: &str = "fencepost-testkit";
const BENCH: &str = "fencepost-bench";
const INTEROP: &str = "fencepost-interop";
/// The crates that use the facade.
const ABOVE: [&str; 4] = ["fencepost-cli", BENCH, INTEROP, TESTKIT];
/// What several backends share. These crates do not know each other.
const SHARED: [&str; 3] = ["fencepost-contenders", "fencepost-net", "fencepost-sql"];
/// Crates that the facade re-exports and that are no backends.
const NOT_BACKENDS: [&str; 1] = [CORE];

/// Checks the manifest of every crate.
pub(crate) fn check(repo: &Repo) -> Vec<Complaint> {
    let backends = backends(repo);
    crates(repo).flat_map(|(name, path, text)| crate_complaints(name, path, text, &backends)).collect()
}

/// Returns the backend crates: the dependencies of the facade, except those that are known to be something else.
pub(crate) fn backends(repo: &Repo) -> Vec<String> {
    let manifest = repo.text("crates/fencepost/Cargo.toml").unwrap_or_default();
    let normal = manifest::dependencies(manifest).into_iter().filter(|found| found.kind == Kind::Normal);
    let ours = normal.map(|found| found.package).filter(|package| is_ours(package));
    ours.filter(|package| !NOT_BACKENDS.contains(&package.as_str())).collect()
}

/// Returns the folder's name, the manifest's path and its text, for every crate.
fn crates(repo: &Repo) -> impl Iterator<Item = (&str, &str, &str)> {
    repo.ending("/Cargo.toml").filter_map(|(path, text)| {
        let name = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
        (!name.contains('/')).then_some((name, path, text))
    })
}

fn crate_complaints(name: &str, path: &str, text: &str, backends: &[String]) -> Vec<Complaint> {
    let ours = manifest::dependencies(text).into_iter().filter(|found| is_ours(&found.package));
    let wrong = ours.filter(|found| !allowed(name, found, backends));
    let wrong = wrong.map(|found| {
        Complaint::new(
            path,
            found.line,
            format!("{name} may not depend on {} ({:?})", found.package, found.kind),
        )
    });
    wrong.chain(misnamed(name, path, text)).collect()
}

fn misnamed(name: &str, path: &str, text: &str) -> Option<Complaint> {
    let entries = manifest::entries(text);
    let package = entries.iter().find(|entry| entry.table == "package" && entry.key == "name")?;
    (package.value.trim_matches('"') != name)
        .then(|| Complaint::new(path, package.line, "a crate is named like its folder"))
}

fn allowed(name: &str, dependency: &Dependency, backends: &[String]) -> bool {
    match (name, dependency.package.as_str()) {
        (CORE, _) => false,
        (_, CORE) => true,
        (_, TESTKIT) => dependency.kind == Kind::Dev || [BENCH, INTEROP].contains(&name),
        // It compares backends with prototypes of other designs, which have the same parts.
        (BENCH, package) if SHARED.contains(&package) => true,
        (BENCH, package) if backends.iter().any(|backend| backend == package) => true,
        _ if SHARED.contains(&name) => false,
        (FACADE, package) => backends.iter().any(|backend| backend == package),
        (_, FACADE) => ABOVE.contains(&name),
        (_, package) if SHARED.contains(&package) => backends.iter().any(|backend| backend == name),
        _ => false,
    }
}

fn is_ours(package: &str) -> bool {
    package == FACADE || package.starts_with("fencepost-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACADE_MANIFEST: (&str, &str) = (
        "crates/fencepost/Cargo.toml",
        "[package]\nname = \"fencepost\"\n[dependencies]\nfencepost-core.workspace = true\n\
         fencepost-sqlite = { workspace = true, optional = true }\n[dev-dependencies]\nfencepost-testkit.workspace = true\n",
    );

    fn complaints(name: &str, dependencies: &str) -> Vec<String> {
        let path = format!("crates/{name}/Cargo.toml");
        let text = format!("[package]\nname = \"{name}\"\n{dependencies}");
        check(&Repo::of([FACADE_MANIFEST, (&path, &text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn backends_are_read_from_the_facade() {
        assert_eq!(backends(&Repo::of([FACADE_MANIFEST])), ["fencepost-sqlite"]);
        assert_eq!(check(&Repo::of([FACADE_MANIFEST])), []);
    }

    #[test]
    fn core_knows_none_of_us() {
        let found = complaints(CORE, "[dev-dependencies]\nfencepost-testkit.workspace = true\n");
        assert_eq!(
            found,
            ["crates/fencepost-core/Cargo.toml:4: fencepost-core may not depend on fencepost-testkit (Dev)"]
        );
    }

    #[test]
    fn a_backend_knows_only_core_and_in_its_tests_the_test_kit() {
        let good = "[dependencies]\nfencepost-core.workspace = true\n[dev-dependencies]\nfencepost-testkit.workspace = true\n";
        assert_eq!(complaints("fencepost-sqlite", good), Vec::<String>::new());
        for bad in ["fencepost-memory", "fencepost", "fencepost-testkit"] {
            let found =
                complaints("fencepost-sqlite", &format!("[dependencies]\n{bad} = {{ path = \"x\" }}\n"));
            assert_eq!(found.len(), 1, "{bad}");
        }
    }

    #[test]
    fn the_bench_knows_backends_and_what_they_share() {
        let it = "[dependencies]\nfencepost-sqlite.workspace = true\nfencepost-sql.workspace = true\n";
        assert_eq!(complaints(BENCH, it), Vec::<String>::new());
        assert_eq!(complaints(INTEROP, it).len(), 2);
    }

    #[test]
    fn only_backends_know_what_they_have_in_common() {
        for shared in SHARED {
            let it = format!("[dependencies]\n{shared}.workspace = true\n");
            assert_eq!(complaints("fencepost-sqlite", &it), Vec::<String>::new());
            for name in ["fencepost-cli", "fencepost-testkit", "fencepost-net"] {
                assert_eq!(complaints(name, &it).len(), 1, "{name}");
            }
            for bad in ["fencepost-sqlite", "fencepost", "fencepost-testkit"] {
                let found = complaints(shared, &format!("[dependencies]\n{bad}.workspace = true\n"));
                assert_eq!(found.len(), 1, "{bad}");
            }
        }
    }

    #[test]
    fn the_command_reaches_backends_through_the_facade() {
        assert_eq!(complaints("fencepost-cli", "[dependencies]\nfencepost.workspace = true\n").len(), 0);
        assert_eq!(
            complaints("fencepost-cli", "[dependencies]\nfencepost-sqlite.workspace = true\n").len(),
            1
        );
    }

    #[test]
    fn a_crate_is_named_like_its_folder() {
        let found =
            check(&Repo::of([("crates/fencepost-a/Cargo.toml", "[package]\nname = \"fencepost-b\"\n")]));
        assert_eq!(
            found,
            [Complaint::new("crates/fencepost-a/Cargo.toml", 2, "a crate is named like its folder")]
        );
    }
}
