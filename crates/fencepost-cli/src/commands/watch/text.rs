//! One change, as `watch` prints it on a terminal.

use std::time::Duration;

use anstyle::Style;
use fencepost::{Change, HolderState};

use super::super::list::command;
use super::super::show::describe_cell;
use crate::colors::{GOOD, HEADER, HINT, Palette, WARNING};
use crate::durations::show;
use crate::words::{mode, plain};

/// Returns `2026-05-09T07:29:33Z  held   backup  web-3:4711:deploy, token 7, exclusive: ./backup.sh`; `None` for kinds
/// of changes that have no text yet.
pub(super) fn line(change: &Change, time: &str, palette: Palette) -> Option<String> {
    let (event, style, name, text): (&str, Style, _, _) = match change {
        Change::Held { name, holder } => ("held", GOOD, name, held(holder)),
        Change::Ended { name, holder, lease_left } => ("ended", WARNING, name, ended(holder, *lease_left)),
        Change::Waiters { name, count } => ("queue", HINT, name, format!("{count} waiting")),
        Change::Cell { name, cell } => {
            let text = cell.as_ref().map_or_else(|| "removed".to_owned(), describe_cell);
            ("cell", HEADER, name, text)
        }
        _ => return None,
    };
    let event = palette.paint(style, &format!("{event:<5}"));
    Some(format!("{time}  {event}  {}  {text}", plain(name.as_str())))
}

fn held(holder: &HolderState) -> String {
    let command = command(holder).map(|command| format!(": {}", plain(command)));
    format!("{}, {}{}", in_brief(holder), mode(holder.mode), command.unwrap_or_default())
}

fn ended(holder: &HolderState, lease_left: Duration) -> String {
    let held_for = holder.held_for.map(|held_for| format!(", held for {}", show(held_for)));
    // If something was left of the lease, it cannot have expired.
    let why = if lease_left.is_zero() { "released, broken or expired" } else { "released or broken" };
    format!("{}{}: {why}", in_brief(holder), held_for.unwrap_or_default())
}

fn in_brief(holder: &HolderState) -> String {
    let token = holder.token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
    format!("{}, {token}", plain(&holder.label))
}

#[cfg(test)]
mod tests {
    use fencepost::{Cell, FencingToken, LockName, Mode};

    use super::*;
    use crate::sample;

    #[test]
    fn every_kind_of_change_has_a_line() {
        let name = LockName::new("jobs/a").unwrap();
        let mut holder = sample::holder("web\u{1b}[2J", 7, Mode::Exclusive);
        holder.meta = [("command".to_owned(), "./backup.sh".to_owned())].into();
        let text = |change| line(&change, "T", Palette::PLAIN).unwrap();
        assert_eq!(
            text(Change::Held { name: name.clone(), holder: holder.clone() }),
            "T  held   jobs/a  web\\u{1b}[2J, token 7, exclusive: ./backup.sh"
        );
        let ended = |lease_left| Change::Ended { name: name.clone(), holder: holder.clone(), lease_left };
        assert_eq!(
            text(ended(Duration::from_secs(20))),
            "T  ended  jobs/a  web\\u{1b}[2J, token 7, held for 2m10s: released or broken"
        );
        assert!(text(ended(Duration::ZERO)).ends_with(": released, broken or expired"));
        assert_eq!(text(Change::Waiters { name: name.clone(), count: 3 }), "T  queue  jobs/a  3 waiting");
        let cell = Some(Cell { token: FencingToken::new(7), bytes: (*b"hi").into() });
        assert_eq!(
            text(Change::Cell { name: name.clone(), cell }),
            "T  cell   jobs/a  2 bytes, written with token 7: hi"
        );
        let gone = line(&Change::Cell { name, cell: None }, "T", Palette::COLORED).unwrap();
        assert_eq!(gone, "T  \u{1b}[1mcell \u{1b}[0m  jobs/a  removed");
    }
}
