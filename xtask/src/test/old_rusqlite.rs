//! Stage "old rusqlite": `fencepost-sqlite` also works with the oldest driver that its manifest allows.

use crate::shell::{self, Failure, Outcome, cargo, root, target_dir};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The lower end of the range in the manifest of the workspace.
const OLDEST: &str = "0.37.0";

/// Tests with the old version; the lock file is restored in any case.
pub(crate) fn run() -> Outcome {
    let _aside = Aside::take(&root().join("Cargo.lock"), &target_dir().join("Cargo.lock.aside"))
        .map_err(|why| Failure::Failed(format!("could not put Cargo.lock aside: {why}")))?;
    shell::run(&mut cargo(["update", "-p", "rusqlite", "--precise", OLDEST]))?;
    shell::run(&mut cargo(["test", "-p", "fencepost-sqlite"]))
}

/// A file whose content is restored when this is dropped.
struct Aside {
    file: PathBuf,
    copy: PathBuf,
}

impl Aside {
    /// Copies the file; a copy that an interrupted run left behind is the original, and is kept.
    fn take(file: &Path, copy: &Path) -> io::Result<Self> {
        if copy.exists() {
            eprintln!("found {}, left by an interrupted run: it will be put back", copy.display());
        } else {
            fs::copy(file, copy)?;
        }
        Ok(Self { file: file.to_owned(), copy: copy.to_owned() })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let restored = fs::copy(&self.copy, &self.file).and_then(|_| fs::remove_file(&self.copy));
        if let Err(why) = restored {
            eprintln!("could not restore {} from {}: {why}", self.file.display(), self.copy.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(test: &str) -> (PathBuf, PathBuf) {
        let folder = std::env::temp_dir().join(format!("xtask-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        (folder.join("lock"), folder.join("aside"))
    }

    #[test]
    fn the_file_comes_back_also_after_a_panic() {
        let (file, copy) = scratch("panic");
        fs::write(&file, "original").unwrap();
        let panicked = std::panic::catch_unwind(|| {
            let _aside = Aside::take(&file, &copy).unwrap();
            fs::write(&file, "changed").unwrap();
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), copy.exists()), ("original", false));
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }

    #[test]
    fn the_copy_of_an_interrupted_run_is_what_comes_back() {
        let (file, copy) = scratch("interrupted");
        fs::write(&file, "changed").unwrap();
        fs::write(&copy, "original").unwrap();
        drop(Aside::take(&file, &copy).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "original");
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }
}
