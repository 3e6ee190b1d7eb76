//! A lock of kazoo, held for as long as a test needs it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::peers::{prepared, source};

/// A held lock of kazoo.
#[derive(Debug)]
pub struct Held(Child);

impl Held {
    /// Acquires a lock with this recipe of kazoo, such as `Lock`; returns `None` if it cannot be acquired at once.
    ///
    /// # Panics
    /// If kazoo cannot be started, or fails.
    pub fn take(recipe: &str, port: u16, path: &str) -> Option<Self> {
        let mut command = Command::new(prepared("python/bin/python"));
        command.arg(source("kazoo_hold.py")).args([recipe, &port.to_string(), path]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("Python can be started");
        let mut said = String::new();
        let output = child.stdout.take().expect("it has an output");
        BufReader::new(output).read_line(&mut said).expect("it can be read");
        let held = Self(child);
        match said.trim_end() {
            "held" => Some(held),
            "busy" => None,
            other => panic!("kazoo says {other:?}"),
        }
    }

    /// Releases it.
    ///
    /// # Panics
    /// If kazoo fails.
    pub fn release(mut self) {
        drop(self.0.stdin.take());
        let status = self.0.wait().expect("it can be waited for");
        assert!(status.success(), "kazoo ended with {status}");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // It has ended already if it was released.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
