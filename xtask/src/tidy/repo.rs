//! The files of the repository, read once, and the complaint about a line of one.

use crate::shell::Failure;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A violation of a rule, and where it is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Complaint {
    path: String,
    line: usize,
    message: String,
}

impl Complaint {
    pub(crate) fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Every file that git knows or would add, by its path from the root; binary files and symbolic links have an empty text.
pub(crate) struct Repo {
    files: BTreeMap<String, String>,
}

impl Repo {
    /// Reads the repository at `root`.
    pub(crate) fn load(root: &Path) -> Result<Self, Failure> {
        let failed = |why: String| Failure::Failed(format!("could not list the files with git: {why}"));
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
        let listed = git.output().map_err(|why| failed(why.to_string()))?;
        if !listed.status.success() {
            return Err(failed(String::from_utf8_lossy(&listed.stderr).trim().to_owned()));
        }
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let files =
            names.split_terminator('\0').filter_map(|path| Some((path.to_owned(), read(&root.join(path))?)));
        Ok(Self { files: files.collect() })
    }

    /// Reads the Rust files of the repository at `root` as they were in this revision.
    pub(crate) fn load_revision(root: &Path, revision: &str) -> Result<Self, Failure> {
        let git = |args: &[&str]| {
            let output = Command::new("git").args(args).current_dir(root).output();
            let output = output.map_err(|why| Failure::Failed(format!("could not run git: {why}")))?;
            if output.status.success() {
                return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
            }
            Err(Failure::Failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
        };
        let names = git(&["ls-tree", "-r", "-z", "--name-only", "--end-of-options", revision])?;
        let names = names.split_terminator('\0').filter(|path| extension(path) == "rs");
        let files = names.map(|path| Ok((path.to_owned(), git(&["show", &format!("{revision}:{path}")])?)));
        Ok(Self { files: files.collect::<Result<_, Failure>>()? })
    }

    /// Returns a repository with these files.
    #[cfg(test)]
    pub(crate) fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        Self { files: files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the text of one file, if it exists.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns the paths and texts of all files.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the files with this ending.
    pub(crate) fn ending(&self, ending: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| path.ends_with(ending))
    }

    /// Returns whether this is a file, or a folder with files in it.
    pub(crate) fn exists(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.keys().any(|file| file.starts_with(&folder))
    }
}

/// Returns what follows the last dot of a path.
pub(crate) fn extension(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// Returns the text of a file; nothing if it was deleted. The target of a symbolic link is read under its own name.
fn read(path: &Path) -> Option<String> {
    if fs::symlink_metadata(path).ok()?.is_symlink() {
        return Some(String::new());
    }
    let bytes = fs::read(path).ok()?;
    let binary = bytes.contains(&0);
    Some(if binary { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_reads_like_one_of_the_compiler() {
        assert_eq!(Complaint::new("a/b.rs", 7, "is wrong").to_string(), "a/b.rs:7: is wrong");
    }

    #[test]
    fn files_and_their_folders_exist() {
        let repo = Repo::of([("docs/guides/start.md", "")]);
        assert!(["docs/guides/start.md", "docs/guides", "docs", ""].iter().all(|path| repo.exists(path)));
        assert!(["docs/guide", "start.md"].iter().all(|path| !repo.exists(path)));
    }
}
