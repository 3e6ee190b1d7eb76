//! The `fencepost` command: hold a lock while a command runs, and see who holds which.

mod args;
mod child;
mod commands;
mod durations;
mod environment;
mod exit;
mod json;
mod lines;
mod nesting;
mod news;
mod output;
#[cfg(test)]
mod sample;
mod signals;
mod status;
mod stopping;
mod storage;
mod supervise;
mod terminal;
mod timestamps;
mod turn;
mod unchecked;
mod waiting;
mod warden;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    if warden::is_meant() {
        return warden::watch();
    }
    let exit = match args::parse() {
        Ok(args) => commands::dispatch(args),
        Err(exit) => exit,
    };
    output::farewell();
    exit.into()
}
