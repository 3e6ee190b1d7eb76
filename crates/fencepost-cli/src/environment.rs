//! The command to run, and what it is told about its lock. Never the secret that permits release.

use std::process::Command;

use fencepost::Guard;
use fencepost::clock::wall_time;

use crate::args::Run;
use crate::nesting::{self, HeldAbove};
use crate::timestamps::rfc3339;

/// The command of the command line, with its environment.
pub(crate) fn command(args: &Run, guard: &Guard, location: &str, above: &HeldAbove) -> Command {
    let mut command = match (&args.shell, args.command.split_first()) {
        (None, Some((program, arguments))) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        (shell, _) => {
            let mut command = Command::new("sh");
            command.arg("-c").args(shell);
            command
        }
    };
    command
        .env("FENCEPOST_LOCK_NAME", guard.name().as_str())
        .env("FENCEPOST_TOKEN", guard.token().to_string())
        .env("FENCEPOST_STORAGE_ID", guard.storage_id().to_string())
        .env("FENCEPOST_OWNER_LABEL", guard.label())
        .env("FENCEPOST_BACKEND", location)
        .env("FENCEPOST_ACQUIRED_AT", rfc3339(wall_time()))
        .env("FENCEPOST_TTL_MS", guard.ttl().as_millis().to_string())
        .env(nesting::VARIABLE, above.with(guard));
    command
}
