//! `fencepost show`: one lock, its holders, its queue and its cell.

use std::fmt::Write;

use fencepost::clock::wall_time;
use fencepost::{Cell, ErrorKind, HolderState, LockState, Result, WaiterState};

use super::{printed, reach};
use crate::args::Show;
use crate::durations;
use crate::exit::{Exit, NOT_ACQUIRED};
use crate::output;
use crate::timestamps::rfc3339;
use crate::words::{mode, plain};
use crate::{backend, json};

/// Shown for facts that the backend does not record: holders that are not Fencepost clients.
const UNKNOWN: &str = "unknown";

/// The number of characters of a cell that are shown.
const CELL_TEXT: usize = 200;

pub(crate) async fn show(args: &Show) -> Result<Exit> {
    let client = match backend::connect_existing(args.backend.url.as_deref()).await {
        Ok(client) => client,
        // Nothing was ever locked there: the lock is free.
        Err(error) if args.exit_code && error.kind() == ErrorKind::Missing => {
            output::remark(format_args!("{error}: nothing is locked there"));
            return Ok(Exit::Done);
        }
        Err(error) => return Err(error),
    };
    let state = client.inspect(&args.name).await?;
    let text = if args.json {
        json::line(&json::Lock::new(&state, client.info().scope)) + "\n"
    } else {
        describe(&state, &reach(&client))
    };
    client.close().await;
    let exit = printed(output::results(text))?;
    Ok(if args.exit_code && !state.holders.is_empty() { Exit::NotAcquired(NOT_ACQUIRED) } else { exit })
}

/// Returns everything that is known about a lock, as text.
pub(super) fn describe(state: &LockState, reach: &str) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, state, reach);
    text
}

fn write(text: &mut String, state: &LockState, reach: &str) -> std::fmt::Result {
    writeln!(text, "lock:     {}", plain(state.name.as_str()))?;
    writeln!(text, "scope:    {reach}")?;
    if state.holders.is_empty() {
        writeln!(text, "held by:  none")?;
    }
    for holder in &state.holders {
        write_holder(text, holder)?;
    }
    writeln!(text, "waiting:  {}", state.waiter_count)?;
    for (ahead, waiter) in state.waiters.iter().enumerate() {
        write_waiter(text, ahead, waiter)?;
    }
    if state.waiter_count > state.waiters.len() {
        writeln!(text, "  … and {} more", state.waiter_count - state.waiters.len())?;
    }
    match &state.cell {
        Some(cell) => writeln!(text, "cell:     {}", describe_cell(cell)),
        None => Ok(()),
    }
}

fn write_holder(text: &mut String, holder: &HolderState) -> std::fmt::Result {
    writeln!(text, "held by:  {}", plain(&holder.label))?;
    writeln!(text, "  mode:   {}", mode(holder.mode))?;
    let token = holder.token.map(|token| token.to_string());
    writeln!(text, "  token:  {}", token.as_deref().unwrap_or(UNKNOWN))?;
    let since = holder.held_for.map(|held_for| {
        format!("{} ({})", rfc3339(wall_time().saturating_sub(held_for)), durations::show(held_for))
    });
    writeln!(text, "  since:  {}", since.as_deref().unwrap_or(UNKNOWN))?;
    writeln!(text, "  ttl:    {}", describe_lease(holder))?;
    for (key, value) in holder.meta.iter() {
        writeln!(text, "  meta:   {}={}", plain(key), plain(value))?;
    }
    Ok(())
}

/// Returns `30s, 21s left`, as far as it is known.
fn describe_lease(holder: &HolderState) -> String {
    let left = match holder.expires_in {
        None => return UNKNOWN.to_owned(),
        Some(HolderState::NO_EXPIRY) => return "no expiry".to_owned(),
        Some(left) => format!("{} left", durations::show(left)),
    };
    match holder.ttl {
        Some(ttl) => format!("{}, {left}", durations::show_lease(ttl)),
        None => left,
    }
}

fn write_waiter(text: &mut String, ahead: usize, waiter: &WaiterState) -> std::fmt::Result {
    let time = waiter.waiting_for.map(|time| format!(", for {}", durations::show(time))).unwrap_or_default();
    writeln!(text, "  {}. {}, {}{time}", ahead + 1, plain(&waiter.label), mode(waiter.mode))
}

/// Returns size, token and text of a cell.
pub(super) fn describe_cell(cell: &Cell) -> String {
    let size = format!("{} bytes, written with token {}", cell.bytes.len(), cell.token);
    match std::str::from_utf8(&cell.bytes) {
        Ok(text) if text.chars().count() <= CELL_TEXT => format!("{size}: {}", plain(text)),
        Ok(text) => format!("{size}: {}…", plain(&text.chars().take(CELL_TEXT).collect::<String>())),
        Err(_) => size,
    }
}

#[cfg(test)]
mod tests {
    use fencepost::{FencingToken, Mode};

    use super::*;
    use crate::sample;

    #[test]
    fn a_lock_is_shown_with_everything_that_is_known() {
        let mut holder = sample::holder("web", 7, Mode::Exclusive);
        holder.meta = [("build".to_owned(), "42".to_owned())].into();
        let mut state = sample::lock("backup", [holder]);
        state.waiters = vec![sample::waiter("cron", Mode::Shared, 5)];
        state.waiter_count = 3;
        state.cell = Some(Cell { token: FencingToken::new(6), bytes: (*b"done\n").into() });
        let text = describe(&state, "this host (sqlite:/x)");
        for line in [
            "lock:     backup",
            "scope:    this host (sqlite:/x)",
            "held by:  web",
            "  token:  7",
            "  ttl:    30s, 21s left",
            "  meta:   build=42",
            "waiting:  3",
            "  1. cron, shared, for 5s",
            "  … and 2 more",
            "cell:     5 bytes, written with token 6: done\\n",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is missing in\n{text}");
        }
    }
}
