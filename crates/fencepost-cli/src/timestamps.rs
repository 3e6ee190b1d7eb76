//! Timestamps in UTC: RFC 3339, and a short form for tables.

use std::time::Duration;

/// Formats the time this long after 1970 as `2026-05-09T07:29:33Z`.
pub(crate) fn rfc3339(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Formats it with milliseconds: `2026-05-09T07:29:33.042Z`.
pub(crate) fn rfc3339_millis(since_1970: Duration) -> String {
    format!("{}.{:03}Z", rfc3339(since_1970).trim_end_matches('Z'), since_1970.subsec_millis())
}

/// Formats a past time for a table: `07:29:33Z` if it is of the same day as `now`, else `2026-05-09`.
pub(crate) fn short(since_1970: Duration, now: Duration) -> String {
    let text = rfc3339(since_1970);
    let (day, time) = text.split_once('T').unwrap_or((&text, ""));
    if rfc3339(now).starts_with(day) { time.to_owned() } else { day.to_owned() }
}

/// Returns the date this many days after 1970-01-01, computed in years that begin in March so that the leap day is the
/// last day of the year.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, day_of_era) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_are_formatted_correctly() {
        let at = |seconds| rfc3339(Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339_millis(Duration::from_millis(1_042)), "1970-01-01T00:00:01.042Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(at(1_234_567_890), "2009-02-13T23:31:30Z");
        assert_eq!(at(4_102_444_799), "2099-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
    #[test]
    fn a_table_shows_the_time_of_today_and_the_date_of_other_days() {
        let now = Duration::from_secs(1_234_530_000);
        assert_eq!(rfc3339(now), "2009-02-13T13:00:00Z");
        let shown = |seconds| short(Duration::from_secs(seconds), now);
        assert_eq!(shown(1_234_529_939), "12:58:59Z");
        assert_eq!(shown(1_234_530_000 - 86_400), "2009-02-12");
    }
}
