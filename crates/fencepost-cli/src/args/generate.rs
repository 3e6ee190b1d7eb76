//! Commands that print what packages ship beside the binary.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueHint};
use clap_complete::Shell;

/// Print a completion script for a shell
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/completions.txt"))]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,

    #[command(flatten)]
    _backend: UnusedUrl,
}

/// Print the man page of fencepost or of one command
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/man.txt"))]
pub(crate) struct Man {
    /// The command, for example run [default: fencepost itself]
    pub(crate) command: Option<String>,

    /// Write all pages to this directory instead
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "command")]
    pub(crate) dir: Option<PathBuf>,

    #[command(flatten)]
    _backend: UnusedUrl,
}

/// The URL of commands that use no backend: accepted, as everywhere, but not in their help.
#[derive(Debug, ClapArgs)]
struct UnusedUrl {
    #[arg(long = "url", id = "url", value_name = "URL", hide = true)]
    _url: Option<String>,
}
