//! Durations in messages: `100ms`, `1m30s`, `24h`.

use std::time::Duration;

/// Units, in milliseconds.
const UNITS: [(u128, &str); 4] = [(3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];

/// Returns the duration in hours, minutes, seconds and milliseconds, without those that are zero.
pub fn duration_text(duration: Duration) -> String {
    let mut left = duration.as_millis();
    let mut part = |(size, unit): (u128, &str)| {
        let count = left / size;
        left %= size;
        (count > 0).then(|| format!("{count}{unit}"))
    };
    let text: String = UNITS.into_iter().filter_map(&mut part).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_units_that_are_not_zero_are_written() {
        for (millis, text) in [
            (0, "0s"),
            (100, "100ms"),
            (1_500, "1s500ms"),
            (30_000, "30s"),
            (90_000, "1m30s"),
            (86_400_000, "24h"),
        ] {
            assert_eq!(duration_text(Duration::from_millis(millis)), text);
        }
    }
}
