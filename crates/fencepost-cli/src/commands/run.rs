//! `fencepost run`: hold a lock while a command runs.

use std::io;
use std::process::Command;
use std::time::Duration;

use fencepost::clock::{Clock, wall_time};
use fencepost::{Client, Error, ErrorKind, Guard, Lock, Result, Scope};

use super::{failed, reach};
use crate::args::{Run, Timing};
use crate::child::Group;
use crate::durations::exact;
use crate::exit::{Exit, NOT_ACQUIRED};
use crate::output::Output;
use crate::signals::Signals;
use crate::supervise::{Outcome, Supervisor};
use crate::timestamps::rfc3339;
use crate::waiting::{Attempt, Patience, Waiter};
use crate::{storage, words};

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
    let label = args.identity.owner_label.as_deref().unwrap_or_else(|| client.label());
    let lock = lock(&client, &args, label);
    let waiter = Waiter { client: &client, name: &args.name, label, output };
    let patience = if args.waiting.no_wait { Patience::None } else { Patience::InLine };
    match waiter.take(&lock, patience, &mut signals).await? {
        Attempt::Acquired(guard) => under_the_lock(&args, kill_after, guard, &client, &mut signals, output).await,
        Attempt::Busy => Ok(not_acquired(&args, &client, output).await),
        Attempt::Signalled(signal) => {
            close(&client, &mut signals).await;
            Ok(Exit::Signalled(signal.as_raw()))
        }
    }
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
        return bad(
            format!(
                "--kill-after {} is more than a third of the ttl: {} / 3 = {}",
                exact(kill_after),
                exact(ttl),
                exact(ttl / 3)
            ),
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

fn lock(client: &Client, args: &Run, label: &str) -> Lock {
    let lock = client.lock(&args.name).mode(args.sharing.mode()).ttl(args.timing.ttl).label(label);
    let lock = args.identity.meta.iter().fold(lock, |lock, (key, value)| lock.meta(key, value));
    match args.waiting.wait {
        Some(wait) => lock.wait(wait),
        None => lock,
    }
}

async fn not_acquired(args: &Run, client: &Client, output: Output) -> Exit {
    let code = match args.waiting.conflict_exit_code {
        Some(code) => code,
        None if args.waiting.skip_ok => 0,
        None => NOT_ACQUIRED,
    };
    if let Ok(state) = client.inspect(&args.name).await {
        let text = words::busy(&state);
        if args.waiting.skip_ok { output.detail(text) } else { output.note(text) }
    }
    client.close().await;
    Exit::NotAcquired(code)
}

async fn under_the_lock(
    args: &Run,
    kill_after: Duration,
    guard: Guard,
    client: &Client,
    signals: &mut Signals,
    output: Output,
) -> Result<Exit> {
    output.detail(format_args!("holding {:?} with token {}", guard.name(), guard.token()));
    // A storage may give a shorter ttl than it was asked for.
    let kill_after = kill_after.min(guard.ttl() / 3);
    wait_for_time(&guard, kill_after).await?;
    signals.take_all().map_err(|error| failed("could not take over the signals", error))?;
    let supervisor = Supervisor::new(&guard, kill_after, signals, output);
    let supervisor = supervisor.map_err(|error| failed("could not watch over a command", error))?;
    let mut command = command(args, &guard, client);
    let exit = match Group::spawn(&mut command) {
        Ok(group) => {
            let watched = supervisor.watch(group).await;
            let Outcome { ended, lost } = watched.map_err(|error| failed("could not wait for the command", error))?;
            // What is lost cannot be given back, so there is nothing to wait for.
            let released = if lost { Ok(()) } else { release(guard, signals, output).await };
            Exit::after(ended, lost, &released)
        }
        Err(error) => {
            output.failure(format_args!("could not execute {:?}: {error}", command.get_program()));
            // It warns by itself if it fails, and that changes nothing.
            let _ = release(guard, signals, output).await;
            not_started(&error)
        }
    };
    if exit != Exit::Lost {
        close(client, signals).await;
    }
    Ok(exit)
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

fn command(args: &Run, guard: &Guard, client: &Client) -> Command {
    let mut command = match (&args.shell, args.command.split_first()) {
        (None, Some((program, arguments))) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        (shell, _) => {
            let mut command = Command::new("sh");
            command.arg("-c").args(shell);
            command
        }
    };
    command
        .env("FENCEPOST_LOCK_NAME", guard.name().as_str())
        .env("FENCEPOST_TOKEN", guard.token().to_string())
        .env("FENCEPOST_STORAGE_ID", guard.storage_id().to_string())
        .env("FENCEPOST_OWNER_LABEL", guard.label())
        .env("FENCEPOST_BACKEND", &client.info().location)
        .env("FENCEPOST_ACQUIRED_AT", rfc3339(wall_time()))
        .env("FENCEPOST_TTL_MS", guard.ttl().as_millis().to_string());
    command
}

fn not_started(error: &io::Error) -> Exit {
    if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotExecute }
}

/// Gives the lock back, unless a signal says that this takes too long.
async fn release(guard: Guard, signals: &mut Signals, output: Output) -> Result<()> {
    let name = guard.name().clone();
    let released = tokio::select! {
        biased;
        released = guard.release() => released,
        _ = signals.next() => Err(Error::new(ErrorKind::OutcomeUnknown, "interrupted while releasing")),
    };
    match &released {
        Ok(()) => output.detail(format_args!("released {name:?}")),
        Err(error) if error.kind() == ErrorKind::Lost => output.error(error),
        Err(error) => output.warning(format_args!("{error}; the lock {name:?} ends by itself within its ttl")),
    }
    released
}

/// Waits until everything is given back, unless a signal says that this takes too long.
async fn close(client: &Client, signals: &mut Signals) {
    tokio::select! {
        () = client.close() => {}
        _ = signals.next() => {}
    }
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
        assert_eq!(text(30_000, Some(15_000)), "--kill-after 15s is more than a third of the ttl: 30s / 3 = 10s");
        assert_eq!(text(500, None), "--ttl 0.5s is less than 1s");
    }

    #[test]
    fn what_is_not_found_is_told_from_what_cannot_be_executed() {
        assert_eq!(not_started(&io::ErrorKind::NotFound.into()), Exit::NotFound);
        assert_eq!(not_started(&io::ErrorKind::PermissionDenied.into()), Exit::CannotExecute);
    }
}
