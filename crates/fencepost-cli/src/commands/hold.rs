//! `fencepost hold`: hold a lock without a command.

use fencepost::{Error, ErrorKind, Result};

use super::{failed, run};
use crate::args::Hold;
use crate::exit::Exit;
use crate::holding::{End, stdin_is_null};
use crate::locked_run::Task;
use crate::output::Output;

pub(crate) fn hold(args: Hold, output: Output) -> Result<Exit> {
    let (request, options) = args.into_run();
    if !options.until_signal && stdin_is_null() {
        return Err(Error::new(
            ErrorKind::BadConfig,
            "stdin is closed or /dev/null: the lock would be released at once",
        )
        .with_hint("connect stdin to a pipe that stays open, or give --until-signal; `fencepost hold --help` shows how"));
    }
    run::with_lock(&request, output, || {
        let end = if options.until_signal { Ok(End::Signal) } else { End::of_stdin() };
        let end = end.map_err(|error| failed("could not read stdin", error))?;
        Ok(Task::Hold { end, json: options.json })
    })
}
