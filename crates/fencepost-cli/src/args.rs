//! The command line: one definition that feeds the parser and the help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Args as ClapArgs, Parser, Subcommand};
use fencepost::{LockName, Mode};

use crate::durations;
use crate::exit::Exit;
use crate::output::{self, Level};
use crate::secrets::without_secrets;
use crate::stopping::OnLost;
use crate::waiting::OnBusy;
use crate::words::shortened;

/// Hold a lock while a command runs: one after another, first come, first served.
#[derive(Debug, Parser)]
#[command(
    name = "fencepost",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "`fencepost run --help` teaches by example.",
    after_long_help = include_str!("help/fencepost.txt")
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    List(List),
    Show(Show),
    Watch(Watch),
    Break(Break),
    Doctor(Doctor),
    Rights(Rights),
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

    /// The command and its arguments; everything from here on is the command's
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present = "shell")]
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
    pub(crate) storage: Storage,

    #[command(flatten)]
    pub(crate) speech: Speech,
}

/// How patient to be, and what to answer when it was not enough.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct Waiting {
    /// Do not wait: if somebody else holds the lock, exit with 75
    #[arg(short = 'n', long, visible_alias = "nonblock", conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Wait at most this long, then exit with 75 [default: for ever]
    #[arg(short = 'w', long, visible_alias = "timeout", value_name = "DUR", allow_hyphen_values = true, value_parser = durations::parse)]
    pub(crate) wait: Option<Duration>,

    /// Exit with N instead of 75 when the lock was not acquired
    #[arg(short = 'E', long, value_name = "N", conflicts_with = "skip_ok")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Exit with 0 when somebody else holds the lock: for cron; does not wait unless --wait is given
    #[arg(long)]
    pub(crate) skip_ok: bool,
}

impl Waiting {
    pub(crate) fn on_busy(&self) -> OnBusy {
        if self.no_wait || self.skip_ok && self.wait.is_none() { OnBusy::Exit } else { OnBusy::Wait }
    }
}

/// With whom the lock may be shared.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Sharing")]
pub(crate) struct Sharing {
    /// Share the lock with other readers, never with an exclusive holder
    #[arg(short = 's', long)]
    shared: bool,

    /// Hold the lock alone: the default
    #[arg(short = 'x', visible_short_alias = 'e', long, conflicts_with = "shared")]
    exclusive: bool,

    /// Let up to N hold the lock at once; all must give the same N
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

/// How long a lease lasts and how much of it belongs to the stopping of the command.
#[derive(Clone, Copy, Debug, ClapArgs)]
#[command(next_help_heading = "Lease")]
pub(crate) struct Timing {
    /// How long the lock outlives a fencepost that was killed, 1s to 24h; renewed at a third of it
    /// [default: 30s, or the nearest that the backend can keep]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true, value_parser = durations::parse)]
    pub(crate) ttl: Option<Duration>,

    /// Between TERM and KILL, if the lock is lost; taken out of the ttl, at most a third of it
    /// [default: 5s, or a quarter of the ttl if that is less]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true, value_parser = durations::parse)]
    pub(crate) kill_after: Option<Duration>,

    /// What happens to the command when the lock is lost
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub(crate) on_lost: OnLost,

    /// Hold the lock at least this long, also if the command ends sooner
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
    /// only its first process is then watched over
    #[arg(long)]
    pub(crate) foreground: bool,
}

/// Where life-cycle events go, for programs.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Events")]
pub(crate) struct Status {
    /// Write events as JSON lines to this open descriptor, 3 or more; the command does not get it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(3..))]
    pub(crate) status_fd: Option<i32>,

    /// Append events as JSON lines to this file
    #[arg(long, value_name = "PATH", conflicts_with = "status_fd")]
    pub(crate) status_file: Option<PathBuf>,
}

/// Who holds the lock, as others see it.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Holder")]
pub(crate) struct Identity {
    /// Who holds the lock, as others see it [default: host:pid:user]
    #[arg(long, value_name = "STR", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner_label: Option<String>,

    /// A fact about the holder that others see; may be repeated
    #[arg(long, value_name = "K=V", value_parser = key_and_value)]
    pub(crate) meta: Vec<(String, String)>,
}

/// Where the locks live.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Storage")]
pub(crate) struct Storage {
    #[arg(
        long,
        value_name = "URL",
        help = "Where the locks live [default: $FENCEPOST_URL, the content of $FENCEPOST_URL_FILE, or sqlite:]"
    )]
    pub(crate) url: Option<String>,
}

/// How much is said.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Messages")]
pub(crate) struct Speech {
    /// Say nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// Say everything: scope, token, waiting, release
    #[arg(short, long)]
    verbose: bool,
}

impl Speech {
    pub(crate) fn level(&self) -> Level {
        match (self.quiet, self.verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        }
    }
}

/// List the locks that are held, waited for or have a cell
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/list.txt"))]
pub(crate) struct List {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Print one JSON array with an object per lock
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) storage: Storage,
}

/// Show who holds the lock NAME and who waits for it
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/show.txt"))]
pub(crate) struct Show {
    /// The lock
    #[arg(value_parser = |name: &str| LockName::new(name))]
    pub(crate) name: LockName,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) storage: Storage,
}

/// Print a line of JSON for everything that changes: who holds a lock, who no longer does, how many wait
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/watch.txt"))]
pub(crate) struct Watch {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// From one look to the next, 100ms at least
    #[arg(long, value_name = "DUR", value_parser = pace, default_value = "1s")]
    pub(crate) every: Duration,

    #[command(flatten)]
    pub(crate) storage: Storage,
}

/// Take the lock NAME away from its holder
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/break.txt"))]
pub(crate) struct Break {
    /// The lock
    #[arg(value_parser = |name: &str| LockName::new(name))]
    pub(crate) name: LockName,

    /// The holder to break, as `fencepost show` says it; required if there are several
    #[arg(long, value_name = "N")]
    pub(crate) token: Option<u64>,

    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) storage: Storage,
}

/// Look whether locks are safe here: configuration, storage, rights, clocks
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/doctor.txt"))]
pub(crate) struct Doctor {
    /// A lock: say where it lives, too
    #[arg(value_parser = |name: &str| LockName::new(name))]
    pub(crate) name: Option<LockName>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) storage: Storage,
}

/// Print the rights that an account needs on the storage, without connecting to it
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/rights.txt"))]
pub(crate) struct Rights {
    #[command(flatten)]
    pub(crate) storage: Storage,
}

/// Reads the command line; says what is wrong with it, or the help that was asked for.
pub(crate) fn parse() -> Result<Args, Exit> {
    Args::try_parse().map_err(|mut error| {
        shorten(&mut error);
        let text = without_secrets(&error.render().to_string());
        if error.use_stderr() {
            output::usage(&text);
            return Exit::Failed;
        }
        output::help(&text);
        Exit::Done
    })
}

/// Cuts what the error quotes from the command line, and escapes what could control a terminal.
fn shorten(error: &mut clap::Error) {
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg, ContextKind::InvalidSubcommand] {
        if let Some(ContextValue::String(text)) = error.get(kind) {
            // Secrets first: the beginning of a URL cannot be told from one without a password.
            let text = shortened(&without_secrets(text));
            error.insert(kind, ContextValue::String(text));
        }
    }
}

fn pace(text: &str) -> Result<Duration, String> {
    match durations::parse(text) {
        Ok(every) if every < Duration::from_millis(100) => Err("it is less than 100ms".into()),
        other => other.map_err(|malformed| malformed.to_string()),
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
