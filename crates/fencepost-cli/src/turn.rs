//! One turn at the lock: taking it, running the command under it, giving it back.

use std::io;
use std::time::Duration;

use fencepost::clock::{Clock, Moment};
use fencepost::{Client, Error, ErrorKind, Guard, Lock, Result};
use nix::sys::signal::SigSet;
use rustix::process::Signal;

use crate::args::Run;
use crate::child::{Group, Place};
use crate::commands::failed;
use crate::durations::show;
use crate::environment;
use crate::exit::{Exit, NOT_ACQUIRED};
use crate::nesting::HeldAbove;
use crate::output::{self, Output};
use crate::signals::Signals;
use crate::status::{Event, Status};
use crate::stopping::{Rules, headroom};
use crate::supervise::{Outcome, Supervisor};
use crate::terminal::Terminal;
use crate::unchecked::Start;
use crate::waiting::{Attempt, Waiter};
use crate::warden::{Fate, Order, Warden};
use crate::words;

/// How often it is looked whether a warden that is not ready is still there.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it is looked whether a grant has enough time left to start a command.
const LOOK: Duration = Duration::from_millis(5);

pub(crate) struct Turn<'a> {
    pub(crate) args: &'a Run,
    pub(crate) kill_after: Duration,
    pub(crate) client: &'a Client,
    pub(crate) signals: Signals,
    pub(crate) output: Output,
    pub(crate) status: &'a Status,
    /// The signal mask that we were started with, for the command.
    pub(crate) mask: SigSet,
}

impl Turn<'_> {
    pub(crate) async fn take(&mut self, warden: Warden) -> Result<Exit> {
        let began = Clock::system().now();
        let above = HeldAbove::from_environment();
        let attempt = match self.take_at_once(&above).await? {
            Some(guard) => Attempt::Acquired(guard),
            None => self.wait_in_line().await?,
        };
        match attempt {
            Attempt::Acquired(guard) => self.hold(guard, warden, &above, began).await,
            Attempt::Busy => Ok(self.not_acquired().await),
            Attempt::Signalled(signal) => Ok(Exit::Signalled(signal.as_raw())),
        }
    }

    fn label(&self) -> &str {
        self.args.identity.owner_label.as_deref().unwrap_or_else(|| self.client.label())
    }

    fn lock(&self) -> Lock {
        let args = self.args;
        let lock =
            self.client.lock(&args.name).mode(args.sharing.mode()).ttl(args.timing.ttl).label(self.label());
        let lock = args.identity.meta.iter().fold(lock, |lock, (key, value)| lock.meta(key, value));
        match args.waiting.wait {
            Some(wait) => lock.wait(wait),
            None => lock,
        }
    }

    /// If the lock may be held above us, it is tried before it is waited for: we would wait for ourselves.
    async fn take_at_once(&mut self, above: &HeldAbove) -> Result<Option<Guard>> {
        let (name, storage) = (&self.args.name, self.client.info().storage_id);
        if !above.mentions(name, storage) {
            return Ok(None);
        }
        let guard = self.lock().try_acquire().await?;
        if guard.is_none() {
            let state = self.client.inspect(name).await?;
            if above.would_wait_for_itself(&state, storage, self.args.sharing.mode()) {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("lock {name:?} is held by a `fencepost run` that this one runs under"),
                )
                .with_hint(
                    "it could only wait for itself: leave the inner lock out, or give it another name",
                ));
            }
        }
        Ok(guard)
    }

    async fn wait_in_line(&mut self) -> Result<Attempt> {
        let (label, lock) = (self.label().to_owned(), self.lock());
        let Self { client, output, status, args, signals, .. } = self;
        let waiter = Waiter { client, name: &args.name, label: &label, output: *output, status };
        waiter.take(&lock, args.waiting.patience(), signals).await
    }

    async fn not_acquired(&self) -> Exit {
        let waiting = &self.args.waiting;
        if let Ok(state) = self.client.inspect(&self.args.name).await {
            let text = words::busy(&state);
            if waiting.skip_ok {
                self.output.detail(text);
            } else {
                self.output.note(text);
            }
        }
        let otherwise = if waiting.skip_ok { 0 } else { NOT_ACQUIRED };
        Exit::NotAcquired(waiting.conflict_exit_code.unwrap_or(otherwise))
    }

    async fn hold(
        &mut self,
        guard: Guard,
        mut warden: Warden,
        above: &HeldAbove,
        began: Moment,
    ) -> Result<Exit> {
        let acquired = Clock::system().now();
        let location = &self.client.info().location;
        self.output.detail(format_args!("holding {:?} with token {}", guard.name(), guard.token()));
        self.status.tell(Event::acquired(&guard, location, acquired.since(began)));
        for remark in self.client.remarks(&self.args.name).await.unwrap_or_default() {
            let advice = remark.advice.as_deref().map(|advice| format!("; {advice}"));
            self.output.warning(format_args!("{}{}", remark.found, advice.unwrap_or_default()));
        }
        // A storage may give a shorter ttl than it was asked for.
        self.kill_after = self.kill_after.min(guard.ttl() / 3);
        let outage = self.args.timing.on_lost.survivable_outage(guard.ttl(), self.kill_after);
        self.output.detail(format_args!("outages of the storage below {} go unnoticed", show(outage)));
        tokio::select! {
            biased;
            signal = self.signals.next() => return Ok(self.give_up(guard, signal).await),
            ready = get_ready(&guard, self.kill_after, &mut warden) => ready?,
        }
        match self.run(&guard, warden, above).await? {
            Ok(outcome) => Ok(self.end(guard, acquired, outcome).await),
            Err(exit) => {
                // It warns by itself if it fails, and that changes nothing.
                let _ = self.release(guard).await;
                Ok(exit)
            }
        }
    }

    /// A signal came before there was a command that it could be passed on to.
    async fn give_up(&mut self, guard: Guard, signal: Signal) -> Exit {
        let _ = self.release(guard).await;
        Exit::Signalled(signal.as_raw())
    }

    /// Runs the command, if it can be started.
    async fn run(
        &mut self,
        guard: &Guard,
        mut warden: Warden,
        above: &HeldAbove,
    ) -> Result<Result<Outcome, Exit>> {
        self.signals.take_all().map_err(|error| failed("could not take over the signals", error))?;
        let Run { timing, process, .. } = self.args;
        let place = if process.foreground { Place::OurGroup } else { Place::OwnGroup };
        let group = loop {
            let mut command = environment::command(self.args, guard, &self.client.info().location, above);
            let until = timing.on_lost.deadline(guard.valid_until(), guard.ttl());
            // Before the command begins: we may be stopped as soon as it has.
            warden.tell(Order::Until(until));
            let line = warden.line().map_err(|error| failed("could not reach the warden", error))?;
            match Group::spawn(&mut command, place, Start { line, mask: self.mask, until }) {
                Ok(group) => break group,
                // It took so long that the lease was over by then, and the command has not begun. If the lease was
                // renewed meanwhile it may.
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
            terminal: if process.foreground { None } else { Terminal::at_hand() },
        };
        let outcome = supervisor.watch(group).await;
        outcome.map(Ok).map_err(|error| failed("could not wait for the command", error))
    }

    async fn end(&mut self, guard: Guard, acquired: Moment, outcome: Outcome) -> Exit {
        let on_lost = self.args.timing.on_lost;
        if outcome.lost {
            return Exit::after(outcome, on_lost, &Ok(()));
        }
        if let Some(at_least) = self.args.timing.at_least
            && !self.hold_until(&guard, acquired + at_least, outcome.asked_to_end).await
        {
            // The command had its lock the whole time.
            return Exit::after(outcome, on_lost, &Ok(()));
        }
        Exit::after(outcome, on_lost, &self.release(guard).await)
    }

    /// Holds the lock until then, although the command has ended, or until the user has asked twice to end, the time
    /// before counted. False if it was lost meanwhile.
    async fn hold_until(&mut self, guard: &Guard, end: Moment, asked_before: bool) -> bool {
        let clock = Clock::system();
        let left = show(end.since(clock.now()));
        let name = guard.name();
        self.output.detail(format_args!("holding {name:?} for another {left}, as --at-least says"));
        let (output, signals) = (self.output, &mut self.signals);
        let asked = async {
            if !asked_before {
                signals.asked_to_end(1).await;
                output.note(format_args!("--at-least keeps lock {name:?} for now; once more gives it back"));
            }
            signals.asked_to_end(1).await;
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

    /// Gives the lock back, unless the user insists that this takes too long. One request to end is not enough: it may
    /// have been meant for the command, which has ended by itself at that moment.
    async fn release(&mut self, guard: Guard) -> Result<()> {
        let name = guard.name().clone();
        let released = tokio::select! {
            biased;
            released = guard.release() => released,
            () = self.signals.asked_to_end(2) => Err(Error::new(ErrorKind::OutcomeUnknown, "interrupted while releasing")),
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
                self.output.warning(format_args!("{error}; lock {name:?} ends by itself within its ttl"));
                "unknown"
            }
        };
        self.status.tell(Event::Released { outcome });
        released
    }

    /// Waits until everything is given back, unless the user says that this takes too long.
    pub(crate) async fn close(&mut self) {
        tokio::select! {
            () = self.client.close() => {}
            () = self.signals.asked_to_end(1) => {}
        }
    }
}

/// Waits until the lease has enough time left and the warden is on duty. A grant that was handed over may have spent
/// part of its time before we saw it; it is being renewed right now.
async fn get_ready(guard: &Guard, kill_after: Duration, warden: &mut Warden) -> Result<()> {
    let clock = Clock::system();
    while guard.remaining() <= kill_after + headroom(guard.ttl()) {
        guard.check()?;
        clock.sleep_until(clock.now() + LOOK).await.map_err(|error| failed("could not wait", error))?;
    }
    let no_warden = |error| failed("could not start the warden", error);
    loop {
        if warden.look() != Fate::OnDuty {
            *warden = Warden::start().map_err(no_warden)?;
        }
        tokio::select! {
            ready = warden.ready() => return ready.map_err(no_warden),
            // One that was stopped will not be ready.
            _ = clock.sleep_until(clock.now() + PATIENCE) => {}
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
    fn what_is_not_found_is_told_from_what_cannot_be_executed() {
        assert_eq!(not_started(&io::ErrorKind::NotFound.into()), Exit::NotFound);
        assert_eq!(not_started(&io::ErrorKind::PermissionDenied.into()), Exit::CannotExecute);
    }
}
