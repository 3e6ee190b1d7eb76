//! The commands, a file each.

mod breaking;
mod completions;
mod doctor;
mod hold;
mod list;
mod man;
mod rights;
mod run;
mod schema;
mod show;
mod sweep;
mod watch;

use fencepost::{Client, Error, ErrorKind, Result};

use crate::args::{Args, Command};
use crate::exit::Exit;
use crate::output::{self, Level, Output};

/// Runs the command, and prints its error if it fails.
pub(crate) fn dispatch(args: Args) -> Exit {
    let level = match &args.command {
        Command::Run(run) => run.verbosity.level(),
        Command::Hold(hold) => hold.verbosity.level(),
        _ => Level::Normal,
    };
    let outcome = match args.command {
        Command::Run(args) => run::run(&args, Output::new(level)),
        Command::Hold(args) => hold::hold(*args, Output::new(level)),
        Command::List(args) => on_this_thread(list::list(&args)),
        Command::Show(args) => on_this_thread(show::show(&args)),
        Command::Watch(args) => on_this_thread(watch::watch(&args, Output::new(level))),
        Command::Break(args) => on_this_thread(breaking::break_lock(&args)),
        Command::Doctor(args) => on_this_thread(doctor::doctor(&args)),
        Command::Rights(args) => rights::rights(&args),
        Command::Schema(args) => schema::schema(&args),
        Command::Sweep(args) => on_this_thread(sweep::sweep(&args)),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => man::man(&args),
    };
    outcome.unwrap_or_else(|error| {
        output::error(&error);
        Exit::Failed
    })
}

/// Runs the future on the main thread: processes that it starts are children of the thread that lives as long as fencepost.
fn on_this_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    runtime().map_err(|error| failed("could not start", error))?.block_on(work)
}

/// Returns a runtime for the main thread.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().build()
}

/// Wraps an error of the operating system.
pub(crate) fn failed(what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Backend, what).with_source(error)
}

/// Maps the outcome of writing results: a reader that has closed the pipe is no failure.
fn printed(outcome: std::io::Result<()>) -> Result<Exit> {
    match outcome {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(failed("could not write the results", error))
        }
        _ => Ok(Exit::Done),
    }
}

/// Returns the scope and the location of the locks: `this host (sqlite:/var/lib/jobs.db)`.
pub(crate) fn reach(client: &Client) -> String {
    let info = client.info();
    format!("{} ({})", crate::words::scope(info.scope), info.location)
}
