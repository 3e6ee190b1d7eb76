//! `fencepost hold`: the options of `run` that apply without a command.

use std::time::Duration;

use clap::Args as ClapArgs;
use fencepost::LockName;

use super::{BackendUrl, Identity, Process, Run, Sharing, Status, Timing, Verbosity, Waiting};
use crate::durations;
use crate::stopping::OnLost;

/// Hold the lock NAME without a command, until stdin is closed or a signal comes
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "A duration is 30 (seconds), 500ms, 5m, 1h30m or 1d. `--help` shows examples and exit codes.",
    after_long_help = include_str!("../help/hold.txt")
)]
pub(crate) struct Hold {
    /// The lock: up to 512 bytes without control characters, for example backup or invoice/42
    #[arg(value_parser = |name: &str| LockName::new(name))]
    name: LockName,

    /// Ignore stdin: hold the lock until a signal comes
    #[arg(long)]
    pub(crate) until_signal: bool,

    /// Print one JSON object instead of the token
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    waiting: Waiting,

    #[command(flatten)]
    sharing: Sharing,

    /// Length of the lease, 1s to 24h: how long the lock outlives a crashed holder; renewed at a third of it
    /// [default: 30s, or the nearest that the backend can keep]
    #[arg(
        long,
        value_name = "DUR",
        allow_hyphen_values = true,
        value_parser = durations::parse,
        help_heading = "Lease"
    )]
    ttl: Option<Duration>,

    #[command(flatten)]
    identity: Identity,

    #[command(flatten)]
    status: Status,

    #[command(flatten)]
    backend: BackendUrl,

    #[command(flatten)]
    pub(crate) verbosity: Verbosity,
}

/// What is printed as soon as the lock is held, and what ends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldOptions {
    pub(crate) until_signal: bool,
    pub(crate) json: bool,
}

impl Hold {
    /// Returns the same request as a `run` without a command, so that both acquire the lock by the same code.
    pub(crate) fn into_run(self) -> (Run, HoldOptions) {
        let Self { name, until_signal, json, waiting, sharing, ttl, identity, status, backend, verbosity } =
            self;
        let timing = Timing { ttl, kill_after: None, on_lost: OnLost::Term, at_least: None };
        let process = Process { max_run: None, foreground: false };
        let (command, shell) = (Vec::new(), None);
        let run = Run {
            name,
            command,
            shell,
            waiting,
            sharing,
            timing,
            process,
            identity,
            status,
            backend,
            verbosity,
        };
        (run, HoldOptions { until_signal, json })
    }
}
