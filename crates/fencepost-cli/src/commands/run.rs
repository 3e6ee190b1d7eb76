//! `fencepost run`: hold a lock while a command runs.

use std::time::Duration;

use fencepost::{BackendInfo, Client, Error, ErrorKind, Lock, Result, Scope};
use rustix::process::Signal;

use super::{failed, on_this_thread, reach};
use crate::args::{Run, Timing};
use crate::backend;
use crate::connecting;
use crate::durations::{exact, tenths};
use crate::exit::Exit;
use crate::holding::stdin_ended;
use crate::locked_run::{LockedRun, Task};
use crate::output::{self, Output};
use crate::signals::Signals;
use crate::status::{self, Event, Status};
use crate::terminal::{Key, allow_background_output, end_by, is_in_foreground};
use crate::wait_limit::WaitLimit;
use crate::warden::Warden;

/// The shortest ttl: below it there is no room for renewals and for stopping a command.
const MIN_TTL: Duration = Duration::from_secs(1);
/// The longest ttl that a backend can keep.
const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &Run, output: Output) -> Result<Exit> {
    with_lock(args, output, || {
        // It starts up while the run connects and waits.
        Warden::start().map(Task::Command).map_err(|error| failed("could not start the warden", error))
    })
}

/// Acquires the lock and performs the task under it. The task is created before the connection.
pub(super) fn with_lock(args: &Run, output: Output, task: impl FnOnce() -> Result<Task>) -> Result<Exit> {
    let limit = WaitLimit::start(args.waiting.wait);
    lease_of(args.timing, Lock::DEFAULT_TTL)?;
    let status = Status::new(args.name.clone(), status::destination(&args.status)?);
    let status = status.map_err(|error| failed("could not write events", error))?;
    let exit = on_this_thread(async {
        let task = task()?;
        connect_and_run(args, limit, task, &status, output).await
    });
    status.tell(Event::exit(*exit.as_ref().unwrap_or(&Exit::Failed)));
    drop(status);
    output::flush();
    match exit {
        Ok(Exit::Typed(key)) => end_by(key),
        Ok(Exit::Signalled(signal)) if signal == Signal::INT.as_raw() && is_in_foreground() => {
            end_by(Key::ForAll(Signal::INT));
        }
        _ => {}
    }
    exit
}

async fn connect_and_run(
    args: &Run,
    limit: WaitLimit,
    mut task: Task,
    status: &Status,
    output: Output,
) -> Result<Exit> {
    // Before anything is printed.
    let mask = allow_background_output();
    let mut signals = Signals::new().map_err(|error| failed("could not handle signals", error))?;
    let chosen = backend::chosen(args.backend.url.as_deref())?;
    let client = tokio::select! {
        biased;
        signal = signals.next() => return Ok(Exit::Signalled(signal.as_raw())),
        client = connecting::connect(&chosen, limit, output, task.abandoned()) => client?,
    };
    let Some(client) = client else { return Ok(stdin_ended(args, output)) };
    print_scope(&client, output);
    let default_ttl = default_ttl(client.info());
    if args.timing.ttl.is_none() && default_ttl != Lock::DEFAULT_TTL {
        let (scheme, default) = (client.info().scheme, exact(Lock::DEFAULT_TTL));
        output.detail(format_args!(
            "ttl: {}, the nearest to the default of {default} that {scheme} can keep",
            exact(default_ttl)
        ));
    }
    let (ttl, kill_after) = lease_of(args.timing, default_ttl)?;
    let mut run = LockedRun { args, limit, ttl, kill_after, client: &client, signals, output, status, mask };
    let exit = run.acquire_and_run(task).await?;
    if exit != Exit::Lost {
        // A lost lock cannot be released, so there is nothing to wait for.
        run.close().await;
    }
    Ok(exit)
}

/// Returns the ttl that is nearest to the default among those that the backend can keep.
fn default_ttl(info: &BackendInfo) -> Duration {
    Lock::DEFAULT_TTL.min(info.max_ttl).max(info.min_ttl)
}

/// Returns the ttl, and how much of it is reserved for stopping the command.
fn lease_of(timing: Timing, default_ttl: Duration) -> Result<(Duration, Duration)> {
    let ttl = timing.ttl.unwrap_or(default_ttl);
    let bad = |text: String, hint: &str| Err(Error::new(ErrorKind::BadConfig, text).with_hint(hint));
    if timing.ttl.is_some_and(|ttl| !(MIN_TTL..=MAX_TTL).contains(&ttl)) {
        return bad(
            format!("--ttl {} is out of range: from 1s to 24h", exact(ttl)),
            "the ttl is how long the lock outlives a crash; a live holder renews it for as long as it takes",
        );
    }
    let kill_after = timing.kill_after.unwrap_or(DEFAULT_KILL_AFTER.min(ttl / 4));
    if kill_after > ttl / 3 {
        let (kill_after, third, ttl) = (exact(kill_after), tenths(ttl / 3), exact(ttl));
        return bad(
            format!(
                "--kill-after {kill_after} is more than a third of the ttl: at most {third} for a ttl of {ttl}"
            ),
            "it is part of the ttl, and the rest must be enough for renewals: raise --ttl or lower --kill-after",
        );
    }
    Ok((ttl, kill_after))
}

fn print_scope(client: &Client, output: Output) {
    if client.info().scope == Scope::Process {
        output.warning("locks of this backend exist in this process only: other processes are not excluded");
    }
    output.detail(format_args!("scope: {}", reach(client)));
}

#[cfg(test)]
mod tests {
    use fencepost::StorageId;

    use crate::stopping::OnLost;

    use super::*;

    fn chosen(ttl: Option<u64>, kill_after: Option<u64>) -> Result<(Duration, Duration)> {
        let millis = Duration::from_millis;
        let (ttl, kill_after) = (ttl.map(millis), kill_after.map(millis));
        lease_of(Timing { ttl, kill_after, on_lost: OnLost::Term, at_least: None }, millis(10_000))
    }

    #[test]
    fn the_kill_after_is_five_seconds_or_a_quarter_of_the_ttl() {
        let kill_after = |ttl, kill_after| chosen(ttl, kill_after).unwrap().1;
        assert_eq!(kill_after(Some(30_000), None), Duration::from_secs(5));
        assert_eq!(kill_after(Some(8_000), None), Duration::from_secs(2));
        assert_eq!(kill_after(None, None), Duration::from_millis(2500));
        assert_eq!(kill_after(Some(30_000), Some(10_000)), Duration::from_secs(10));
        assert_eq!(kill_after(Some(30_000), Some(0)), Duration::ZERO);
    }

    #[test]
    fn a_kill_after_above_a_third_and_a_ttl_out_of_range_are_rejected_with_the_numbers() {
        let text = |ttl, kill_after| chosen(ttl, kill_after).unwrap_err().to_string();
        assert_eq!(
            text(Some(30_000), Some(15_000)),
            "--kill-after 15s is more than a third of the ttl: at most 10s for a ttl of 30s"
        );
        assert!(text(Some(10_000), Some(5_000)).ends_with(": at most 3.3s for a ttl of 10s"));
        let range = "is out of range: from 1s to 24h";
        assert_eq!(text(Some(500), None), format!("--ttl 500ms {range}"));
        assert_eq!(text(Some(0), None), format!("--ttl 0s {range}"));
        assert_eq!(text(Some(90_000_000), None), format!("--ttl 1d1h {range}"));
    }

    #[test]
    fn the_default_ttl_is_the_nearest_that_the_backend_can_keep() {
        let seconds = Duration::from_secs;
        let mut info = BackendInfo::new("x", "x:", Scope::Fleet, StorageId::random());
        for (min, max, expected) in [(1, 3600, 30), (1, 10, 10), (60, 3600, 60)] {
            (info.min_ttl, info.max_ttl) = (seconds(min), seconds(max));
            assert_eq!(default_ttl(&info), seconds(expected));
        }
    }
}
