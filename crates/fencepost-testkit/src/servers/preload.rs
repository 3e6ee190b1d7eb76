//! Libraries that are preloaded into a server, each with a number that a test can change while the server runs.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// A library in C, which reads a number from a file that an environment variable names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    /// The environment variable.
    pub(crate) variable: &'static str,
}

/// The number of a library that is preloaded into one server.
#[derive(Debug)]
pub(crate) struct Preloaded {
    number: File,
    environment: [OsString; 2],
}

impl Preloaded {
    /// Compiles the library into the directory; its number is 0.
    pub(crate) fn make(library: Library, folder: &Path) -> Self {
        super::require("cc");
        let file = |ending: &str| folder.join(format!("{}{ending}", library.name));
        let (source, compiled, number) = (file(".c"), file(".so"), file("-number"));
        std::fs::write(&source, library.source).expect("the folder can be written");
        let done =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&compiled).arg(&source).output();
        let done = done.expect("cc can be started");
        assert!(done.status.success(), "cc: {}", String::from_utf8_lossy(&done.stderr));
        let environment = [assignment("LD_PRELOAD", &compiled), assignment(library.variable, &number)];
        let options = OpenOptions::new().write(true).create_new(true).open(&number);
        let preloaded = Self { number: options.expect("the folder can be written"), environment };
        preloaded.set(0);
        preloaded
    }

    /// Returns the args before the command of the server.
    pub(crate) fn prefix(&self) -> impl Iterator<Item = OsString> {
        [OsString::from("env")].into_iter().chain(self.environment.clone())
    }

    pub(crate) fn set(&self, number: i64) {
        self.number.write_all_at(&number.to_ne_bytes(), 0).expect("the number can be written");
    }
}

fn assignment(name: &str, path: &Path) -> OsString {
    let mut assignment = OsString::from(name);
    assignment.push("=");
    assignment.push(path);
    assignment
}
