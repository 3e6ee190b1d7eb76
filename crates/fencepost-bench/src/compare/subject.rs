//! The subjects of a comparison: programs that execute an order, and how they are built.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One of the compared programs.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    /// The start of its command line; an order follows.
    pub(crate) program: Vec<OsString>,
    /// The numbers of concurrent tasks in the uncontended bench.
    pub(crate) tasks: &'static [usize],
}

/// The usual numbers of concurrent tasks.
pub(crate) const TASKS: &[usize] = &[1, 64, 256];

/// The workspace.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.ancestors().nth(2).map_or_else(|| here.clone(), Path::to_path_buf)
}

/// The sources of a peer in another language.
pub(crate) fn sources(peer: &str) -> PathBuf {
    root().join("crates/fencepost-bench/peers").join(peer)
}

/// Returns a folder beside our own build, for what is built of a peer.
pub(crate) fn built(peer: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|why| why.to_string())?;
    let target = program.ancestors().nth(2).unwrap_or_else(|| Path::new("target"));
    let folder = target.join("bench-peers").join(peer);
    std::fs::create_dir_all(&folder)
        .map_err(|why| format!("{} cannot be created: {why}", folder.display()))?;
    Ok(folder)
}

/// Fails unless a program of this name is on the `PATH`.
pub(crate) fn require(program: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    found.then_some(()).ok_or_else(|| format!("{program} is not installed"))
}

/// Fills a folder by these steps, unless it was filled for the same requirements.
pub(crate) fn install(
    folder: &Path,
    required: &str,
    steps: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let stamp = folder.join("installed");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == required) {
        return Ok(());
    }
    steps()?;
    std::fs::write(&stamp, required).map_err(|why| format!("{} cannot be written: {why}", stamp.display()))
}

/// Runs a step of a build. Its output goes to standard error, as standard output is for figures.
pub(crate) fn step(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
    match done {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program} ended with {status}")),
        Err(why) => Err(format!("{program} cannot be started: {why}")),
    }
}

/// Returns the version of a crate that this was built with.
pub(crate) fn locked_version(package: &str) -> String {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap_or_default();
    after(&lock, &format!("name = \"{package}\"\nversion = \"")).to_owned()
}

/// Returns what is between the mark and the end of the word.
pub(crate) fn after<'a>(text: &'a str, mark: &str) -> &'a str {
    let rest = text.split_once(mark).map_or("", |(_, rest)| rest);
    rest.split(|end: char| end == '"' || end.is_whitespace()).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_lock_file() {
        assert!(locked_version("rslock").starts_with("0.10."));
        assert_eq!(locked_version("no-such-crate"), "");
    }

    #[test]
    fn a_word_ends_at_a_quote_or_a_space() {
        assert_eq!(after("redis==8.1.0\nother==1", "redis=="), "8.1.0");
        assert_eq!(after("\"redlock\": \"4.2.0\",", "\"redlock\": \""), "4.2.0");
        assert_eq!(after("nothing", "redis=="), "");
    }

    #[test]
    fn nothing_is_installed_twice_unless_other_things_are_required() {
        let folder = tempfile::tempdir().unwrap();
        let install = |required| {
            let mut steps = 0;
            let count = || {
                steps += 1;
                Ok(())
            };
            super::install(folder.path(), required, count).unwrap();
            steps
        };
        assert_eq!(["a", "a", "b", "b"].map(install), [1, 0, 1, 0]);
        super::install(folder.path(), "c", || Err("no".to_owned())).unwrap_err();
        assert_eq!(install("c"), 1);
    }

    #[test]
    fn a_missing_program_is_named() {
        assert_eq!(require("no-such-program"), Err("no-such-program is not installed".to_owned()));
        assert_eq!(require("sh"), Ok(()));
    }
}
