//! One run under the lock: acquiring it, running the command, releasing it.

use std::future::pending;
use std::io;
use std::time::Duration;

use fencepost::clock::{Clock, Moment};
use fencepost::{Client, Error, ErrorKind, Guard, Lock, LockState, Result};
use nix::sys::signal::SigSet;
use rustix::process::Signal;

use crate::args::Run;
use crate::child::{Group, Placement};
use crate::commands::failed;
use crate::durations::{show, tenths};
use crate::environment;
use crate::exit::Exit;
use crate::holding::{End, stdin_ended};
use crate::nesting::HeldAbove;
use crate::output::{self, Output};
use crate::signals::Signals;
use crate::status::{Event, Status};
use crate::stopping::{Rules, headroom};
use crate::supervise::{Outcome, Supervisor};
use crate::terminal::Terminal;
use crate::unchecked::Start;
use crate::wait_limit::WaitLimit;
use crate::waiting::{AcquireOutcome, Observed, Waiter};
use crate::warden::{Order, Warden, WardenState};
use crate::words;

/// How long a warden that is not ready is waited for before it is checked.
const WARDEN_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often a grant that is being renewed is checked for enough time to start a command.
const GRANT_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// What is done under the lock.
pub(crate) enum Task {
    /// Runs the command, supervised by the warden.
    Command(Warden),
    /// Prints the token, and holds the lock until the end is reached.
    Hold { end: End, json: bool },
}

impl Task {
    /// Waits until the task is no longer wanted, although it has not begun.
    pub(crate) async fn abandoned(&mut self) {
        match self {
            Self::Command(_) => pending().await,
            Self::Hold { end, .. } => end.reached().await,
        }
    }
}

pub(crate) struct LockedRun<'a> {
    pub(crate) args: &'a Run,
    pub(crate) limit: WaitLimit,
    pub(crate) ttl: Duration,
    pub(crate) kill_after: Duration,
    pub(crate) client: &'a Client,
    pub(crate) signals: Signals,
    pub(crate) output: Output,
    pub(crate) status: &'a Status,
    /// The signal mask that fencepost was started with, for the command.
    pub(crate) mask: SigSet,
}

impl LockedRun<'_> {
    pub(crate) async fn acquire_and_run(&mut self, mut task: Task) -> Result<Exit> {
        let began = Clock::system().now();
        let above = HeldAbove::from_environment();
        let outcome = tokio::select! {
            biased;
            outcome = self.acquire(&above) => outcome?,
            () = task.abandoned() => return Ok(stdin_ended(self.args, self.output)),
        };
        let guard = match outcome {
            AcquireOutcome::Granted(guard) => guard,
            AcquireOutcome::NotAcquired(state) => return Ok(self.not_acquired(state.as_ref())),
            AcquireOutcome::Signalled(signal) => return Ok(Exit::Signalled(signal.as_raw())),
        };
        let acquired = Clock::system().now();
        self.announce(&guard, acquired.since(began)).await;
        match task {
            Task::Command(warden) => self.hold(guard, warden, &above, acquired).await,
            Task::Hold { end, json } => self.hold_without_command(guard, end, json).await,
        }
    }

    async fn acquire(&mut self, above: &HeldAbove) -> Result<AcquireOutcome> {
        match self.try_if_held_above(above).await? {
            Some(outcome) => Ok(outcome),
            None => self.enqueue().await,
        }
    }

    fn label(&self) -> &str {
        self.args.identity.owner_label.as_deref().unwrap_or_else(|| self.client.label())
    }

    fn lock(&self) -> Lock {
        let args = self.args;
        let lock = self.client.lock(&args.name).mode(args.sharing.mode()).ttl(self.ttl).label(self.label());
        environment::meta(args).into_iter().fold(lock, |lock, (key, value)| lock.meta(key, value))
    }

    /// Tries to acquire a lock that may be held above this run before waiting for it: it could wait for itself. Returns
    /// `None` if it has to be waited for, as `--wait` says if the server is away.
    async fn try_if_held_above(&mut self, above: &HeldAbove) -> Result<Option<AcquireOutcome>> {
        if !above.mentions(&self.args.name, self.client.info().storage_id) {
            return Ok(None);
        }
        let (lock, clock) = (self.lock(), Clock::system());
        let Self { client, args, signals, limit, .. } = self;
        let tried = tokio::select! {
            biased;
            signal = signals.next() => return Ok(Some(AcquireOutcome::Signalled(signal))),
            tried = try_unless_held_above(client, args, &lock, above) => tried,
            _ = clock.sleep_until(limit.end()), if limit.is_limited() => return Ok(None),
        };
        match tried {
            Err(error) if limit.covers(&error) => Ok(None),
            tried => Ok(tried?.map(AcquireOutcome::Granted)),
        }
    }

    async fn enqueue(&mut self) -> Result<AcquireOutcome> {
        let (label, lock) = (self.label().to_owned(), self.lock());
        let Self { client, output, status, args, signals, limit, .. } = self;
        let waiter = Waiter {
            client,
            name: &args.name,
            label: &label,
            output: *output,
            status,
            limit: *limit,
            observed: Observed::default(),
        };
        waiter.acquire(&lock, args.waiting.on_busy(), signals).await
    }

    fn not_acquired(&self, state: Option<&LockState>) -> Exit {
        let waiting = &self.args.waiting;
        if let Some(state) = state {
            let text = words::busy(state);
            if waiting.skip_ok {
                self.output.detail(text);
            } else {
                self.output.note(text);
            }
        }
        waiting.not_acquired()
    }

    async fn hold(
        &mut self,
        guard: Guard,
        mut warden: Warden,
        above: &HeldAbove,
        acquired: Moment,
    ) -> Result<Exit> {
        // A backend may grant a shorter ttl than was requested.
        self.kill_after = self.kill_after.min(guard.ttl() / 3);
        let outage = self.args.timing.on_lost.survivable_outage(guard.ttl(), self.kill_after);
        self.output.detail(format_args!("outages of the backend below {} go unnoticed", tenths(outage)));
        tokio::select! {
            biased;
            signal = self.signals.next() => return Ok(self.release_and_exit(guard, signal).await),
            ready = get_ready(&guard, self.kill_after, &mut warden) => ready?,
        }
        match self.run(&guard, warden, above).await? {
            Ok(outcome) => Ok(self.finish(guard, acquired, outcome).await),
            Err(exit) => {
                // A failure is reported there, and changes nothing.
                let _ = self.release(guard).await;
                Ok(exit)
            }
        }
    }

    /// Reports that the lock is held, and what the backend remarks about it.
    async fn announce(&self, guard: &Guard, waited: Duration) {
        let location = &self.client.info().location;
        self.output.detail(format_args!("holding {:?} with token {}", guard.name(), guard.token()));
        self.status.tell(Event::acquired(guard, location, waited));
        for remark in self.client.remarks(&self.args.name).await.unwrap_or_default() {
            let advice = remark.advice.as_deref().map(|advice| format!("; {advice}"));
            self.output.warning(format_args!("{}{}", remark.found, advice.unwrap_or_default()));
        }
    }

    /// Releases the lock because a signal arrived before there was a command to forward it to.
    async fn release_and_exit(&mut self, guard: Guard, signal: Signal) -> Exit {
        let _ = self.release(guard).await;
        Exit::Signalled(signal.as_raw())
    }

    /// Runs the command; returns the exit of one that cannot be started.
    async fn run(
        &mut self,
        guard: &Guard,
        mut warden: Warden,
        above: &HeldAbove,
    ) -> Result<Result<Outcome, Exit>> {
        self.signals.take_all().map_err(|error| failed("could not handle signals", error))?;
        let Run { timing, process, .. } = self.args;
        let placement = if process.foreground { Placement::OurGroup } else { Placement::OwnGroup };
        let group = loop {
            let mut command = environment::command(self.args, guard, &self.client.info().location, above);
            let until = timing.on_lost.deadline(guard.valid_until(), guard.ttl());
            // Before the command begins: this process may be stopped as soon as it has.
            warden.tell(Order::Until(until));
            let socket = warden.socket().map_err(|error| failed("could not reach the warden", error))?;
            match Group::spawn(&mut command, placement, Start { socket, mask: self.mask, until }) {
                Ok(group) => break group,
                // Starting it took longer than the lease, and it was not executed. It is started again if the lease has
                // been renewed.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => guard.check()?,
                Err(error) => {
                    let program = command.get_program().to_string_lossy();
                    output::failure(format_args!("could not execute {program:?}: {error}"));
                    return Ok(Err(not_started(&error)));
                }
            }
        };
        self.status.tell(Event::ChildStart { pid: group.id().as_raw_pid() });
        let now = Clock::system().now();
        let supervisor = Supervisor {
            guard,
            rules: Rules {
                kill_after: self.kill_after,
                on_lost: timing.on_lost,
                max_run: process.max_run.map_or(Moment::NEVER, |max_run| now + max_run),
            },
            signals: &mut self.signals,
            output: self.output,
            status: self.status,
            warden,
            terminal: if process.foreground { None } else { Terminal::controlling() },
        };
        let outcome = supervisor.watch(group).await;
        outcome.map(Ok).map_err(|error| failed("could not wait for the command", error))
    }

    async fn finish(&mut self, guard: Guard, acquired: Moment, outcome: Outcome) -> Exit {
        let on_lost = self.args.timing.on_lost;
        if outcome.lost {
            return Exit::after(outcome, on_lost, &Ok(()));
        }
        if let Some(at_least) = self.args.timing.at_least
            && !self.hold_until(&guard, acquired + at_least, outcome.asked_to_end).await
        {
            // The command held its lock the whole time.
            return Exit::after(outcome, on_lost, &Ok(()));
        }
        Exit::after(outcome, on_lost, &self.release(guard).await)
    }

    /// Holds the lock until then although the command has ended, or until the user has asked twice to end, a request
    /// before that included. Returns false if the lock was lost.
    async fn hold_until(&mut self, guard: &Guard, end: Moment, asked_before: bool) -> bool {
        let clock = Clock::system();
        let left = show(end.since(clock.now()));
        let name = guard.name();
        self.output.detail(format_args!("holding {name:?} for another {left}, as --at-least says"));
        let (output, signals) = (self.output, &mut self.signals);
        let asked = async {
            if !asked_before {
                signals.requests_to_end(1).await;
                output.note(format_args!(
                    "--at-least keeps lock {name:?} for now; a second signal releases it"
                ));
            }
            signals.requests_to_end(1).await;
        };
        tokio::select! {
            reason = guard.lost() => {
                output.warning(format_args!("lock {name:?} was lost after the command had ended: {reason}"));
                self.status.tell(Event::lost(reason));
                false
            }
            _ = clock.sleep_until(end) => true,
            () = asked => true,
        }
    }

    /// Releases the lock, unless the user asks twice to end. One request is not enough: it may have been meant for the
    /// command, which has ended by itself at that moment.
    pub(crate) async fn release(&mut self, guard: Guard) -> Result<()> {
        let name = guard.name().clone();
        let released = tokio::select! {
            biased;
            released = guard.release() => released,
            () = self.signals.requests_to_end(2) => Err(Error::new(ErrorKind::OutcomeUnknown, "interrupted while releasing")),
        };
        let outcome = match &released {
            Ok(()) => {
                self.output.detail(format_args!("released {name:?}"));
                "released"
            }
            Err(error) if error.kind() == ErrorKind::Lost => {
                output::error(error);
                "not-held"
            }
            Err(error) => {
                self.output.warning(format_args!("{error}; lock {name:?} expires within its ttl"));
                "unknown"
            }
        };
        self.status.tell(Event::Released { outcome });
        released
    }

    /// Waits until everything is released, unless the user asks to end.
    pub(crate) async fn close(&mut self) {
        tokio::select! {
            () = self.client.close() => {}
            () = self.signals.requests_to_end(1) => {}
        }
    }
}

/// Tries to acquire the lock.
///
/// # Errors
/// Those of the backend, and [`ErrorKind::Conflict`] if a waiter would wait for itself.
async fn try_unless_held_above(
    client: &Client,
    args: &Run,
    lock: &Lock,
    above: &HeldAbove,
) -> Result<Option<Guard>> {
    let guard = lock.try_acquire().await?;
    if guard.is_none() {
        let (name, state) = (&args.name, client.inspect(&args.name).await?);
        if above.would_wait_for_itself(&state, client.info().storage_id, args.sharing.mode()) {
            let text = format!("lock {name:?} is held by a `fencepost run` that this one runs under");
            return Err(Error::new(ErrorKind::Conflict, text).with_hint(
                "it could only wait for itself: leave the inner lock out, or give it another name",
            ));
        }
    }
    Ok(guard)
}

/// Waits until the lease has enough time left and the warden is ready. A grant that was handed over may have used part of
/// its time before this client received it; it is being renewed.
async fn get_ready(guard: &Guard, kill_after: Duration, warden: &mut Warden) -> Result<()> {
    let clock = Clock::system();
    while guard.remaining() <= kill_after + headroom(guard.ttl()) {
        guard.check()?;
        clock
            .sleep_until(clock.now() + GRANT_CHECK_INTERVAL)
            .await
            .map_err(|error| failed("could not wait", error))?;
    }
    let no_warden = |error| failed("could not start the warden", error);
    loop {
        if warden.state() != WardenState::Ready {
            *warden = Warden::start().map_err(no_warden)?;
        }
        tokio::select! {
            ready = warden.ready() => return ready.map_err(no_warden),
            // A warden that was stopped will never be ready.
            _ = clock.sleep_until(clock.now() + WARDEN_CHECK_INTERVAL) => {}
        }
    }
}

fn not_started(error: &io::Error) -> Exit {
    if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotExecute }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_command_differs_from_one_that_cannot_be_executed() {
        assert_eq!(not_started(&io::ErrorKind::NotFound.into()), Exit::NotFound);
        assert_eq!(not_started(&io::ErrorKind::PermissionDenied.into()), Exit::CannotExecute);
    }
}
