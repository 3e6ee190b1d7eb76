//! Connecting to the backend. If `--wait` is given it covers this too: a server that is away is tried again.

use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::time::Duration;

use fencepost::clock::{Clock, Moment};
use fencepost::{Client, Error, ErrorKind, Result};

use crate::backend::Chosen;
use crate::commands::failed;
use crate::output::Output;
use crate::progress::{Progress, Report};
use crate::secrets::location;
use crate::wait_limit::WaitLimit;

/// The time before the second attempt to connect; each one after it waits twice as long.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The longest time between two attempts to connect.
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// The time that the first attempt has even if the wait is shorter: connecting to a server that is up may take longer than
/// `--wait 100ms`, and is no outage.
const FIRST_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to the backend, again and again while the server is away and `--wait` allows it. Returns `None` if the
/// connection was abandoned before that.
///
/// # Errors
/// Those of the backend: at once if waiting cannot mend it, and the last one when the wait is over or abandoned.
pub(crate) async fn connect(
    chosen: &Chosen,
    limit: WaitLimit,
    output: Output,
    abandoned: impl Future<Output = ()>,
) -> Result<Option<Client>> {
    if limit.is_limited() {
        return Connecting { chosen, limit, output, outage: RefCell::new(None) }.run(abandoned).await;
    }
    tokio::select! {
        biased;
        connected = chosen.connect() => connected.map(Some),
        () = abandoned => Ok(None),
    }
}

struct Connecting<'a> {
    chosen: &'a Chosen,
    limit: WaitLimit,
    output: Output,
    /// Why the last attempt has failed.
    outage: RefCell<Option<Error>>,
}

impl Connecting<'_> {
    async fn run(&self, abandoned: impl Future<Output = ()>) -> Result<Option<Client>> {
        let first_timeout = Clock::system().now() + FIRST_ATTEMPT_TIMEOUT;
        tokio::select! {
            biased;
            connected = self.retry() => connected.map(Some),
            never = self.report() => match never? {},
            ended = self.wait_until_over(first_timeout) => Err(ended.map_or_else(|error| error, |()| self.gave_up())),
            () = abandoned => if self.outage.borrow().is_some() { Err(self.gave_up()) } else { Ok(None) },
        }
    }

    async fn wait_until_over(&self, first_timeout: Moment) -> Result<()> {
        sleep_until(self.limit.end()).await?;
        if self.outage.borrow().is_none() {
            sleep_until(first_timeout).await?;
        }
        Ok(())
    }

    async fn retry(&self) -> Result<Client> {
        let mut backoff = FIRST_BACKOFF;
        loop {
            match self.chosen.connect().await {
                Err(error) if self.limit.covers(&error) => self.outage.replace(Some(error)),
                connected => return connected,
            };
            if Clock::system().now() >= self.limit.end() {
                return Err(self.gave_up());
            }
            sleep_until(Clock::system().now() + backoff).await?;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    async fn report(&self) -> Result<Infallible> {
        let clock = Clock::system();
        let mut progress = Progress::new(self.output, clock.now());
        let mut next = progress.starts();
        loop {
            sleep_until(next).await?;
            let state = match &*self.outage.borrow() {
                Some(outage) => format!("{}, retrying", cause(outage)),
                None => "no reply yet".to_owned(),
            };
            let now = clock.now();
            next = progress.show(self.describe(state, now), now);
        }
    }

    fn describe(&self, state: String, now: Moment) -> Report<String> {
        let waited = self.limit.progress(now);
        let message = format!("connecting to {}: {state}, {waited}", location(&self.chosen.url));
        let live = vec![
            format!("fencepost: {message}"),
            message.clone(),
            format!("connecting: {state}, {waited}"),
            format!("connecting, {waited}"),
        ];
        Report { subject: state, message, live }
    }

    fn gave_up(&self) -> Error {
        let error = self.outage.take().unwrap_or_else(|| {
            let text = format!("no reply from {}", location(&self.chosen.url));
            Error::new(ErrorKind::Unreachable, text)
                .with_hint("check the host and the port of the URL, and whether the server is up")
        });
        self.limit.exhausted(error, "connecting", Clock::system().now())
    }
}

async fn sleep_until(moment: Moment) -> Result<()> {
    Clock::system().sleep_until(moment).await.map_err(|error| failed("could not wait", error))
}

/// Returns the innermost reason of an error, without the number that the operating system gives it.
pub(crate) fn cause(error: &Error) -> String {
    let mut cause: &dyn StdError = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_cause_is_shown() {
        let refused = std::io::Error::from_raw_os_error(111);
        let error = Error::new(ErrorKind::Unreachable, "could not reach redis://h").with_source(refused);
        assert_eq!(cause(&error), "Connection refused");
        assert_eq!(cause(&Error::new(ErrorKind::Unreachable, "LOADING")), "LOADING");
    }
}
