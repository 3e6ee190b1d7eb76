//! Stage "macos": everything compiles for macOS as well. It is not run there.

use std::process::Command;

use crate::shell::{self, Failure, Outcome, cargo, on_path};

const TARGET: &str = "x86_64-apple-darwin";

/// Checks the workspace for macOS; the target is added to the toolchain first.
pub(crate) fn run() -> Outcome {
    if !on_path("rustup") {
        return Err(Failure::Failed(format!("rustup is missing, which fetches what {TARGET} needs")));
    }
    shell::run(Command::new("rustup").args(["target", "add", TARGET]))?;
    let mut check = cargo(["check", "--workspace", "--all-features", "--target", TARGET]);
    // A check links nothing, so no C compiler for macOS is needed.
    let stand_in = concat!(env!("CARGO_MANIFEST_DIR"), "/src/test/no_compiler.sh");
    for tool in ["CC", "AR"] {
        check.env(format!("{tool}_{}", TARGET.replace('-', "_")), stand_in);
    }
    shell::run(&mut check)
}
