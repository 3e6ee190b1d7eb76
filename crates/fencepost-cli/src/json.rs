//! The JSON form of locks, of their changes and of findings, for programs. Names are stable; new ones may be added.

mod change;
mod examination;

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost::{Cell, HolderState, LockState, Mode, Scope, WaiterState};
use serde::Serialize;

pub(crate) use self::change::Change;
pub(crate) use self::examination::Examination;
use crate::durations::finite;
use crate::words::is_hostile;

/// A lock as `list --json` and `show --json` print it.
#[derive(Serialize)]
pub(crate) struct Lock<'a> {
    name: &'a str,
    scope: &'static str,
    holders: Vec<Holder<'a>>,
    waiters: usize,
    line: Vec<Waiter<'a>>,
    cell: Option<CellText<'a>>,
}

/// One holder.
#[derive(Debug, Serialize)]
pub(crate) struct Holder<'a> {
    token: u64,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
    label: &'a str,
    meta: BTreeMap<&'a str, &'a str>,
    held_for_ms: u64,
    /// `null` if the lease never ends, as the rest of it.
    ttl_ms: Option<u64>,
    ttl_left_ms: Option<u64>,
}

#[derive(Serialize)]
struct Waiter<'a> {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
    label: &'a str,
    waiting_for_ms: u64,
}

#[derive(Serialize)]
struct CellText<'a> {
    token: u64,
    bytes: usize,
    /// The value, if it is text.
    text: Option<&'a str>,
}

impl<'a> Lock<'a> {
    pub(crate) fn new(state: &'a LockState, scope: Scope) -> Self {
        Self {
            name: state.name.as_str(),
            scope: match scope {
                Scope::Process => "process",
                Scope::Host => "host",
                Scope::Fleet => "fleet",
                _ => "unknown",
            },
            holders: state.holders.iter().map(Holder::from).collect(),
            waiters: state.waiters,
            line: state.line.iter().map(Waiter::from).collect(),
            cell: state.cell.as_ref().map(CellText::from),
        }
    }
}

impl<'a> From<&'a HolderState> for Holder<'a> {
    fn from(holder: &'a HolderState) -> Self {
        let (mode, slots) = mode(holder.mode);
        Self {
            token: holder.token.get(),
            mode,
            slots,
            label: &holder.label,
            meta: holder.meta.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
            held_for_ms: millis(holder.held_for),
            ttl_ms: lease_millis(holder.ttl),
            ttl_left_ms: lease_millis(holder.expires_in),
        }
    }
}

impl<'a> From<&'a WaiterState> for Waiter<'a> {
    fn from(waiter: &'a WaiterState) -> Self {
        let (mode, slots) = mode(waiter.mode);
        Self { mode, slots, label: &waiter.label, waiting_for_ms: millis(waiter.waiting_for) }
    }
}

impl<'a> From<&'a Cell> for CellText<'a> {
    fn from(cell: &'a Cell) -> Self {
        Self { token: cell.token.get(), bytes: cell.bytes.len(), text: std::str::from_utf8(&cell.bytes).ok() }
    }
}

/// One value on one line. What a terminal would act on is escaped, also where JSON does not ask for it: it can only stand
/// inside of strings.
pub(crate) fn line(value: &impl Serialize) -> String {
    let escaped = |c: char| {
        if is_hostile(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
    };
    serde_json::to_string(value).unwrap_or_default().chars().map(escaped).collect()
}

fn mode(mode: Mode) -> (&'static str, Option<u32>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Slots { of } => ("semaphore", Some(of)),
    }
}

/// A lease or the rest of one.
fn lease_millis(lease: Duration) -> Option<u64> {
    finite(lease).map(millis)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use fencepost::{FencingToken, LockName};

    use super::*;

    #[test]
    fn a_value_is_one_line_that_does_nothing_to_a_terminal() {
        let text = "a\n\u{1b}[2J\u{9b}\u{7f}\u{202e}é";
        let line = line(&text);
        assert_eq!(line, r#""a\n\u001b[2J\u009b\u007f\u202eé""#);
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }

    #[test]
    fn tokens_are_numbers_and_the_shape_is_stable() {
        let state = LockState {
            name: LockName::new("a/b").unwrap(),
            holders: vec![HolderState {
                token: FencingToken::new(1_700_000_000_000_001),
                mode: Mode::Slots { of: 3 },
                label: "web".into(),
                meta: [("build".to_owned(), "42".to_owned())].into(),
                ttl: Duration::from_secs(30),
                expires_in: Duration::from_millis(21_500),
                held_for: Duration::from_secs(130),
            }],
            line: vec![WaiterState {
                mode: Mode::Shared,
                label: "cron".into(),
                waiting_for: Duration::from_millis(5),
            }],
            waiters: 1,
            cell: Some(Cell { token: FencingToken::new(7), bytes: (*b"hi").into() }),
        };
        let text = serde_json::to_string(&Lock::new(&state, Scope::Host)).unwrap();
        assert_eq!(
            text,
            r#"{"name":"a/b","scope":"host","holders":[{"token":1700000000000001,"mode":"semaphore","slots":3,"#
                .to_owned()
                + r#""label":"web","meta":{"build":"42"},"held_for_ms":130000,"ttl_ms":30000,"ttl_left_ms":21500}],"#
                + r#""waiters":1,"line":[{"mode":"shared","label":"cron","waiting_for_ms":5}],"#
                + r#""cell":{"token":7,"bytes":2,"text":"hi"}}"#
        );
    }
}
