//! Durations in the notation of the command line: `30`, `500ms`, `1h30m`.

use std::fmt;
use std::time::Duration;

use fencepost::HolderState;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The units, largest first, in nanoseconds.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400 * NANOS_PER_SECOND),
    ("h", 3_600 * NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("s", NANOS_PER_SECOND),
    ("ms", NANOS_PER_SECOND / 1000),
];

/// The reason why a text is not a duration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    Empty,
    Zero,
    Negative,
    NotANumber,
    UnknownUnit(String),
    MissingUnit,
    OutOfOrder(&'static str),
    TooLong,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty")?,
            Self::Zero => return f.write_str("it must be more than zero"),
            Self::Negative => return f.write_str("it must not be negative"),
            Self::NotANumber => f.write_str("every part must begin with a number")?,
            Self::UnknownUnit(unit) => write!(f, "there is no unit {unit:?}, only d, h, m, s and ms")?,
            Self::MissingUnit => f.write_str("its last number has no unit")?,
            Self::OutOfOrder(unit) => write!(f, "{unit:?} must follow a larger unit")?,
            Self::TooLong => return f.write_str("it is too long"),
        }
        f.write_str("; write 30 (seconds), 500ms, 5m or 1h30m")
    }
}

impl std::error::Error for Malformed {}

/// Parses a duration that is not zero.
pub(crate) fn parse_some(text: &str) -> Result<Duration, Malformed> {
    parse(text).and_then(|duration| if duration.is_zero() { Err(Malformed::Zero) } else { Ok(duration) })
}

/// Parses a duration. A bare number is seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, Malformed> {
    if text.is_empty() {
        return Err(Malformed::Empty);
    }
    if let Some(rest) = text.strip_prefix('-')
        && rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')
    {
        return Err(Malformed::Negative);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return amount(text, NANOS_PER_SECOND).map(Duration::from_nanos);
    }
    let (mut total, mut rest, mut units) = (0u64, text, UNITS.as_slice());
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.');
        if number.is_empty() {
            return Err(Malformed::NotANumber);
        }
        let (unit, after) = split(after, |c| !c.is_ascii_digit() && c != '.');
        let nanos = unit_nanos(unit, &mut units)?;
        total = total.checked_add(amount(number, nanos)?).ok_or(Malformed::TooLong)?;
        rest = after;
    }
    Ok(Duration::from_nanos(total))
}

/// Splits after the leading characters that `belongs` accepts.
fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

/// Finds the unit among those that may follow, and leaves only the smaller ones.
fn unit_nanos(unit: &str, units: &mut &[(&'static str, u64)]) -> Result<u64, Malformed> {
    if unit.is_empty() {
        return Err(Malformed::MissingUnit);
    }
    if let Some(at) = units.iter().position(|(name, _)| *name == unit) {
        let nanos = units[at].1;
        *units = &units[at + 1..];
        return Ok(nanos);
    }
    Err(match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((name, _)) => Malformed::OutOfOrder(name),
        None => Malformed::UnknownUnit(unit.to_owned()),
    })
}

/// Returns a decimal number of units in nanoseconds.
fn amount(number: &str, unit: u64) -> Result<u64, Malformed> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(Malformed::NotANumber);
    }
    let mut total = 0u64;
    for digit in whole.bytes() {
        total = total
            .checked_mul(10)
            .and_then(|t| t.checked_add((digit - b'0').into()))
            .ok_or(Malformed::TooLong)?;
    }
    let mut total = total.checked_mul(unit).ok_or(Malformed::TooLong)?;
    let mut place = unit;
    for digit in fraction.bytes() {
        place /= 10;
        total = total.checked_add(place * u64::from(digit - b'0')).ok_or(Malformed::TooLong)?;
    }
    Ok(total)
}

/// Formats a duration with its two largest units: `2m10s`.
pub(crate) fn show(duration: Duration) -> String {
    if duration.is_zero() || duration >= Duration::from_secs(1) {
        return parts(duration.as_secs()).into_iter().take(2).collect();
    }
    format!("{}ms", duration.as_millis().max(1))
}

/// Returns a lease or the rest of one; `None` if it does not expire.
pub(crate) fn finite(lease: Duration) -> Option<Duration> {
    (lease != HolderState::NO_EXPIRY).then_some(lease)
}

/// Formats a lease or the rest of one.
pub(crate) fn show_lease(lease: Duration) -> String {
    finite(lease).map_or_else(|| "no expiry".into(), show)
}

/// Formats a duration exactly, in the notation that [`parse`] reads.
pub(crate) fn exact(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        return parts(duration.as_secs()).concat();
    }
    if duration < Duration::from_secs(1) && duration.subsec_nanos().is_multiple_of(1_000_000) {
        return format!("{}ms", duration.subsec_millis());
    }
    format!("{}s", duration.as_secs_f64())
}

/// Formats a duration to a tenth of a second, rounded down: `11.9s`. From a minute on to a second.
pub(crate) fn tenths(duration: Duration) -> String {
    match duration.subsec_millis() / 100 {
        _ if duration < Duration::from_secs(1) => show(duration),
        tenths if tenths > 0 && duration.as_secs() < 60 => format!("{}.{tenths}s", duration.as_secs()),
        _ => parts(duration.as_secs()).concat(),
    }
}

/// Returns the parts, starting with the largest unit that fits, without trailing zeros.
fn parts(seconds: u64) -> Vec<String> {
    let mut left = seconds;
    let mut parts = Vec::new();
    for (unit, nanos) in &UNITS[..4] {
        let size = nanos / NANOS_PER_SECOND;
        let count = left / size;
        left %= size;
        if count > 0 || *unit == "s" && seconds == 0 {
            parts.push(format!("{count}{unit}"));
        } else if !parts.is_empty() && left > 0 {
            parts.push(String::new());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_seconds() {
        assert_eq!(parse("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        assert_eq!(parse("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(parse(".5"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn units_are_read_and_added() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse("1d"), Ok(Duration::from_secs(86_400)));
        assert_eq!(parse("1m0.5s"), Ok(Duration::from_millis(60_500)));
    }

    #[test]
    fn a_malformed_duration_is_rejected_with_the_reason() {
        assert_eq!(parse(""), Err(Malformed::Empty));
        assert_eq!(parse("s"), Err(Malformed::NotANumber));
        assert_eq!(parse("-5"), Err(Malformed::Negative));
        assert_eq!(parse("-.5s"), Err(Malformed::Negative));
        assert_eq!(parse("--wait"), Err(Malformed::NotANumber));
        assert_eq!(parse("5 m"), Err(Malformed::UnknownUnit(" m".into())));
        assert_eq!(parse("5min"), Err(Malformed::UnknownUnit("min".into())));
        assert_eq!(parse("1h30"), Err(Malformed::MissingUnit));
        assert_eq!(parse("30m1h"), Err(Malformed::OutOfOrder("h")));
        assert_eq!(parse("1m1m"), Err(Malformed::OutOfOrder("m")));
        assert_eq!(parse("1.2.3"), Err(Malformed::NotANumber));
        assert_eq!(parse("99999999999999999999"), Err(Malformed::TooLong));
        assert_eq!(parse("999999999999d"), Err(Malformed::TooLong));
        assert!(parse("5min").unwrap_err().to_string().contains("write 30 (seconds)"));
    }

    #[test]
    fn two_units_are_shown() {
        let seconds = |seconds| show(Duration::from_secs(seconds));
        assert_eq!(seconds(0), "0s");
        assert_eq!(seconds(21), "21s");
        assert_eq!(seconds(130), "2m10s");
        assert_eq!(seconds(3600), "1h");
        assert_eq!(seconds(5425), "1h30m");
        assert_eq!(seconds(2 * 86_400 + 59), "2d");
        assert_eq!(show(Duration::from_millis(250)), "250ms");
        assert_eq!(show(Duration::from_micros(3)), "1ms");
        assert_eq!(show(Duration::from_millis(21_900)), "21s");
    }

    #[test]
    fn tenths_are_rounded_down() {
        let millis = |millis| tenths(Duration::from_millis(millis));
        assert_eq!(millis(11_999), "11.9s");
        assert_eq!(millis(3_333), "3.3s");
        assert_eq!(millis(10_050), "10s");
        assert_eq!(millis(333), "333ms");
        assert_eq!(millis(0), "0s");
        assert_eq!(millis(83_333), "1m23s");
    }

    #[test]
    fn a_lease_may_have_no_expiry() {
        assert_eq!(show_lease(Duration::from_secs(21)), "21s");
        assert_eq!(show_lease(HolderState::NO_EXPIRY), "no expiry");
    }

    #[test]
    fn an_exact_duration_is_parsed_back() {
        for millis in [0, 1, 250, 1000, 1500, 30_000, 90_000, 86_461_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&exact(duration)), Ok(duration), "{}", exact(duration));
        }
        assert_eq!(exact(Duration::from_millis(999)), "999ms");
    }
}
