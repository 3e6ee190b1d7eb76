//! Acquiring the lock: waiting in its queue, reporting who holds it, and leaving the queue when a signal arrives.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::time::Duration;

use fencepost::clock::{Clock, Moment};
use fencepost::{
    Client, Error, ErrorKind, FencingToken, Guard, HolderState, Lock, LockName, LockState, Result,
};
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
/// It is short because it is added to `--wait`.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time before an acquire or a read of the state is sent again that could not reach the server.
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
    pub(crate) observed: Observed,
}

/// What the report has read while the run waited.
#[derive(Default)]
pub(crate) struct Observed {
    /// The tokens of the holders, as read last.
    tokens: RefCell<Vec<Option<FencingToken>>>,
    /// The start of the first read that the server has not replied to; none if it has replied to the last one.
    unanswered_since: Cell<Option<Moment>>,
    /// Whether the last read that has ended was not answered.
    failed: Cell<bool>,
}

impl Observed {
    fn on_read(&self, now: Moment) {
        self.unanswered_since.set(self.unanswered_since.get().or(Some(now)));
    }

    fn on_result(&self, result: &Result<LockState>) {
        self.failed.set(matches!(result, Err(error) if is_outage(error)));
        if !self.failed.get() {
            self.unanswered_since.set(None);
        }
        if let Ok(state) = result {
            self.tokens.replace(tokens(state));
        }
    }

    /// Returns whether the server did not reply when it was asked last.
    fn is_outage(&self, now: Moment) -> bool {
        let is_late = |since: Moment| now.since(since) >= PROBE_TIMEOUT;
        self.failed.get() || self.unanswered_since.get().is_some_and(is_late)
    }

    /// Returns whether this holder may be the ticket that this run has just abandoned: the server may have granted the lock
    /// to it when it replied again. A client with the same label is told apart by its token, or because it has held the
    /// lock for longer than this run has waited.
    fn may_be_ours(&self, holder: &HolderState, own_label: &str, waited: Duration) -> bool {
        *holder.label == *own_label
            && !self.tokens.borrow().contains(&holder.token)
            && holder.held_for.is_none_or(|held_for| held_for <= waited)
    }
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
            None if on_busy == OnBusy::Wait && self.limit.is_limited() => self.probe().await,
            None => Ok(AcquireOutcome::NotAcquired(self.read(PROBE_TIMEOUT).await.ok())),
        }
    }

    /// Finds out why the wait has ended without a grant: another client holds the lock, or the server was away, which it may
    /// have been long before the end.
    async fn probe(&self) -> Result<AcquireOutcome> {
        let now = Clock::system().now();
        let (waited, was_away) = (self.limit.waited(now), self.observed.is_outage(now));
        let state = match self.read(PROBE_TIMEOUT).await {
            Err(error) if is_outage(&error) => return Err(self.gave_up(error)),
            // The server has replied, but does not allow to read the state.
            Err(_) if !was_away => return Ok(AcquireOutcome::NotAcquired(None)),
            state => state.ok(),
        };
        let holders = state.as_ref().map_or(&[][..], |state| &state.holders);
        let may_be_ours = |holder| self.observed.may_be_ours(holder, self.label, waited);
        if was_away || holders.iter().any(may_be_ours) {
            let text = "the backend did not reply before the wait ended";
            return Err(self.gave_up(Error::new(ErrorKind::Unreachable, text)));
        }
        if holders.is_empty() {
            let text = "no client holds it, but the backend did not grant it before the wait ended";
            let error = Error::new(ErrorKind::Unreachable, text);
            return Err(self.gave_up(error.with_hint("`fencepost doctor` checks the backend")));
        }
        Ok(AcquireOutcome::NotAcquired(state))
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
            let acquired = tokio::select! {
                biased;
                acquired = lock.acquire() => acquired,
                // A wait that is over already is one attempt, which lasts until the server replies.
                _ = clock.sleep_until(clock.now().max(self.limit.end()) + PROBE_TIMEOUT), if self.limit.is_limited() => {
                    Err(self.no_reply(PROBE_TIMEOUT))
                }
            };
            let error = match acquired {
                Ok(guard) => return Ok(Some(guard)),
                Err(error) if error.kind() == ErrorKind::WaitTimeout => return Ok(None),
                Err(error) => error,
            };
            if !self.limit.covers(&error) {
                return Err(error);
            }
            let retry_at = clock.now() + RETRY_INTERVAL;
            if retry_at >= self.limit.end() {
                return Err(self.gave_up(error));
            }
            if error.kind() != ErrorKind::Unreachable {
                return Err(error);
            }
            clock.sleep_until(retry_at).await.map_err(|error| failed("could not wait", error))?;
        }
    }

    fn gave_up(&self, error: Error) -> Error {
        let what = format!("waiting for lock {:?}", self.name);
        self.limit.exhausted(error, &what, Clock::system().now())
    }

    /// Reads the state of the lock. A server that does not reply in time counts as unreachable.
    async fn read(&self, timeout: Duration) -> Result<LockState> {
        let clock = Clock::system();
        tokio::select! {
            biased;
            state = self.client.inspect(self.name) => state,
            _ = clock.sleep_until(clock.now() + timeout) => Err(self.no_reply(timeout)),
        }
    }

    fn no_reply(&self, timeout: Duration) -> Error {
        let text = format!("no reply from {} within {}", self.client.info().location, show(timeout));
        Error::new(ErrorKind::Unreachable, text)
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
            self.observed.on_read(clock.now());
            let state = self.read(REPORT_TIMEOUT).await;
            self.observed.on_result(&state);
            let now = clock.now();
            let queued = now.since(began);
            if let Ok(state) = &state {
                let ahead = words::ahead(state, self.label, queued);
                if told.is_news((tokens(state), ahead), now) {
                    self.status.tell(Event::waiting(state, ahead, queued));
                }
            }
            next = progress.show(self.describe(state, queued, now), now);
            if self.observed.failed.get() {
                // The end of the outage must be known when the wait ends.
                next = next.min(now + RETRY_INTERVAL);
            }
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

#[cfg(test)]
mod tests {
    use fencepost::Mode;

    use super::*;
    use crate::sample;

    const WAITED: Duration = Duration::from_secs(3);

    fn holder(label: &str, token: u64, held_for: u64) -> HolderState {
        let mut holder = sample::holder(label, token, Mode::Exclusive);
        holder.held_for = Some(Duration::from_secs(held_for));
        holder
    }

    #[test]
    fn a_new_holder_with_the_own_label_may_be_the_abandoned_ticket() {
        let observed = Observed::default();
        observed.on_result(&Ok(sample::lock("a", [holder("me", 1, 2)])));
        let may_be_ours = |holder| observed.may_be_ours(&holder, "me", WAITED);
        assert!(may_be_ours(holder("me", 2, 1)));
        assert!(!may_be_ours(holder("other", 2, 1)));
        assert!(!may_be_ours(holder("me", 1, 3)), "it was seen while waiting");
        assert!(!may_be_ours(holder("me", 2, 4)), "it is older than the wait");
    }

    #[test]
    fn a_server_is_away_if_it_has_not_replied_to_the_last_read() {
        let observed = Observed::default();
        let at = |second| Moment::START + Duration::from_secs(second);
        let unreachable = || Err(Error::new(ErrorKind::Unreachable, "x"));
        assert!(!observed.is_outage(at(9)), "nothing was read");
        observed.on_read(at(9));
        assert!(!observed.is_outage(at(9)), "the reply may be on its way");
        assert!(observed.is_outage(at(11)));
        observed.on_result(&unreachable());
        assert!(observed.is_outage(at(12)));
        observed.on_read(at(12));
        observed.on_result(&Err(Error::new(ErrorKind::Denied, "x")));
        assert!(!observed.is_outage(at(14)), "it has replied");
    }
}
