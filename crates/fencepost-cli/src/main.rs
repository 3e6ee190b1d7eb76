//! The `fencepost` command: hold a lock while a command runs, and see who holds which.

mod args;
mod child;
mod commands;
mod durations;
mod environment;
mod exit;
mod json;
mod lines;
mod output;
mod signals;
mod stopping;
mod storage;
mod supervise;
mod timestamps;
mod waiting;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    let exit = match args::parse() {
        Ok(args) => commands::dispatch(args),
        Err(exit) => exit,
    };
    exit.into()
}
