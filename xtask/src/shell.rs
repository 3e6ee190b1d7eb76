//! Runs other programs from the root of the repository; the failures of commands.

use crate::commands;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// How a command ends.
pub(crate) type Outcome = Result<(), Failure>;

/// Why a command failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The command line is wrong.
    Usage(String),
    /// Something went wrong, with a message.
    Failed(String),
    /// A program that has printed its own message ended with this code.
    Exited(u8),
}

impl Failure {
    /// Prints what went wrong to stderr, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Self::Usage(why) => {
                eprintln!("error: {why}\n\n{}", commands::usage());
                ExitCode::from(2)
            }
            Self::Failed(why) => {
                eprintln!("error: {why}");
                ExitCode::FAILURE
            }
            Self::Exited(code) => ExitCode::from(code),
        }
    }
}

/// Returns the folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let here =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_path_buf)
}

/// Returns the folder that cargo builds in.
pub(crate) fn target_dir() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Returns the cargo that started us, with these arguments, in the folder of the workspace.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Prints the command, runs it, and fails unless it ends with 0.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let line = spelled(command);
    match exit_code(command)? {
        0 => Ok(()),
        code => Err(Failure::Failed(format!("`{line}` ended with exit code {code}"))),
    }
}

/// Prints the command, runs it, and returns its exit code; 1 if it was ended by a signal.
pub(crate) fn exit_code(command: &mut Command) -> Result<u8, Failure> {
    let line = spelled(command);
    eprintln!("$ {line}");
    let status = command.status().map_err(|why| Failure::Failed(format!("could not run `{line}`: {why}")))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Returns whether the command can be run and ends with 0; prints nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Returns whether a program of this name is on the `PATH`.
pub(crate) fn on_path(program: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

fn spelled(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_named_with_its_exit_code() {
        let failure = run(Command::new("sh").args(["-c", "exit 7"])).unwrap_err();
        assert_eq!(failure, Failure::Failed("`sh -c exit 7` ended with exit code 7".into()));
    }

    #[test]
    fn a_program_that_is_not_there_is_a_failure_that_names_it() {
        let Err(Failure::Failed(why)) = run(&mut Command::new("no-such-program")) else { panic!("it ran") };
        assert!(why.starts_with("could not run `no-such-program`: "), "{why}");
        assert!(!on_path("no-such-program"));
    }

    #[test]
    fn the_root_is_the_folder_above_this_crate() {
        assert!(root().join("xtask/Cargo.toml").is_file());
    }
}
