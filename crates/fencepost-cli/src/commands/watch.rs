//! `fencepost watch`: a line of JSON for everything that changes.

use std::io;
use std::time::Duration;

use fencepost::clock::{Clock, Moment, wall_time};
use fencepost::{Error, ErrorKind, Result};

use super::{failed, printed};
use crate::args::Watch;
use crate::exit::Exit;
use crate::lines::Lines;
use crate::output::{self, Output};
use crate::signals::Signals;
use crate::timestamps::rfc3339_millis;
use crate::{json, storage};

/// How often the same failure is said again.
const REPEAT: Duration = Duration::from_secs(30);
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
    let mut watch = storage::connect_existing(url).await?.watch(args.prefix.as_str()).every(args.every);
    let mut said = Said::default();
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
                said.warn(&error, output);
                // A storage that was replaced needs a new connection; others come back by themselves.
                if matches!(error.kind(), ErrorKind::Storage | ErrorKind::Closed)
                    && let Ok(client) = storage::connect_existing(url).await
                {
                    watch = watch.through(&client);
                }
            }
        }
    }
}

/// The last warning: an outage is worth a word now and then, not one for every look.
#[derive(Default)]
struct Said(Option<(String, Moment)>);

impl Said {
    fn warn(&mut self, error: &Error, output: Output) {
        let (text, now) = (output::in_full(error), Clock::system().now());
        if self.is_news(&text, now) {
            output.warning(format_args!("{text}; going on"));
            self.0 = Some((text, now));
        }
    }

    fn is_news(&self, text: &str, now: Moment) -> bool {
        self.0.as_ref().is_none_or(|(said, at)| said != text || now.since(*at) >= REPEAT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_failure_is_said_now_and_then_and_another_one_at_once() {
        let now = Moment::START + REPEAT;
        assert!(Said(None).is_news("gone", now));
        let said = Said(Some(("gone".into(), now)));
        assert!(!said.is_news("gone", now + REPEAT / 2));
        assert!(said.is_news("gone", now + REPEAT));
        assert!(said.is_news("full", now));
    }
}
