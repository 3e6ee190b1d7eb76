//! One change, as `watch --json` prints it.

use serde::Serialize;

use super::{CellText, Holder, lease_millis};

/// A change of a lock, and the time at which it was seen.
#[derive(Serialize)]
pub(crate) struct Change<'a> {
    time: String,
    #[serde(flatten)]
    event: ChangeEvent<'a>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum ChangeEvent<'a> {
    Held {
        lock: &'a str,
        holder: Holder<'a>,
    },
    Ended {
        lock: &'a str,
        /// As it was last seen.
        holder: Holder<'a>,
        lease_left_ms: Option<u64>,
    },
    Line {
        lock: &'a str,
        waiters: usize,
    },
    Cell {
        lock: &'a str,
        cell: Option<CellText<'a>>,
    },
}

impl<'a> Change<'a> {
    /// Returns `None` for kinds of changes that have no JSON form yet.
    pub(crate) fn new(change: &'a fencepost::Change, time: String) -> Option<Self> {
        use fencepost::Change;

        let event = match change {
            Change::Held { name, holder } => ChangeEvent::Held { lock: name.as_str(), holder: holder.into() },
            Change::Ended { name, holder, lease_left } => ChangeEvent::Ended {
                lock: name.as_str(),
                holder: holder.into(),
                lease_left_ms: lease_millis(*lease_left),
            },
            Change::Waiters { name, count } => ChangeEvent::Line { lock: name.as_str(), waiters: *count },
            Change::Cell { name, cell } => {
                ChangeEvent::Cell { lock: name.as_str(), cell: cell.as_ref().map(CellText::from) }
            }
            _ => return None,
        };
        Some(Self { time, event })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost::{Cell, FencingToken, LockName, Mode};

    use super::*;
    use crate::sample;

    fn text(change: &fencepost::Change) -> String {
        super::super::line(&Change::new(change, "2026-05-09T07:29:33.000Z".into()).unwrap())
    }

    #[test]
    fn the_shape_is_stable() {
        let name = LockName::new("a").unwrap();
        let holder = sample::holder("web", 7, Mode::Exclusive);
        let as_json = r#"{"token":7,"mode":"exclusive","label":"web","meta":{},"held_for_ms":130000,"ttl_ms":30000,"ttl_left_ms":21000}"#;
        let start = r#"{"time":"2026-05-09T07:29:33.000Z","event""#;
        let held = fencepost::Change::Held { name: name.clone(), holder: holder.clone() };
        assert_eq!(text(&held), format!(r#"{start}:"held","lock":"a","holder":{as_json}}}"#));
        let lease_left = Duration::from_secs(20);
        let ended = fencepost::Change::Ended { name: name.clone(), holder, lease_left };
        assert_eq!(
            text(&ended),
            format!(r#"{start}:"ended","lock":"a","holder":{as_json},"lease_left_ms":20000}}"#)
        );
        let line = fencepost::Change::Waiters { name: name.clone(), count: 3 };
        assert_eq!(text(&line), format!(r#"{start}:"line","lock":"a","waiters":3}}"#));
        let cell = Some(Cell { token: FencingToken::new(7), bytes: (*b"hi").into() });
        let cell = fencepost::Change::Cell { name, cell };
        assert_eq!(
            text(&cell),
            format!(r#"{start}:"cell","lock":"a","cell":{{"token":7,"bytes":2,"text":"hi"}}}}"#)
        );
    }
}
