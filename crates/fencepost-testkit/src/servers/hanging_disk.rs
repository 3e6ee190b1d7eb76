//! A disk whose syncs hang on demand, under a server that runs on otherwise.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("hanging_disk.c");

/// The disk of one server.
#[derive(Debug)]
pub(crate) struct HangingDisk {
    program: PathBuf,
    /// Syncs hang while it exists.
    file: PathBuf,
}

impl HangingDisk {
    /// Compiles the wrapper program of the server into the directory.
    pub(crate) fn make(folder: &Path) -> Self {
        super::require("cc");
        let (source, program) = (folder.join("disk.c"), folder.join("disk"));
        std::fs::write(&source, SOURCE).expect("the folder can be written");
        let compiled = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).output();
        let compiled = compiled.expect("cc can be started");
        assert!(compiled.status.success(), "cc: {}", String::from_utf8_lossy(&compiled.stderr));
        Self { program, file: folder.join("disk-hangs") }
    }

    /// Returns the args before the command of the server.
    pub(crate) fn prefix(&self) -> [OsString; 2] {
        [self.program.clone().into(), self.file.clone().into()]
    }

    pub(crate) fn hang(&self) {
        std::fs::write(&self.file, "").expect("the folder can be written");
    }

    pub(crate) fn resume(&self) {
        std::fs::remove_file(&self.file).expect("the disk hangs");
    }
}
