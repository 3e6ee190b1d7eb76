//! The `fencepost` command: holds a lock while a command runs, and shows which client holds which lock.

mod args;
mod backend;
mod child;
mod colors;
mod commands;
mod connecting;
mod durations;
mod environment;
mod exit;
mod holding;
mod json;
mod lines;
mod live;
mod locked_run;
mod nesting;
mod news;
mod output;
mod progress;
#[cfg(test)]
mod sample;
mod secrets;
mod signals;
mod status;
mod stopping;
mod supervise;
mod terminal;
mod timestamps;
mod unchecked;
mod wait_limit;
mod waiting;
mod warden;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    if warden::is_warden() {
        return warden::watch();
    }
    let exit = match args::parse() {
        Ok(args) => commands::dispatch(args),
        Err(exit) => exit,
    };
    output::flush();
    exit.into()
}
