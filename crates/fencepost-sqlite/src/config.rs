//! Which file: what stands behind `sqlite:` in a URL.

use std::path::{Path, PathBuf};

use fencepost_core::{Error, ErrorKind, Result};

use crate::error::io_error;

/// What to do about a database that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfMissing {
    Make,
    Refuse,
}

/// The file that `sqlite:REST` names; the user's own if nothing is named.
pub(crate) fn path_of(rest: &str, if_missing: IfMissing) -> Result<PathBuf> {
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if !options.is_empty() {
        return Err(Error::new(ErrorKind::BadConfig, "sqlite: has no options")
            .with_hint("write sqlite:PATH, without a question mark"));
    }
    match path.strip_prefix("//").unwrap_or(path) {
        ":memory:" => Err(Error::new(ErrorKind::BadConfig, "sqlite: keeps locks in a file, not in memory")
            .with_hint("use memory: for locks within this process")),
        "" => default_path(|name| std::env::var_os(name).map(PathBuf::from), if_missing),
        path => Ok(PathBuf::from(path)),
    }
}

/// Whether `sqlite:REST` names no file, so that the user's own is meant. Its folder is made with it.
pub(crate) fn names_nothing(rest: &str) -> bool {
    matches!(rest, "" | "//")
}

/// `fencepost/locks.db` in the user's state folder.
fn default_path(variable: impl Fn(&str) -> Option<PathBuf>, if_missing: IfMissing) -> Result<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let state = variable("XDG_STATE_HOME").filter(absolute);
    let home = || variable("HOME").filter(absolute).map(|home| home.join(".local/state"));
    let folder = state.or_else(home).ok_or_else(|| {
        Error::new(ErrorKind::BadConfig, "there is no state folder: neither XDG_STATE_HOME nor HOME is set")
            .with_hint("name a file: sqlite:/var/lib/jobs/locks.db")
    })?;
    let folder = folder.join("fencepost");
    if if_missing == IfMissing::Make {
        make_private_folder(&folder)?;
    }
    Ok(folder.join("locks.db"))
}

/// Makes a folder, and those above it, that only this user can look into.
pub(crate) fn make_private_folder(folder: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;

    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| io_error("could not make the folder", folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_as_it_is() {
        for (rest, path) in
            [("a.db", "a.db"), ("/a b/c.db", "/a b/c.db"), ("///a.db", "/a.db"), ("//a.db", "a.db")]
        {
            assert_eq!(path_of(rest, IfMissing::Make).unwrap(), Path::new(path), "{rest}");
        }
        assert_eq!(path_of("a.db?mode=memory", IfMissing::Make).unwrap_err().kind(), ErrorKind::BadConfig);
    }

    #[test]
    fn the_default_needs_an_absolute_folder() {
        let nothing = default_path(|_| None, IfMissing::Make).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::BadConfig);
        assert!(nothing.hint().unwrap().contains("sqlite:/"));
        let relative = default_path(|_| Some("relative".into()), IfMissing::Make).unwrap_err();
        assert_eq!(relative.kind(), ErrorKind::BadConfig);
    }

    #[test]
    fn the_state_folder_goes_before_home() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("fencepost");
        for (if_missing, is_made) in [(IfMissing::Refuse, false), (IfMissing::Make, true)] {
            let variable = |name: &str| match name {
                "XDG_STATE_HOME" => Some(state.path().into()),
                _ => Some("/nowhere".into()),
            };
            assert_eq!(default_path(variable, if_missing).unwrap(), folder.join("locks.db"));
            assert_eq!(folder.exists(), is_made, "{if_missing:?}");
        }
    }
}
