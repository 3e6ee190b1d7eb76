//! The command line: one definition that feeds the parser, the help, the man pages and the completions.

mod generate;
mod hold;
mod inspecting;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Args as ClapArgs, ColorChoice, Parser, Subcommand, ValueHint};
use fencepost::{LockName, Mode};

pub(crate) use self::generate::{Completions, Man};
pub(crate) use self::hold::Hold;
pub(crate) use self::inspecting::{Break, Doctor, List, Rights, Schema, Show, Sweep, Watch};
use crate::colors::{self, Palette};
use crate::durations;
use crate::exit::{Exit, NOT_ACQUIRED};
use crate::output::{self, Level};
use crate::secrets::{masked, without_secrets_of};
use crate::stopping::OnLost;
use crate::waiting::OnBusy;
use crate::words::shortened;

/// Hold a distributed lock while a command runs; waiters get it in the order of their arrival
#[derive(Debug, Parser)]
#[command(
    name = "fencepost",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "`fencepost run --help` shows examples and exit codes.",
    after_long_help = include_str!("help/fencepost.txt")
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,

    // Given before the command, clap copies the value into the `BackendUrl` of the command.
    #[command(flatten)]
    backend: BackendUrl,

    #[arg(
        help = "When to use colours: always, never, or auto (on a terminal, unless NO_COLOR or TERM=dumb is set)",
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        help_heading = "Messages"
    )]
    pub(crate) color: ColorChoice,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    Hold(Box<Hold>),
    List(List),
    Show(Show),
    Watch(Watch),
    Break(Break),
    Doctor(Doctor),
    Rights(Rights),
    Schema(Schema),
    Sweep(Sweep),
    Completions(Completions),
    Man(Man),
}

/// Hold the lock NAME while a command runs
#[derive(Debug, ClapArgs)]
#[command(
    override_usage = "fencepost run [OPTIONS] NAME [--] CMD [ARG]...\n       fencepost run [OPTIONS] NAME -c STRING",
    after_help = "A duration is 30 (seconds), 500ms, 5m, 1h30m or 1d. `--help` shows examples and exit codes.",
    after_long_help = include_str!("help/run.txt")
)]
pub(crate) struct Run {
    /// The lock: up to 512 bytes without control characters, for example backup or invoice/42
    #[arg(value_parser = |name: &str| LockName::new(name))]
    pub(crate) name: LockName,

    /// The command and its arguments; everything from here on belongs to the command
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        required_unless_present = "shell",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub(crate) command: Vec<OsString>,

    /// Run this with `sh -c` instead of CMD
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "command")]
    pub(crate) shell: Option<OsString>,

    #[command(flatten)]
    pub(crate) waiting: Waiting,

    #[command(flatten)]
    pub(crate) sharing: Sharing,

    #[command(flatten)]
    pub(crate) timing: Timing,

    #[command(flatten)]
    pub(crate) process: Process,

    #[command(flatten)]
    pub(crate) identity: Identity,

    #[command(flatten)]
    pub(crate) status: Status,

    #[command(flatten)]
    pub(crate) backend: BackendUrl,

    #[command(flatten)]
    pub(crate) verbosity: Verbosity,
}

/// How long to wait, and the exit code if the lock was not acquired.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct Waiting {
    /// Do not wait: if another client holds the lock, exit with 75
    #[arg(short = 'n', long, visible_alias = "nonblock", conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Wait at most this long, connecting included, then exit with 75 [default: for ever]
    #[arg(short = 'w', long, visible_alias = "timeout", value_name = "DUR", allow_hyphen_values = true, value_parser = durations::parse)]
    pub(crate) wait: Option<Duration>,

    /// Exit with N instead of 75 when the lock was not acquired
    #[arg(short = 'E', long, value_name = "N", conflicts_with = "skip_ok")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Exit with 0 when another client holds the lock: for cron; does not wait unless --wait is given
    #[arg(long)]
    pub(crate) skip_ok: bool,
}

impl Waiting {
    /// Returns the exit of a command that did not get the lock.
    pub(crate) fn not_acquired(&self) -> Exit {
        let otherwise = if self.skip_ok { 0 } else { NOT_ACQUIRED };
        Exit::NotAcquired(self.conflict_exit_code.unwrap_or(otherwise))
    }

    pub(crate) fn on_busy(&self) -> OnBusy {
        if self.no_wait || self.skip_ok && self.wait.is_none() { OnBusy::Exit } else { OnBusy::Wait }
    }
}

/// The mode of the lock.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Sharing")]
pub(crate) struct Sharing {
    /// Share the lock with other readers, never with an exclusive holder
    #[arg(short = 's', long)]
    shared: bool,

    /// Hold the lock exclusively: the default
    #[arg(short = 'x', visible_short_alias = 'e', long, conflicts_with = "shared")]
    exclusive: bool,

    /// Let up to N clients hold the lock at once; all must give the same N
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["shared", "exclusive"]
    )]
    semaphore: Option<u32>,
}

impl Sharing {
    pub(crate) fn mode(&self) -> Mode {
        match self.semaphore {
            Some(permits) => Mode::Semaphore { permits },
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }
}

/// The length of the lease, and how much of it is reserved for stopping the command.
#[derive(Clone, Copy, Debug, ClapArgs)]
#[command(next_help_heading = "Lease")]
pub(crate) struct Timing {
    /// Length of the lease, 1s to 24h: how long the lock outlives a crashed holder; renewed at a third of it
    /// [default: 30s, or the nearest that the backend can keep]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true, value_parser = durations::parse)]
    pub(crate) ttl: Option<Duration>,

    /// Time between TERM and KILL if the lock is lost; part of the ttl, at most a third of it
    /// [default: 5s, or a quarter of the ttl if that is less]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true, value_parser = durations::parse)]
    pub(crate) kill_after: Option<Duration>,

    /// What happens to the command when the lock is lost
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub(crate) on_lost: OnLost,

    /// Hold the lock at least this long, even if the command ends sooner
    #[arg(long, value_name = "DUR", allow_hyphen_values = true, value_parser = durations::parse)]
    pub(crate) at_least: Option<Duration>,
}

/// How the command runs.
#[derive(Clone, Copy, Debug, ClapArgs)]
#[command(next_help_heading = "Command")]
pub(crate) struct Process {
    /// Stop the command after this long, with TERM and then KILL, and exit with 124
    #[arg(long, value_name = "DUR", allow_hyphen_values = true, value_parser = durations::parse_some)]
    pub(crate) max_run: Option<Duration>,

    /// Leave the command in fencepost's own process group, to share the terminal with a pipeline;
    /// only its first process is then supervised
    #[arg(long)]
    pub(crate) foreground: bool,
}

/// Where life-cycle events go, for programs.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Events")]
pub(crate) struct Status {
    /// Write events as JSON lines to this open descriptor, 3 or more; the command does not inherit it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(3..))]
    pub(crate) status_fd: Option<i32>,

    /// Append events as JSON lines to this file
    #[arg(long, value_name = "PATH", conflicts_with = "status_fd")]
    pub(crate) status_file: Option<PathBuf>,
}

/// What other clients see of the holder.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Holder")]
pub(crate) struct Identity {
    /// Name of the holder, as other clients see it [default: host:pid:user]
    #[arg(long, value_name = "STR", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner_label: Option<String>,

    /// Metadata of the holder, as other clients see it; may be repeated
    #[arg(long, value_name = "K=V", value_parser = key_and_value)]
    pub(crate) meta: Vec<(String, String)>,
}

/// The backend. Flattened into [`Args`] and into every command, so that the option is accepted at both places.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Backend")]
pub(crate) struct BackendUrl {
    #[arg(
        long,
        global = true,
        value_name = "URL",
        value_hint = ValueHint::Url,
        help = "URL of the backend [default: $FENCEPOST_URL, the content of $FENCEPOST_URL_FILE, or sqlite:]"
    )]
    pub(crate) url: Option<String>,
}

/// How much is printed to stderr.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Messages")]
pub(crate) struct Verbosity {
    /// Print errors only
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// Print scope, token, waiting and release, too
    #[arg(short, long)]
    verbose: bool,
}

impl Verbosity {
    pub(crate) fn level(&self) -> Level {
        match (self.quiet, self.verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        }
    }
}

/// Parses the command line. Prints the usage error, or the help or version that was asked for.
pub(crate) fn parse() -> Result<Args, Exit> {
    Args::try_parse().inspect(|args| colors::choose(args.color)).map_err(|mut error| {
        colors::choose(colors::asked_for(std::env::args_os()));
        shorten(&mut error);
        let rendered = error.render();
        if error.use_stderr() {
            // Without colours: an escape sequence could hide the end of a password.
            let arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
            output::usage(&without_secrets_of(arguments, &rendered.to_string()));
            return Exit::Failed;
        }
        let text =
            if Palette::stdout().is_enabled() { rendered.ansi().to_string() } else { rendered.to_string() };
        output::help(&text);
        Exit::Done
    })
}

/// Cuts what the error quotes from the command line, and escapes what could control a terminal.
fn shorten(error: &mut clap::Error) {
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg, ContextKind::InvalidSubcommand] {
        if let Some(ContextValue::String(text)) = error.get(kind) {
            // Secrets first: the beginning of a URL cannot be told from one without a password.
            let text = shortened(&masked(text));
            error.insert(kind, ContextValue::String(text));
        }
    }
}

fn key_and_value(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as key=value"),
    }
}

#[cfg(test)]
mod tests;
