//! `fencepost completions`: a completion script, generated from the definition of the command line.

use clap::CommandFactory;
use fencepost::Result;

use super::printed;
use crate::args::{Args, Completions};
use crate::exit::Exit;
use crate::output;

pub(crate) fn completions(args: &Completions) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "fencepost", &mut script);
    printed(output::results(String::from_utf8_lossy(&script)))
}
