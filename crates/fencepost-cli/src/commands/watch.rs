//! `fencepost watch`: a line for every change.

mod text;

use std::io::{self, IsTerminal};
use std::time::Duration;

use fencepost::clock::{Clock, wall_time};
use fencepost::{Change, ErrorKind, Result};

use super::{failed, printed};
use crate::args::Watch;
use crate::colors::Palette;
use crate::exit::Exit;
use crate::lines::Lines;
use crate::news::News;
use crate::output::{self, Output};
use crate::signals::Signals;
use crate::timestamps::{rfc3339, rfc3339_millis};
use crate::{backend, json};

/// How often the reader of stdout is checked.
const READER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How changes are printed.
#[derive(Clone, Copy)]
enum Format {
    Json,
    Text(Palette),
}

impl Format {
    /// Text for people only: a pipe always gets JSON.
    fn new(json: bool) -> Self {
        if json || !io::stdout().is_terminal() { Self::Json } else { Self::Text(Palette::stdout()) }
    }

    /// Returns the line for a change; `None` for kinds of changes that have none yet.
    fn line(self, change: &Change) -> Option<String> {
        let now = wall_time();
        match self {
            Self::Json => json::Change::new(change, rfc3339_millis(now)).map(|change| json::line(&change)),
            Self::Text(palette) => text::line(change, &rfc3339(now), palette),
        }
    }
}

pub(crate) async fn watch(args: &Watch, output: Output) -> Result<Exit> {
    let mut signals = Signals::new().map_err(|error| failed("could not take over the signals", error))?;
    tokio::select! {
        biased;
        signal = signals.next() => Ok(Exit::Signalled(signal.as_raw())),
        gone = until_reader_is_gone() => printed(gone),
        exit = print_changes(args, output) => exit,
    }
}

/// Without this, a closed pipe would be noticed at the next change only.
async fn until_reader_is_gone() -> io::Result<()> {
    let clock = Clock::system();
    while !output::reader_is_gone() {
        clock.sleep_until(clock.now() + READER_CHECK_INTERVAL).await?;
    }
    Ok(())
}

async fn print_changes(args: &Watch, output: Output) -> Result<Exit> {
    let url = args.backend.url.as_deref();
    let format = Format::new(args.json);
    let lines = Lines::new().map_err(|error| failed("could not start", error))?;
    let mut watch = backend::connect_existing(url).await?.watch(args.prefix.as_str()).every(args.every);
    let mut warned = News::new();
    loop {
        match watch.next().await {
            Ok(change) => {
                if let Some(line) = format.line(&change) {
                    let written = lines.write(line).await;
                    if written.is_err() {
                        return printed(written);
                    }
                }
            }
            Err(error) => {
                let text = error.full_message();
                if warned.is_news(text.clone(), Clock::system().now()) {
                    output.warning(format_args!("{text}; going on"));
                }
                // A database that was replaced needs a new connection; other backends reconnect by themselves.
                if matches!(error.kind(), ErrorKind::Backend | ErrorKind::Closed)
                    && let Ok(client) = backend::connect_existing(url).await
                {
                    watch = watch.with_client(&client);
                }
            }
        }
    }
}
