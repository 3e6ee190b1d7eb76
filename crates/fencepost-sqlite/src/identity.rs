//! Detects that the open files are no longer those at their paths. When a database is removed or replaced, all its locks are lost:
//! other processes create a new one, and two clients would hold the same lock.
//!
//! A database is three files: the main file, the write-ahead log and the index of the log (`-shm`). As long as one connection is
//! open, SQLite itself removes none of them. A commit into a removed log or index is not seen by any other process, so it counts
//! only if all three were in place afterwards.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fencepost_core::backend::{Op, Reply};
use fencepost_core::{Error, ErrorKind, Result};

use crate::error::io_error;

/// The suffixes of the files of a database.
const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

const REPLACED: &str = "was removed or replaced";

/// Device and inode.
type FileId = (u64, u64);

#[derive(Debug)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    files: [(PathBuf, FileId); 3],
    replaced: Option<&'static str>,
}

impl FileIdentity {
    /// Reads the identity of a database that this process has open and has read from.
    pub(crate) fn of_open(path: &Path) -> Result<Self> {
        let id = |file: &Path| id_of(file).map_err(|error| io_error("could not read", file, error));
        let [main, log, index] = files_of(path);
        let files = [(id(&main)?, main), (id(&log)?, log), (id(&index)?, index)].map(|(id, file)| (file, id));
        let mut identity = Self { path: path.to_owned(), files, replaced: None };
        if !is_whole(path) {
            identity.replaced = Some(REPLACED);
        }
        identity.check()?;
        Ok(identity)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_in_place(&self) -> bool {
        self.replaced.is_none()
    }

    /// Checks the files again. Once replaced, they stay replaced.
    pub(crate) fn recheck(&mut self) {
        let is_replaced = |(file, id): &(PathBuf, FileId)| match id_of(file) {
            Ok(found) => found != *id,
            // A file that cannot be read may be in place.
            Err(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        };
        if self.is_in_place() && self.files.iter().any(is_replaced) {
            self.replaced = Some(REPLACED);
        }
    }

    /// Checks the files again, and fails if they are not in place.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.recheck();
        self.replaced.map_or(Ok(()), |_| Err(self.error()))
    }

    /// Records that the same files have the content of another database or of an earlier time, and returns the error.
    pub(crate) fn mark_restored(&mut self) -> Error {
        self.replaced = Some("was restored to an earlier state");
        self.error()
    }

    /// Returns the reply to an operation when the files are not in place: the client holds no lock in them any more.
    pub(crate) fn reply_when_replaced(&self, op: &Op) -> Result<Reply> {
        match op {
            Op::Renew(_) | Op::Release(_) | Op::WriteCell { .. } => Ok(Reply::NotHeld),
            Op::Leave(_) => Ok(Reply::Left),
            _ => Err(self.error()),
        }
    }

    pub(crate) fn error(&self) -> Error {
        let what = self.replaced.unwrap_or(REPLACED);
        Error::new(ErrorKind::Backend, format!("the database {what}: sqlite:{}", self.path.display()))
            .with_hint("connect again; never remove a database, its -wal or its -shm while it is in use")
    }
}

/// Whether all files of the database exist, and this process has no others open that once had their names. Connections of one
/// process share an index, so the next connection would also use a removed one.
pub(crate) fn is_whole(path: &Path) -> bool {
    files_of(path).iter().all(|file| id_of(file).is_ok_and(|id| open_as(file).iter().all(|open| *open == id)))
}

/// Returns the files that this process has opened by this path. Empty where the system does not tell.
fn open_as(path: &Path) -> Vec<FileId> {
    let mut removed = path.as_os_str().to_owned();
    removed.push(" (deleted)");
    let descriptors = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let named = descriptors.filter(|descriptor| {
        descriptor.path().read_link().is_ok_and(|name| name == path || name.as_os_str() == removed)
    });
    named.filter_map(|descriptor| id_of(&descriptor.path()).ok()).collect()
}

fn files_of(path: &Path) -> [PathBuf; 3] {
    SUFFIXES.map(|suffix| {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        file.into()
    })
}

fn id_of(path: &Path) -> std::io::Result<FileId> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}
