//! The JSON form of results, for programs. Names of fields are stable; new ones may be added.

mod change;
mod diagnosis;
mod outcome;

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost::{Cell, FencingToken, HolderState, LockState, Mode, Scope, WaiterState};
use serde::Serialize;

pub(crate) use self::change::Change;
pub(crate) use self::diagnosis::Diagnosis;
pub(crate) use self::outcome::{BreakResult, Held, Rights, Schema, Swept};
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
    /// `null` if the holder is not a Fencepost client; likewise `held_for_ms`.
    token: Option<u64>,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
    label: &'a str,
    meta: BTreeMap<&'a str, &'a str>,
    held_for_ms: Option<u64>,
    /// `null` if the lease never ends or is not known; likewise `ttl_left_ms`.
    ttl_ms: Option<u64>,
    ttl_left_ms: Option<u64>,
}

#[derive(Serialize)]
struct Waiter<'a> {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
    label: &'a str,
    waiting_for_ms: Option<u64>,
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
            waiters: state.waiter_count,
            line: state.waiters.iter().map(Waiter::from).collect(),
            cell: state.cell.as_ref().map(CellText::from),
        }
    }
}

impl<'a> From<&'a HolderState> for Holder<'a> {
    fn from(holder: &'a HolderState) -> Self {
        let (mode, slots) = mode(holder.mode);
        Self {
            token: holder.token.map(FencingToken::get),
            mode,
            slots,
            label: &holder.label,
            meta: holder.meta.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
            held_for_ms: holder.held_for.map(millis),
            ttl_ms: holder.ttl.and_then(lease_millis),
            ttl_left_ms: holder.expires_in.and_then(lease_millis),
        }
    }
}

impl<'a> From<&'a WaiterState> for Waiter<'a> {
    fn from(waiter: &'a WaiterState) -> Self {
        let (mode, slots) = mode(waiter.mode);
        Self { mode, slots, label: &waiter.label, waiting_for_ms: waiter.waiting_for.map(millis) }
    }
}

impl<'a> From<&'a Cell> for CellText<'a> {
    fn from(cell: &'a Cell) -> Self {
        Self { token: cell.token.get(), bytes: cell.bytes.len(), text: std::str::from_utf8(&cell.bytes).ok() }
    }
}

/// Returns a value on one line. Control characters that a terminal would act on are escaped even where JSON does not
/// require it: they can only occur inside of strings.
pub(crate) fn line(value: &impl Serialize) -> String {
    let escaped = |c: char| {
        if is_hostile(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
    };
    serde_json::to_string(value).unwrap_or_default().chars().map(escaped).collect()
}

fn mode(mode: Mode) -> (&'static str, Option<u32>) {
    match mode {
        Mode::Shared => ("shared", None),
        Mode::Semaphore { permits } => ("semaphore", Some(permits)),
        _ => ("exclusive", None),
    }
}

/// Returns `None` for a lease that never ends.
fn lease_millis(lease: Duration) -> Option<u64> {
    finite(lease).map(millis)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_value_is_one_line_without_control_characters() {
        let text = "a\n\u{1b}[2J\u{9b}\u{7f}\u{202e}é";
        let line = line(&text);
        assert_eq!(line, r#""a\n\u001b[2J\u009b\u007f\u202eé""#);
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }

    #[test]
    fn tokens_are_numbers_and_the_shape_is_stable() {
        let mut holder = sample::holder("web", 1_700_000_000_000_001, Mode::Semaphore { permits: 3 });
        holder.meta = [("build".to_owned(), "42".to_owned())].into();
        let mut state = sample::lock("a/b", [holder, HolderState::new(Mode::Exclusive, "foreign")]);
        state.waiters = vec![sample::waiter("cron", Mode::Shared, 5)];
        state.waiter_count = 1;
        state.cell = Some(Cell { token: FencingToken::new(7), bytes: (*b"hi").into() });
        let text = serde_json::to_string(&Lock::new(&state, Scope::Host)).unwrap();
        assert_eq!(
            text,
            r#"{"name":"a/b","scope":"host","holders":[{"token":1700000000000001,"mode":"semaphore","slots":3,"#
                .to_owned()
                + r#""label":"web","meta":{"build":"42"},"held_for_ms":130000,"ttl_ms":30000,"ttl_left_ms":21000},"#
                + r#"{"token":null,"mode":"exclusive","label":"foreign","meta":{},"held_for_ms":null,"ttl_ms":null,"ttl_left_ms":null}],"#
                + r#""waiters":1,"line":[{"mode":"shared","label":"cron","waiting_for_ms":5000}],"#
                + r#""cell":{"token":7,"bytes":2,"text":"hi"}}"#
        );
    }
}
