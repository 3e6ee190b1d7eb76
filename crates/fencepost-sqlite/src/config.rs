//! Parses what follows `sqlite:` in a URL: the path of the database.

use std::path::{Path, PathBuf};

use fencepost_core::{Error, ErrorKind, Result, is_keyword};

use crate::error::io_error;

/// What to do if the database does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfMissing {
    Create,
    Fail,
}

/// Returns the path that `sqlite:REST` names, or the user's default one if `rest` is empty.
pub(crate) fn path_of(rest: &str, if_missing: IfMissing) -> Result<PathBuf> {
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if let Some(option) = options.split('&').find(|option| !option.is_empty()) {
        return Err(unknown_option(option));
    }
    match path.strip_prefix("//").unwrap_or(path) {
        ":memory:" => Err(Error::new(ErrorKind::BadConfig, "sqlite: keeps locks in a file, not in memory")
            .with_hint("use memory: for locks within this process")),
        "" => default_path(|name| std::env::var_os(name).map(PathBuf::from), if_missing),
        path => Ok(PathBuf::from(path)),
    }
}

/// Names the option by its key, if it looks like one.
fn unknown_option(option: &str) -> Error {
    let key = option.split('=').next().filter(|key| is_keyword(key));
    let key = key.map_or_else(String::new, |key| format!(" {key:?}"));
    Error::new(ErrorKind::BadConfig, format!("unknown option{key} in the sqlite URL"))
        .with_hint("sqlite: has no options: write sqlite:PATH, without a question mark")
}

/// Whether `sqlite:REST` names no file, so that the user's default one is used. Its folder is created with it.
pub(crate) fn is_default(rest: &str) -> bool {
    matches!(rest, "" | "//")
}

/// Returns `fencepost/locks.db` in the user's state folder.
fn default_path(variable: impl Fn(&str) -> Option<PathBuf>, if_missing: IfMissing) -> Result<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let state = variable("XDG_STATE_HOME").filter(absolute);
    let home = || variable("HOME").filter(absolute).map(|home| home.join(".local/state"));
    let folder = state.or_else(home).ok_or_else(|| {
        Error::new(
            ErrorKind::BadConfig,
            "no state folder: neither XDG_STATE_HOME nor HOME is an absolute path",
        )
        .with_hint("name a file: sqlite:/var/lib/jobs/locks.db")
    })?;
    let folder = folder.join("fencepost");
    if if_missing == IfMissing::Create {
        create_private_folder(&folder)?;
    }
    Ok(folder.join("locks.db"))
}

/// Creates a folder, and missing ones above it, with access for this user only.
pub(crate) fn create_private_folder(folder: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;

    let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    created.map_err(|error| io_error("could not create the folder", folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_as_it_is() {
        for (rest, path) in
            [("a.db", "a.db"), ("/a b/c.db", "/a b/c.db"), ("///a.db", "/a.db"), ("//a.db", "a.db")]
        {
            assert_eq!(path_of(rest, IfMissing::Create).unwrap(), Path::new(path), "{rest}");
        }
    }

    #[test]
    fn an_option_is_rejected_by_its_name() {
        for (option, message) in [
            ("mode=memory", "unknown option \"mode\" in the sqlite URL"),
            ("foo=hunter2", "unknown option \"foo\" in the sqlite URL"),
            ("hunter2!=1", "unknown option in the sqlite URL"),
        ] {
            let error = path_of(&format!("a.db?{option}"), IfMissing::Create).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::BadConfig, message));
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("sqlite:PATH")), "{error:?}");
        }
    }

    #[test]
    fn the_default_needs_an_absolute_folder() {
        let nothing = default_path(|_| None, IfMissing::Create).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::BadConfig);
        assert!(nothing.hint().unwrap().contains("sqlite:/"));
        let relative = default_path(|_| Some("relative".into()), IfMissing::Create).unwrap_err();
        assert_eq!(relative.kind(), ErrorKind::BadConfig);
    }

    #[test]
    fn the_state_folder_takes_precedence_over_home() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("fencepost");
        for (if_missing, is_created) in [(IfMissing::Fail, false), (IfMissing::Create, true)] {
            let variable = |name: &str| match name {
                "XDG_STATE_HOME" => Some(state.path().into()),
                _ => Some("/nowhere".into()),
            };
            assert_eq!(default_path(variable, if_missing).unwrap(), folder.join("locks.db"));
            assert_eq!(folder.exists(), is_created, "{if_missing:?}");
        }
    }
}
