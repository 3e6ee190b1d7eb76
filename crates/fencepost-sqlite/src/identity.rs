//! Whether the file that is open is still the one at its path. Who removes or replaces a database takes all its locks
//! away: others would make a new one, and two would hold the same lock.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fencepost_core::backend::{Op, Reply};
use fencepost_core::{Error, ErrorKind, Result};

use crate::error::io_error;

#[derive(Debug)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    number: (u64, u64),
    pub(crate) is_in_place: bool,
}

impl FileIdentity {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let number = number_of(path).map_err(|error| io_error("could not look at", path, error))?;
        Ok(Self { path: path.to_owned(), number, is_in_place: true })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Looks once more. What has been replaced stays replaced.
    pub(crate) fn look(&mut self) {
        self.is_in_place &= number_of(&self.path).is_ok_and(|number| number == self.number);
    }

    /// The answer to everything when it is not in place: nothing that was held there is held any more.
    pub(crate) fn answer(&self, op: &Op) -> Result<Reply> {
        match op {
            Op::Renew(_) | Op::Release(_) | Op::WriteCell { .. } => Ok(Reply::NotHeld),
            Op::Leave(_) => Ok(Reply::Left),
            _ => Err(self.replaced()),
        }
    }

    /// Looks once more, for those who only want to read.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.look();
        if self.is_in_place { Ok(()) } else { Err(self.replaced()) }
    }

    fn replaced(&self) -> Error {
        let text = format!("the database was removed or replaced: sqlite:{}", self.path.display());
        Error::new(ErrorKind::Storage, text)
            .with_hint("connect again; never remove a database that is in use")
    }
}

fn number_of(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}
