//! The command of a run, its environment and what is recorded about it with the lock. Never the secret that permits release.

use std::ffi::OsStr;
use std::process::Command;

use fencepost::Guard;
use fencepost::clock::wall_time;

use crate::args::Run;
use crate::nesting::{self, HeldAbove};
use crate::timestamps::rfc3339;

/// The key of the meta entry with the program that a run executes.
pub(crate) const COMMAND_META: &str = "command";
/// How much of the program's path is recorded.
const MAX_COMMAND_CHARS: usize = 200;

/// Returns the command of the command line, with its environment.
pub(crate) fn command(args: &Run, guard: &Guard, location: &str, above: &HeldAbove) -> Command {
    let mut command = Command::new(program(args).unwrap_or(OsStr::new("sh")));
    match &args.shell {
        Some(script) => command.arg("-c").arg(script),
        None => command.args(args.command.iter().skip(1)),
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

/// Returns the program of the command; `None` for a `fencepost hold`, which has no command.
fn program(args: &Run) -> Option<&OsStr> {
    match (&args.shell, args.command.first()) {
        (Some(_), _) => Some(OsStr::new("sh")),
        (None, program) => program.map(AsRef::as_ref),
    }
}

/// Returns what is recorded about the holder: the program, without its arguments, which may contain secrets, and the facts
/// that the user gave. A fact of the same key replaces the program.
pub(crate) fn meta(args: &Run) -> Vec<(String, String)> {
    let given = &args.identity.meta;
    let is_given = given.iter().any(|(key, _)| key == COMMAND_META);
    let recorded = program(args).filter(|_| !is_given).map(|program| {
        let program = program.to_string_lossy().chars().take(MAX_COMMAND_CHARS).collect();
        (COMMAND_META.to_owned(), program)
    });
    recorded.into_iter().chain(given.iter().cloned()).collect()
}
