//! `fencepost run`: hold a lock while a command runs.

use std::time::Duration;

use fencepost::{Client, Error, ErrorKind, Result, Scope};
use rustix::process::Signal;

use super::{failed, on_this_thread, reach};
use crate::args::{Run, Timing};
use crate::durations::exact;
use crate::exit::Exit;
use crate::output::{self, Output};
use crate::signals::Signals;
use crate::status::{self, Event, Status};
use crate::storage;
use crate::terminal::{Key, end_by, is_in_foreground, may_speak_from_the_background};
use crate::turn::Turn;
use crate::warden::Warden;

/// The shortest ttl: below it there is no room for renewals and for the stopping of a command.
const MIN_TTL: Duration = Duration::from_secs(1);
const KILL_AFTER: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &Run, output: Output) -> Result<Exit> {
    let kill_after = kill_after(args.timing)?;
    let status = Status::new(args.name.clone(), status::destination(&args.status)?);
    let status = status.map_err(|error| failed("could not write events", error))?;
    let exit = on_this_thread(async {
        // It gets ready while we connect and wait.
        let warden = Warden::start().map_err(|error| failed("could not start the warden", error))?;
        take_a_turn(args, kill_after, warden, &status, output).await
    });
    status.tell(Event::exit(*exit.as_ref().unwrap_or(&Exit::Failed)));
    drop(status);
    output::farewell();
    match exit {
        Ok(Exit::Typed(key)) => end_by(key),
        Ok(Exit::Signalled(signal)) if signal == Signal::INT.as_raw() && is_in_foreground() => {
            end_by(Key::ForAll(Signal::INT));
        }
        _ => {}
    }
    exit
}

async fn take_a_turn(
    args: &Run,
    kill_after: Duration,
    warden: Warden,
    status: &Status,
    output: Output,
) -> Result<Exit> {
    // Before anything is said.
    let mask = may_speak_from_the_background();
    let mut signals = Signals::new().map_err(|error| failed("could not take over the signals", error))?;
    let client = tokio::select! {
        biased;
        signal = signals.next() => return Ok(Exit::Signalled(signal.as_raw())),
        client = storage::connect(args.storage.url.as_deref()) => client?,
    };
    say_scope(&client, output);
    let mut turn = Turn { args, kill_after, client: &client, signals, output, status, mask };
    let exit = turn.take(warden).await?;
    if exit != Exit::Lost {
        // What is lost cannot be given back, so there would be nothing to wait for.
        turn.close().await;
    }
    Ok(exit)
}

/// How much of the ttl belongs to the stopping of the command.
fn kill_after(timing: Timing) -> Result<Duration> {
    let Timing { ttl, kill_after, .. } = timing;
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

#[cfg(test)]
mod tests {
    use crate::stopping::OnLost;

    use super::*;

    fn chosen(ttl: u64, kill_after: Option<u64>) -> Result<Duration> {
        let millis = Duration::from_millis;
        let kill_after = kill_after.map(millis);
        super::kill_after(Timing { ttl: millis(ttl), kill_after, on_lost: OnLost::Term, at_least: None })
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
}
