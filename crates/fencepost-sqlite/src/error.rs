//! SQLite's errors as ours.

use std::path::Path;

use fencepost_core::{Error, ErrorKind};
use rusqlite::ErrorCode;

const MUST_BE_WRITABLE: &str = "a lock needs to write to the file and to the folder it is in";

/// What a failed statement means. A statement that failed had no effect; see [`commit_error`] for the one exception.
pub(crate) fn sqlite_error(path: &Path, error: rusqlite::Error) -> Error {
    let (kind, what, hint) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (
            ErrorKind::Backend,
            "the disk is full",
            Some("make room: what is held is lost when its lease ends, because no renewal can be written"),
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Backend,
            "the database is corrupt",
            Some("stop its users and restore or remove the file"),
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

/// What a failed commit means: unless the disk was full, nobody can tell whether it is on disk.
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

/// What a failed system call on the file or on something beside it means.
pub(crate) fn io_error(what: &str, path: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => ErrorKind::BadConfig,
        _ => ErrorKind::Backend,
    };
    let ours = Error::new(kind, format!("{what} {}: {error}", path.display())).with_source(error);
    match kind {
        ErrorKind::Denied => ours.with_hint(MUST_BE_WRITABLE),
        _ => ours,
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    /// A renewal cannot be written either, so a full disk does lose what is held, in time.
    #[test]
    fn a_full_disk_tells_when_leases_are_lost() {
        let full = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None);
        let error = sqlite_error(Path::new("/srv/locks.db"), full);
        assert!(error.to_string().contains("the disk is full"), "{error}");
        assert!(error.hint().unwrap().contains("is lost when its lease ends"), "{error}");
    }
}
