//! `fencepost watch`: a line of JSON for everything that changes.

use std::io;
use std::time::Duration;

use fencepost::clock::{Clock, wall_time};
use fencepost::{ErrorKind, Result};

use super::{failed, printed};
use crate::args::Watch;
use crate::exit::Exit;
use crate::lines::Lines;
use crate::news::News;
use crate::output::{self, Output};
use crate::signals::Signals;
use crate::timestamps::rfc3339_millis;
use crate::{backend, json};

/// How often it is looked whether anybody still reads.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) async fn watch(args: &Watch, output: Output) -> Result<Exit> {
    let mut signals = Signals::new().map_err(|error| failed("could not take over the signals", error))?;
    tokio::select! {
        biased;
        signal = signals.next() => Ok(Exit::Signalled(signal.as_raw())),
        gone = until_nobody_reads() => printed(gone),
        exit = tell(args, output) => exit,
    }
}

/// A reader that has gone would otherwise be noticed at the next change only.
async fn until_nobody_reads() -> io::Result<()> {
    let clock = Clock::system();
    while !output::nobody_reads() {
        clock.sleep_until(clock.now() + LOOK).await?;
    }
    Ok(())
}

async fn tell(args: &Watch, output: Output) -> Result<Exit> {
    let url = args.storage.url.as_deref();
    let lines = Lines::new().map_err(|error| failed("could not start", error))?;
    let mut watch = backend::connect_existing(url).await?.watch(args.prefix.as_str()).every(args.every);
    let mut said = News::new();
    loop {
        match watch.next().await {
            Ok(change) => {
                if let Some(change) = json::Change::new(&change, rfc3339_millis(wall_time())) {
                    let written = lines.write(json::line(&change)).await;
                    if written.is_err() {
                        return printed(written);
                    }
                }
            }
            Err(error) => {
                let text = error.full_message();
                if said.is_news(text.clone(), Clock::system().now()) {
                    output.warning(format_args!("{text}; going on"));
                }
                // A storage that was replaced needs a new connection; others come back by themselves.
                if matches!(error.kind(), ErrorKind::Backend | ErrorKind::Closed)
                    && let Ok(client) = backend::connect_existing(url).await
                {
                    watch = watch.through(&client);
                }
            }
        }
    }
}
