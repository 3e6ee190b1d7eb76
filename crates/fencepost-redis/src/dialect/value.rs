//! Lock values in the formats of other libraries, derived from an owner.

use std::time::Duration;

use fencepost_core::Owner;

use super::Dialect;

/// Returns the value of the lock's key while this owner holds it.
pub(crate) fn value(dialect: &Dialect, owner: Owner, label: &str, wall: Duration) -> Vec<u8> {
    let bytes = owner.to_bytes();
    match dialect {
        Dialect::Raw | Dialect::RedisPy | Dialect::NodeRedlock => owner.to_hex().into_bytes(),
        Dialect::Redsync => base64(&bytes).into_bytes(),
        Dialect::PythonRedisLock => base64(&[&bytes[..], &bytes[..2]].concat()).into_bytes(),
        Dialect::Rslock => [&bytes[..], &bytes[..4]].concat(),
        Dialect::Shedlock { .. } => {
            let host = label.split(':').next().unwrap_or_default();
            format!("ADDED:{}@{host}:{}", instant(wall), uuid(&owner.to_hex())).into_bytes()
        }
    }
}

/// Encodes bytes as base64 with the standard alphabet and padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0usize, |word, byte| word << 8 | usize::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let letter = char::from(LETTERS[word >> (18 - 6 * at) & 63]);
            text.push(if at <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

/// Formats 32 hex digits as a UUID.
fn uuid(hex: &str) -> String {
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Formats a time since 1970 as Java prints an `Instant`.
fn instant(wall: Duration) -> String {
    let (days, second) = (wall.as_secs() / 86400, wall.as_secs() % 86400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", wall.subsec_millis())
}

/// Converts days since 1970-01-01 into year, month, day.
fn date(days: u64) -> (u64, u64, u64) {
    // Counted in eras of 400 years that begin in March, so that a leap day is the last day of a year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(dialect: &Dialect) -> String {
        let owner = Owner::from_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        let wall = Duration::from_millis(1_709_210_096_007);
        String::from_utf8_lossy(&value(dialect, owner, "web1:17:ann", wall)).into_owned()
    }

    #[test]
    fn values_have_the_format_of_each_library() {
        assert_eq!(text(&Dialect::RedisPy), "000102030405060708090a0b0c0d0eff");
        assert_eq!(text(&Dialect::Redsync), "AAECAwQFBgcICQoLDA0O/w==");
        assert_eq!(text(&Dialect::PythonRedisLock), "AAECAwQFBgcICQoLDA0O/wAB");
        let shedlock = Dialect::Shedlock { environment: "prod".into() };
        assert_eq!(
            text(&shedlock),
            "ADDED:2024-02-29T12:34:56.007Z@web1:00010203-0405-0607-0809-0a0b0c0d0eff"
        );
        let owner = Owner::random();
        assert_eq!(value(&Dialect::Rslock, owner, "", Duration::ZERO).len(), 20);
    }

    #[test]
    fn instants_match_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(instant(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn base64_matches_the_standard() {
        for (bytes, expected) in
            [("", ""), ("M", "TQ=="), ("Ma", "TWE="), ("Man", "TWFu"), ("light w", "bGlnaHQgdw==")]
        {
            assert_eq!(base64(bytes.as_bytes()), expected);
        }
    }
}
