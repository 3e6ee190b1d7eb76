//! `fencepost show`: one lock, its holders, its line and its cell.

use std::fmt::Write;

use fencepost::clock::wall_time;
use fencepost::{Cell, HolderState, LockState, Result, WaiterState};

use super::{printed, reach};
use crate::args::Show;
use crate::durations;
use crate::exit::Exit;
use crate::output;
use crate::timestamps::rfc3339;
use crate::words::{mode, plain};
use crate::{json, storage};

/// How much of a cell's text is shown.
const CELL_TEXT: usize = 200;

pub(crate) async fn show(args: &Show) -> Result<Exit> {
    let client = storage::connect_existing(args.storage.url.as_deref()).await?;
    let state = client.inspect(&args.name).await?;
    let text = if args.json {
        json::line(&json::Lock::new(&state, client.info().scope)) + "\n"
    } else {
        describe(&state, &reach(&client))
    };
    client.close().await;
    printed(output::results(text))
}

/// The card of a lock: everything that is known about it.
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
        writeln!(text, "held by:  nobody")?;
    }
    for holder in &state.holders {
        write_holder(text, holder)?;
    }
    writeln!(text, "waiting:  {}", state.waiters)?;
    for (place, waiter) in state.line.iter().enumerate() {
        write_waiter(text, place, waiter)?;
    }
    if state.waiters > state.line.len() {
        writeln!(text, "  … and {} more", state.waiters - state.line.len())?;
    }
    match &state.cell {
        Some(cell) => writeln!(text, "cell:     {}", describe_cell(cell)),
        None => Ok(()),
    }
}

fn write_holder(text: &mut String, holder: &HolderState) -> std::fmt::Result {
    let since = rfc3339(wall_time().saturating_sub(holder.held_for));
    writeln!(text, "held by:  {}", plain(&holder.label))?;
    writeln!(text, "  mode:   {}", mode(holder.mode))?;
    writeln!(text, "  token:  {}", holder.token)?;
    writeln!(text, "  since:  {since} ({})", durations::show(holder.held_for))?;
    match durations::finite(holder.expires_in) {
        Some(left) => {
            writeln!(
                text,
                "  ttl:    {}, {} left",
                durations::show_lease(holder.ttl),
                durations::show(left)
            )?;
        }
        None => writeln!(text, "  ttl:    no expiry")?,
    }
    for (key, value) in holder.meta.iter() {
        writeln!(text, "  meta:   {}={}", plain(key), plain(value))?;
    }
    Ok(())
}

fn write_waiter(text: &mut String, place: usize, waiter: &WaiterState) -> std::fmt::Result {
    let (label, time) = (plain(&waiter.label), durations::show(waiter.waiting_for));
    writeln!(text, "  {}. {label}, {}, for {time}", place + 1, mode(waiter.mode))
}

fn describe_cell(cell: &Cell) -> String {
    let size = format!("{} bytes, written with token {}", cell.bytes.len(), cell.token);
    match std::str::from_utf8(&cell.bytes) {
        Ok(text) if text.chars().count() <= CELL_TEXT => format!("{size}: {}", plain(text)),
        Ok(text) => format!("{size}: {}…", plain(&text.chars().take(CELL_TEXT).collect::<String>())),
        Err(_) => size,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost::{FencingToken, LockName, Mode};

    use super::*;

    #[test]
    fn a_lock_is_shown_with_everything_that_is_known() {
        let state = LockState {
            name: LockName::new("backup").unwrap(),
            holders: vec![HolderState {
                token: FencingToken::new(7),
                mode: Mode::Exclusive,
                label: "web".into(),
                meta: [("build".to_owned(), "42".to_owned())].into(),
                ttl: Duration::from_secs(30),
                expires_in: Duration::from_secs(21),
                held_for: Duration::from_secs(130),
            }],
            line: vec![WaiterState {
                mode: Mode::Shared,
                label: "cron".into(),
                waiting_for: Duration::from_secs(5),
            }],
            waiters: 3,
            cell: Some(Cell { token: FencingToken::new(6), bytes: (*b"done\n").into() }),
        };
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
