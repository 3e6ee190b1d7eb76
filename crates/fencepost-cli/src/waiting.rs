//! Acquiring the lock: waiting in its queue, reporting who holds it, and leaving the queue when a signal arrives.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::time::Duration;

use fencepost::clock::{Clock, Moment};
use fencepost::{Client, Error, ErrorKind, FencingToken, Guard, Lock, LockName, LockState, Result};
use rustix::process::Signal;

use crate::commands::failed;
use crate::connecting::cause;
use crate::durations::show;
use crate::news::News;
use crate::output::{Level, Output};
use crate::progress::{Progress, Report, SHORT_WAIT_VERBOSE};
use crate::signals::Signals;
use crate::status::{Event, Status};
use crate::wait_limit::{WaitLimit, is_outage};
use crate::words;

/// How long the report waits for a reply of the server.
const REPORT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a server may take to reply at the end of the wait; one that takes longer counts as unreachable.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time before an acquire is sent again that could not reach the server.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// What a run does if another client holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnBusy {
    /// It exits.
    Exit,
    /// It waits for as long as [`WaitLimit`] says.
    Wait,
}

/// The outcome of acquiring the lock.
pub(crate) enum AcquireOutcome {
    Granted(Guard),
    /// Another client holds it, or the wait was over; with the state of the lock, if that could be read.
    NotAcquired(Option<LockState>),
    /// A signal arrived first. The ticket is being removed; closing the client waits for that.
    Signalled(Signal),
}

/// A run that acquires its lock.
pub(crate) struct Waiter<'a> {
    pub(crate) client: &'a Client,
    pub(crate) name: &'a LockName,
    pub(crate) label: &'a str,
    pub(crate) output: Output,
    pub(crate) status: &'a Status,
    pub(crate) limit: WaitLimit,
}

impl Waiter<'_> {
    /// Acquires the lock.
    ///
    /// # Errors
    /// Those of the backend. A server that is away is waited for if `--wait` was given, and is an error when the wait is
    /// over: "not acquired" always means that another client holds the lock.
    pub(crate) async fn acquire(
        &self,
        lock: &Lock,
        on_busy: OnBusy,
        signals: &mut Signals,
    ) -> Result<AcquireOutcome> {
        tokio::select! {
            biased;
            signal = signals.next() => Ok(AcquireOutcome::Signalled(signal)),
            outcome = self.attempt(lock, on_busy) => outcome,
            never = self.report(), if on_busy == OnBusy::Wait => match never {},
        }
    }

    async fn attempt(&self, lock: &Lock, on_busy: OnBusy) -> Result<AcquireOutcome> {
        let granted = match on_busy {
            OnBusy::Exit => lock.try_acquire().await?,
            OnBusy::Wait => self.wait(lock).await?,
        };
        match granted {
            Some(guard) => Ok(AcquireOutcome::Granted(guard)),
            None => match self.read(PROBE_TIMEOUT).await {
                // The server may have gone away long before the wait was over.
                Err(error) if on_busy == OnBusy::Wait && is_outage(&error) => Err(self.gave_up(error)),
                state => Ok(AcquireOutcome::NotAcquired(state.ok())),
            },
        }
    }

    /// Waits in the queue; returns `None` if the wait is over. A waiter that has a ticket outlasts an outage by itself; one
    /// that could not get a ticket tries again.
    async fn wait(&self, lock: &Lock) -> Result<Option<Guard>> {
        let clock = Clock::system();
        loop {
            let lock = lock.clone();
            let lock = match self.limit.left(clock.now()) {
                Some(left) => lock.wait(left),
                None => lock,
            };
            let error = match lock.acquire().await {
                Ok(guard) => return Ok(Some(guard)),
                Err(error) if error.kind() == ErrorKind::WaitTimeout => return Ok(None),
                Err(error) => error,
            };
            if error.kind() != ErrorKind::Unreachable || !self.limit.covers(&error) {
                return Err(error);
            }
            let retry_at = clock.now() + RETRY_INTERVAL;
            if retry_at >= self.limit.end() {
                return Err(self.gave_up(error));
            }
            clock.sleep_until(retry_at).await.map_err(|error| failed("could not wait", error))?;
        }
    }

    fn gave_up(&self, error: Error) -> Error {
        self.limit.exhausted(error, &format!("waiting for lock {:?}", self.name))
    }

    /// Reads the state of the lock. A server that does not reply in time counts as unreachable.
    async fn read(&self, timeout: Duration) -> Result<LockState> {
        let clock = Clock::system();
        tokio::select! {
            biased;
            state = self.client.inspect(self.name) => state,
            _ = clock.sleep_until(clock.now() + timeout) => {
                let text = format!("no reply from {} within {}", self.client.info().location, show(timeout));
                Err(Error::new(ErrorKind::Unreachable, text))
            }
        }
    }

    async fn report(&self) -> Infallible {
        // Without a timer there is no report, and the lock can still be acquired.
        let _ = self.try_to_report().await;
        pending().await
    }

    async fn try_to_report(&self) -> io::Result<()> {
        if self.output.level() == Level::Quiet && !self.status.is_wanted() {
            return Ok(());
        }
        let clock = Clock::system();
        let began = clock.now();
        let mut progress = Progress::new(self.output, began);
        let mut told = News::new();
        let mut next = if self.status.is_wanted() { began + SHORT_WAIT_VERBOSE } else { progress.starts() };
        loop {
            clock.sleep_until(next).await?;
            let state = self.read(REPORT_TIMEOUT).await;
            let now = clock.now();
            let queued = now.since(began);
            if let Ok(state) = &state {
                let ahead = words::ahead(state, self.label, queued);
                if told.is_news((tokens(state), ahead), now) {
                    self.status.tell(Event::waiting(state, ahead, queued));
                }
            }
            next = progress.show(self.describe(state, queued, now), now);
        }
    }

    /// Describes what the run waits for; a message is written when the holders change.
    fn describe(
        &self,
        state: Result<LockState>,
        queued: Duration,
        now: Moment,
    ) -> Report<Result<Vec<Option<FencingToken>>, String>> {
        let waited = self.limit.progress(now);
        match state {
            Ok(state) => Report {
                subject: Ok(tokens(&state)),
                message: words::waiting(&state, self.label, queued),
                live: words::waiting_live(&state, self.label, queued, &waited),
            },
            Err(error) => {
                let (name, cause) = (words::quoted(self.name), cause(&error));
                let message = format!("warning: waiting for {name}: {}", error.full_message());
                let live = vec![
                    format!("fencepost: waiting for {name}: {cause}, retrying, waited {waited}"),
                    format!("{name}: {cause}, {waited}"),
                ];
                Report { subject: Err(cause), message, live }
            }
        }
    }
}

/// Returns the tokens of the holders.
fn tokens(state: &LockState) -> Vec<Option<FencingToken>> {
    state.holders.iter().map(|holder| holder.token).collect()
}
