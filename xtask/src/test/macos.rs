//! Stage "macos": everything compiles for macOS, too. It is not run there.

use std::process::Command;

use crate::shell::{self, Failure, Outcome, cargo, on_path};

const TARGET: &str = "x86_64-apple-darwin";

/// Checks the workspace for macOS; the toolchain's part for that is fetched first.
pub(crate) fn run() -> Outcome {
    if !on_path("rustup") {
        return Err(Failure::Failed(format!("rustup is missing, which fetches what {TARGET} needs")));
    }
    shell::run(Command::new("rustup").args(["target", "add", TARGET]))?;
    let mut check = cargo(["check", "--workspace", "--all-features", "--target", TARGET]);
    // A check links nothing, and needs no C compiler for macOS if SQLite is taken for one that is there.
    shell::run(check.env("LIBSQLITE3_SYS_USE_PKG_CONFIG", "1").env("SQLITE3_LIB_DIR", "/nowhere"))
}
