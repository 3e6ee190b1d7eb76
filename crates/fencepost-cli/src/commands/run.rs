//! `fencepost run`: hold a lock while a command runs.

use std::io;
use std::time::Duration;

use fencepost::clock::Clock;
use fencepost::{Client, Error, ErrorKind, Guard, Lock, Result, Scope};
use rustix::io::Errno;

use super::{failed, reach};
use crate::args::{Run, Timing};
use crate::child::Group;
use crate::durations::exact;
use crate::exit::{Exit, NOT_ACQUIRED};
use crate::output::{self, Output};
use crate::signals::Signals;
use crate::supervise::{Outcome, Supervisor};
use crate::waiting::{Attempt, Waiter};
use crate::{environment, storage, words};

/// The shortest ttl: below it there is no room for renewals and for the stopping of a command.
const MIN_TTL: Duration = Duration::from_secs(1);
const KILL_AFTER: Duration = Duration::from_secs(5);
/// How often it is looked whether a grant has enough time left to start a command.
const LOOK: Duration = Duration::from_millis(5);

pub(crate) async fn run(args: Run, output: Output) -> Result<Exit> {
    let kill_after = kill_after(args.timing)?;
    let mut signals = Signals::new().map_err(|error| failed("could not take over the signals", error))?;
    let client = tokio::select! {
        biased;
        signal = signals.next() => return Ok(Exit::Signalled(signal.as_raw())),
        client = storage::connect(args.storage.url.as_deref()) => client?,
    };
    say_scope(&client, output);
    let mut turn = Turn { args: &args, kill_after, client: &client, signals, output };
    let exit = turn.take().await?;
    if exit != Exit::Lost {
        // What is lost cannot be given back, so there would be nothing to wait for.
        turn.close().await;
    }
    Ok(exit)
}

/// How much of the ttl belongs to the stopping of the command.
fn kill_after(timing: Timing) -> Result<Duration> {
    let Timing { ttl, kill_after } = timing;
    let bad = |text: String, hint: &str| Err(Error::new(ErrorKind::BadConfig, text).with_hint(hint));
    if ttl < MIN_TTL {
        return bad(
            format!("--ttl {} is less than {}", exact(ttl), exact(MIN_TTL)),
            "the ttl is how long the lock outlives a crash; a live holder renews it for as long as it takes",
        );
    }
    let kill_after = kill_after.unwrap_or(KILL_AFTER.min(ttl / 4));
    if kill_after > ttl / 3 {
        let (kill_after, third, ttl) = (exact(kill_after), exact(ttl / 3), exact(ttl));
        return bad(
            format!("--kill-after {kill_after} is more than a third of the ttl: {ttl} / 3 = {third}"),
            "it is taken out of the ttl, and the rest must be enough for renewals: raise --ttl or lower --kill-after",
        );
    }
    Ok(kill_after)
}

fn say_scope(client: &Client, output: Output) {
    if client.info().scope == Scope::Process {
        output.warning("this storage lives in one process: the lock keeps nobody else out");
    }
    output.detail(format_args!("scope: {}", reach(client)));
}

/// One turn at the lock.
struct Turn<'a> {
    args: &'a Run,
    kill_after: Duration,
    client: &'a Client,
    signals: Signals,
    output: Output,
}

impl Turn<'_> {
    async fn take(&mut self) -> Result<Exit> {
        let Run { name, identity, waiting, .. } = self.args;
        let label = identity.owner_label.as_deref().unwrap_or_else(|| self.client.label());
        let waiter = Waiter { client: self.client, name, label, output: self.output };
        match waiter.take(&self.lock(label), waiting.patience(), &mut self.signals).await? {
            Attempt::Acquired(guard) => self.hold(guard).await,
            Attempt::Busy => Ok(self.not_acquired().await),
            Attempt::Signalled(signal) => Ok(Exit::Signalled(signal.as_raw())),
        }
    }

    fn lock(&self, label: &str) -> Lock {
        let args = self.args;
        let lock = self.client.lock(&args.name).mode(args.sharing.mode()).ttl(args.timing.ttl).label(label);
        let lock = args.identity.meta.iter().fold(lock, |lock, (key, value)| lock.meta(key, value));
        match args.waiting.wait {
            Some(wait) => lock.wait(wait),
            None => lock,
        }
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

    async fn hold(&mut self, guard: Guard) -> Result<Exit> {
        self.output.detail(format_args!("holding {:?} with token {}", guard.name(), guard.token()));
        // A storage may give a shorter ttl than it was asked for.
        let kill_after = self.kill_after.min(guard.ttl() / 3);
        wait_for_time(&guard, kill_after).await?;
        self.signals.take_all().map_err(|error| failed("could not take over the signals", error))?;
        let supervisor = Supervisor::new(&guard, kill_after, &mut self.signals, self.output);
        let supervisor = supervisor.map_err(|error| failed("could not watch over a command", error))?;
        let mut command = environment::command(self.args, &guard, &self.client.info().location);
        match Group::spawn(&mut command) {
            Ok(group) => {
                let outcome = supervisor.watch(group).await;
                let outcome = outcome.map_err(|error| failed("could not wait for the command", error))?;
                Ok(self.end(guard, outcome).await)
            }
            Err(error) => {
                output::failure(not_executed(&command.get_program().to_string_lossy(), &error));
                // It warns by itself if it fails, and that changes nothing.
                let _ = self.release(guard).await;
                Ok(not_started(&error))
            }
        }
    }

    async fn end(&mut self, guard: Guard, outcome: Outcome) -> Exit {
        let Outcome { ended, lost } = outcome;
        let released = if lost { Ok(()) } else { self.release(guard).await };
        Exit::after(ended, lost, &released)
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
        match &released {
            Ok(()) => self.output.detail(format_args!("released {name:?}")),
            Err(error) if error.kind() == ErrorKind::Lost => output::error(error),
            Err(error) => {
                self.output.warning(format_args!("{error}; lock {name:?} ends by itself within its ttl"));
            }
        }
        released
    }

    /// Waits until everything is given back, unless the user says that this takes too long.
    async fn close(&mut self) {
        tokio::select! {
            () = self.client.close() => {}
            () = self.signals.asked_to_end(1) => {}
        }
    }
}

/// A grant that was handed over may have spent part of its time before we saw it; it is being renewed right now.
async fn wait_for_time(guard: &Guard, kill_after: Duration) -> Result<()> {
    let clock = Clock::system();
    while guard.remaining() <= kill_after {
        guard.check()?;
        clock.sleep_until(clock.now() + LOOK).await.map_err(|error| failed("could not wait", error))?;
    }
    Ok(())
}

fn not_executed(program: &str, error: &io::Error) -> String {
    let hint = if Errno::from_io_error(error) == Some(Errno::NOEXEC) {
        "\nhint: if it is a script, its first line must name the interpreter: #!/bin/sh"
    } else {
        ""
    };
    format!("could not execute {program:?}: {error}{hint}")
}

fn not_started(error: &io::Error) -> Exit {
    if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotExecute }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(ttl: u64, kill_after: Option<u64>) -> Result<Duration> {
        let millis = Duration::from_millis;
        super::kill_after(Timing { ttl: millis(ttl), kill_after: kill_after.map(millis) })
    }

    #[test]
    fn the_grace_is_five_seconds_or_a_quarter_of_the_ttl() {
        assert_eq!(chosen(30_000, None).unwrap(), Duration::from_secs(5));
        assert_eq!(chosen(8_000, None).unwrap(), Duration::from_secs(2));
        assert_eq!(chosen(30_000, Some(10_000)).unwrap(), Duration::from_secs(10));
        assert_eq!(chosen(30_000, Some(0)).unwrap(), Duration::ZERO);
    }

    #[test]
    fn a_grace_above_a_third_and_a_ttl_below_a_second_are_refused_with_the_numbers() {
        let text = |ttl, kill_after| chosen(ttl, kill_after).unwrap_err().to_string();
        assert_eq!(
            text(30_000, Some(15_000)),
            "--kill-after 15s is more than a third of the ttl: 30s / 3 = 10s"
        );
        assert_eq!(text(500, None), "--ttl 0.5s is less than 1s");
    }

    #[test]
    fn what_is_not_found_is_told_from_what_cannot_be_executed() {
        assert_eq!(not_started(&io::ErrorKind::NotFound.into()), Exit::NotFound);
        assert_eq!(not_started(&io::ErrorKind::PermissionDenied.into()), Exit::CannotExecute);
    }
}
