//! A wall clock that a test can move under a running server: a library that is preloaded into it.
//!
//! libfaketime would be the usual one, but does not work with Debian's Redis.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = include_str!("movable_clock.c");

/// The offset of a server's wall clock from that of the machine.
#[derive(Debug)]
pub(crate) struct MovableClock {
    offset: File,
    environment: [OsString; 2],
}

impl MovableClock {
    /// Compiles the library into the directory.
    pub(crate) fn make(folder: &Path) -> Self {
        super::require("cc");
        let (source, library, offset) =
            (folder.join("clock.c"), folder.join("clock.so"), folder.join("clock-offset"));
        std::fs::write(&source, SOURCE).expect("the folder can be written");
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output();
        let compiled = compiled.expect("cc can be started");
        assert!(compiled.status.success(), "cc: {}", String::from_utf8_lossy(&compiled.stderr));
        let environment = [assignment("LD_PRELOAD", &library), assignment("CLOCK_OFFSET", &offset)];
        let options = OpenOptions::new().write(true).create_new(true).open(&offset);
        let clock = Self { offset: options.expect("the folder can be written"), environment };
        clock.set(0);
        clock
    }

    /// Returns the args before the command of the server.
    pub(crate) fn prefix(&self) -> impl Iterator<Item = OsString> {
        [OsString::from("env")].into_iter().chain(self.environment.clone())
    }

    /// Sets the offset, in seconds.
    pub(crate) fn set(&self, seconds: i64) {
        self.offset.write_all_at(&seconds.to_ne_bytes(), 0).expect("the offset can be written");
    }
}

fn assignment(name: &str, path: &Path) -> OsString {
    let mut assignment = OsString::from(name);
    assignment.push("=");
    assignment.push(path);
    assignment
}
