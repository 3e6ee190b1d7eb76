//! Commands that inspect locks and the backend.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use fencepost::LockName;

use super::BackendUrl;
use crate::durations;

/// List the locks that are held, waited for or have a cell
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/list.txt"))]
pub(crate) struct List {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Print one JSON array with an object per lock
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) backend: BackendUrl,
}

/// Show the holders, the queue and the cell of the lock NAME
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/show.txt"))]
pub(crate) struct Show {
    /// The lock
    #[arg(value_parser = |name: &str| LockName::new(name))]
    pub(crate) name: LockName,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// Exit with 75 if the lock is held, 0 if it is free
    #[arg(long)]
    pub(crate) exit_code: bool,

    #[command(flatten)]
    pub(crate) backend: BackendUrl,
}

/// Print changes of locks as they happen: holders, queues, cells
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/watch.txt"))]
pub(crate) struct Watch {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Poll interval, at least 100ms
    #[arg(long, value_name = "DUR", value_parser = poll_interval, default_value = "1s")]
    pub(crate) every: Duration,

    /// Print one JSON object per line: the default unless stdout is a terminal
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) backend: BackendUrl,
}

/// Break the lock NAME: remove its holder
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/break.txt"))]
pub(crate) struct Break {
    /// The lock
    #[arg(value_parser = |name: &str| LockName::new(name))]
    pub(crate) name: LockName,

    /// The token of the holder to remove, as `fencepost show` prints it; required if there are several
    #[arg(long, value_name = "N")]
    pub(crate) token: Option<u64>,

    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) backend: BackendUrl,
}

/// Check whether locks are safe here: configuration, backend, rights, clocks
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/doctor.txt"))]
pub(crate) struct Doctor {
    /// A lock: print where it is stored, too
    #[arg(value_parser = |name: &str| LockName::new(name))]
    pub(crate) name: Option<LockName>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) backend: BackendUrl,
}

/// Print the rights that an account needs on the backend, without connecting to it
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/rights.txt"))]
pub(crate) struct Rights {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) backend: BackendUrl,
}

/// Print the statements that create the tables of a database, without connecting to it
#[derive(Debug, ClapArgs)]
#[command(
    override_usage = "fencepost schema BACKEND [--namespace NAME]\n       fencepost schema --url URL",
    after_long_help = include_str!("../help/schema.txt")
)]
pub(crate) struct Schema {
    /// The database [default: the backend of the URL]
    #[arg(value_enum, value_name = "BACKEND")]
    pub(crate) database: Option<Database>,

    /// The namespace, as in the URL [default: fencepost]
    #[arg(long, value_name = "NAME", requires = "database")]
    pub(crate) namespace: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) backend: BackendUrl,
}

/// A database that has a schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Database {
    Mysql,
    Postgres,
}

impl Database {
    /// Returns the scheme of its URLs.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Self::Mysql => "mysql",
            Self::Postgres => "postgres",
        }
    }
}

/// Remove what has expired and what is no longer used from the backend, now
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/sweep.txt"))]
pub(crate) struct Sweep {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) backend: BackendUrl,
}

fn poll_interval(text: &str) -> Result<Duration, String> {
    match durations::parse(text) {
        Ok(every) if every < Duration::from_millis(100) => Err("it is less than 100ms".into()),
        other => other.map_err(|malformed| malformed.to_string()),
    }
}
