//! Converts errors of SQLite and of the file system.

use std::path::Path;

use fencepost_core::{Error, ErrorKind};
use rusqlite::ErrorCode;

const MUST_BE_WRITABLE: &str = "the file and its folder must be writable";

/// Converts the error of a failed statement. It had no effect; see [`commit_error`] for the one exception.
pub(crate) fn sqlite_error(path: &Path, error: rusqlite::Error) -> Error {
    let (kind, what, hint) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (
            ErrorKind::Backend,
            "the disk is full",
            Some(
                "free disk space: renewals cannot be written either, so locks are lost when their leases end",
            ),
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Backend,
            "the database is corrupt",
            Some("stop all processes that use it and restore or remove the file"),
        ),
        Some(ErrorCode::NotADatabase) => {
            (ErrorKind::Backend, "this is not an SQLite database", Some("name another file"))
        }
        Some(
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied,
        ) => (ErrorKind::Denied, "the database cannot be written", Some(MUST_BE_WRITABLE)),
        Some(ErrorCode::CannotOpen) => (ErrorKind::Denied, "the database cannot be opened", None),
        _ => (ErrorKind::Backend, "SQLite failed", None),
    };
    let error = Error::new(kind, format!("{what}: sqlite:{}: {error}", path.display())).with_source(error);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// Converts the error of a failed commit. After an I/O error it is unknown whether the commit is on disk.
pub(crate) fn commit_error(path: &Path, error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => Error::new(
            ErrorKind::OutcomeUnknown,
            format!("the commit failed: sqlite:{}: {error}", path.display()),
        )
        .with_source(error),
        _ => sqlite_error(path, error),
    }
}

/// Converts the error of a system call on the database or a file beside it.
pub(crate) fn io_error(what: &str, path: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => ErrorKind::BadConfig,
        _ => ErrorKind::Backend,
    };
    let converted = Error::new(kind, format!("{what} {}: {error}", path.display())).with_source(error);
    match kind {
        ErrorKind::Denied => converted.with_hint(MUST_BE_WRITABLE),
        _ => converted,
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    /// Renewals cannot be written either, so a full disk does lose locks in the end.
    #[test]
    fn the_error_of_a_full_disk_says_when_locks_are_lost() {
        let full = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None);
        let error = sqlite_error(Path::new("/srv/locks.db"), full);
        assert!(error.to_string().contains("the disk is full"), "{error}");
        assert!(error.hint().unwrap().contains("lost when their leases end"), "{error}");
    }
}
