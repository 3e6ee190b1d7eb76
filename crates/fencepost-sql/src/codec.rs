//! Converts modes, wants, times, names and meta to and from columns. Names have no control characters, so one per text line is
//! unambiguous.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::clock::StorageTime;
use fencepost_core::{Keep, LockName, Mode, Result, Rule, Want};

/// Returns the number of a mode: 0 for exclusive, -1 for shared, n for a semaphore of n permits.
pub fn mode_number(mode: Mode) -> i64 {
    match mode {
        Mode::Shared => -1,
        Mode::Semaphore { permits } => i64::from(permits),
        _ => 0,
    }
}

/// Returns the mode with this number.
pub fn mode_of(number: i64) -> Mode {
    match u32::try_from(number) {
        Ok(0) => Mode::Exclusive,
        Ok(permits) => Mode::Semaphore { permits },
        Err(_) => Mode::Shared,
    }
}

/// Returns the number of a rule: 0 for all of the wants, 1 for any.
pub fn rule_number(rule: Rule) -> i64 {
    match rule {
        Rule::All => 0,
        Rule::Any => 1,
    }
}

/// Returns the rule with this number.
pub fn rule_of(number: i64) -> Rule {
    if number == 1 { Rule::Any } else { Rule::All }
}

/// Returns how long a cell is kept as two numbers: 0 while held, 1 for this many nanoseconds, 2 always.
pub fn keep_numbers(keep: Keep) -> (i64, i64) {
    match keep {
        Keep::WhileHeld => (0, 0),
        Keep::For(duration) => (1, nanos(duration)),
        Keep::Always => (2, 0),
    }
}

/// Returns how long a cell with these numbers is kept.
pub fn keep_of(number: i64, keep_ns: i64) -> Keep {
    match number {
        1 => Keep::For(duration(keep_ns)),
        2 => Keep::Always,
        _ => Keep::WhileHeld,
    }
}

/// Returns a duration in nanoseconds.
pub fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns a duration of this many nanoseconds.
pub fn duration(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// Returns a time as it is stored, on the clock that the row names.
pub fn stamp(time: StorageTime) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the time with this stamp.
pub fn time(stamp: i64) -> StorageTime {
    StorageTime::from_nanos(u64::try_from(stamp).unwrap_or(0))
}

/// Returns names as text, one per line.
pub fn names_text(names: &[LockName]) -> String {
    names.iter().map(LockName::as_str).collect::<Vec<_>>().join("\n")
}

/// Returns the names in a text.
///
/// # Errors
/// If one of them is not a valid name.
pub fn names_of(text: &str) -> Result<Arc<[LockName]>> {
    text.lines().map(LockName::new).collect()
}

/// Returns wants as text: the mode's number, a space and the name, one per line.
pub fn wants_text(wants: &[Want]) -> String {
    let lines = wants.iter().map(|want| format!("{} {}", mode_number(want.mode), want.name));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the wants in a text.
///
/// # Errors
/// If one of the names is not valid.
pub fn wants_of(text: &str) -> Result<Vec<Want>> {
    let want = |line: &str| {
        let (mode, name) = line.split_once(' ').unwrap_or(("0", line));
        Ok(Want { name: LockName::new(name)?, mode: mode_of(mode.parse().unwrap_or(0)) })
    };
    text.lines().map(want).collect()
}

/// Encodes every key and value as its length and text: `4:team3:ops`.
pub fn meta_text(meta: &[(String, String)]) -> String {
    let texts = meta.iter().flat_map(|(key, value)| [key, value]);
    texts.map(|text| format!("{}:{text}", text.len())).collect::<Vec<_>>().concat()
}

/// Returns the keys and values in a text; those from the first malformed one on are left out.
pub fn meta_of(text: &str) -> Arc<[(String, String)]> {
    let mut rest = text;
    let mut next = || {
        let (length, tail) = rest.split_once(':')?;
        let (text, tail) = tail.split_at_checked(length.parse().ok()?)?;
        rest = tail;
        Some(text.to_owned())
    };
    std::iter::from_fn(|| Some((next()?, next()?))).collect()
}

/// Returns a number as databases store it; none that is assigned is larger than [`i64::MAX`].
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a stored number.
pub fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        let name = |text: &str| LockName::new(text).unwrap();
        let wants = [
            Want { name: name("a b"), mode: Mode::Semaphore { permits: 3 } },
            Want { name: name("0 c"), mode: Mode::Shared },
            Want { name: name("é"), mode: Mode::Exclusive },
        ];
        assert_eq!(wants_of(&wants_text(&wants)).unwrap(), wants);
        let names = [name("x"), name(" y")];
        assert_eq!(*names_of(&names_text(&names)).unwrap(), names);
        let meta = [("k".to_owned(), "v:1\n2:".to_owned()), ("é".to_owned(), String::new())];
        assert_eq!(*meta_of(&meta_text(&meta)), meta);
        assert_eq!(*meta_of("9:garbage"), []);
        for keep in [Keep::WhileHeld, Keep::Always, Keep::For(Duration::from_secs(9))] {
            let (number, ns) = keep_numbers(keep);
            assert_eq!(keep_of(number, ns), keep);
        }
    }
}
