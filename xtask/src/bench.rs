//! `cargo xtask bench`: the benchmarks, on release builds of the command and of the bench itself.

use crate::shell::{self, Failure, Outcome, cargo};

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "[redis|etcd|zookeeper|postgres|mysql…] [ARGS…]  build for release and run fencepost-bench with ARGS; `bench --help` says what there is";

/// Builds the release `fencepost` that the bench starts, then runs the bench with ARGS; returns its exit code.
pub(crate) fn run(args: &[String]) -> Outcome {
    shell::run(&mut cargo(["build", "--release", "-p", "fencepost-cli"]))?;
    match shell::exit_code(cargo(["run", "--release", "-p", "fencepost-bench", "--"]).args(args))? {
        0 => Ok(()),
        code => Err(Failure::Exited(code)),
    }
}
