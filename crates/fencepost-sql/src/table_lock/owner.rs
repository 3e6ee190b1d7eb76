//! The owner column: a mark of 32 hexadecimal digits that identifies the attempt and contains its token, in the form of a UUID
//! (version 8), after the holder's label if there is room.
//!
//! Its first 12 digits are the milliseconds of the grant by the server's clock, the next three after the version the
//! microseconds times four, and the last 15 are those of the attempt's owner.

use fencepost_core::{FencingToken, Owner};

/// The digits of the owner that are part of a mark.
const TAIL: usize = 15;
/// The version and the variant of the UUID.
const VERSION: char = '8';
const VARIANT: char = '8';
/// The shortest room for a label.
const MIN_LABEL: usize = 8;

/// How the owner column stores a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerFormat {
    /// A column of type UUID.
    Uuid,
    /// Text with dashes, after a label with at most this many characters.
    Dashed {
        /// The characters that are left for the label and the space after it.
        room: usize,
    },
    /// Text without dashes and label: the column is too short.
    Plain,
}

impl OwnerFormat {
    /// Returns the format for a text column with at most this many characters; `None` if it is too short.
    pub fn for_text(max: Option<usize>) -> Option<Self> {
        match max {
            None => Some(Self::Dashed { room: 255 }),
            Some(max) if max >= 36 => Some(Self::Dashed { room: (max - 36).min(255) }),
            Some(32..) => Some(Self::Plain),
            Some(_) => None,
        }
    }

    /// Returns whether marks have dashes.
    pub fn is_dashed(self) -> bool {
        self != Self::Plain
    }

    /// Returns the number of characters of a mark, which is at the end of the column's value.
    pub fn mark_length(self) -> usize {
        if self.is_dashed() { 36 } else { 32 }
    }

    /// Returns what the column contains before the mark: the label and a space, or nothing.
    pub fn label_prefix(self, label: &str) -> String {
        match self {
            Self::Dashed { room } if room > MIN_LABEL && !label.is_empty() => {
                let label: String = label.chars().filter(|char| !char.is_control()).take(room - 1).collect();
                label + " "
            }
            _ => String::new(),
        }
    }

    /// Returns the end of a mark, which identifies the attempt.
    pub fn tail(self, owner: Owner) -> String {
        let hex = owner.to_hex();
        let tail = &hex[hex.len() - TAIL..];
        if self.is_dashed() {
            format!("-{VARIANT}{}-{}", &tail[..3], &tail[3..])
        } else {
            format!("{VARIANT}{tail}")
        }
    }

    /// Returns the beginning of a mark, which contains the token.
    pub fn head(self, token: FencingToken) -> String {
        let (millis, micros) = (token.get() / 1000, token.get() % 1000 * 4);
        let (dash, high, low) =
            (if self.is_dashed() { "-" } else { "" }, millis >> 16 & 0xffff_ffff, millis & 0xffff);
        format!("{high:08x}{dash}{low:04x}{dash}{VERSION}{micros:03x}")
    }

    /// Reads the value of the column: the label before the mark, the token, and the end of the mark. `None` if a foreign client
    /// has written it.
    pub fn read(self, value: &str) -> Option<(&str, FencingToken, &str)> {
        let start = value.len().checked_sub(self.mark_length())?;
        let (label, mark) = (value.get(..start)?, value.get(start..)?);
        let head = if self.is_dashed() { 18 } else { 16 };
        let (head, tail) = (mark.get(..head)?, mark.get(head..)?);
        let digits: String = head.chars().filter(|char| *char != '-').collect();
        if digits.len() != 16 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let number = |from: usize, to: usize| u64::from_str_radix(digits.get(from..to)?, 16).ok();
        let (millis, micros) = (number(0, 12)?, number(13, 16)?);
        let token = FencingToken::new(millis.checked_mul(1000)? + micros / 4);
        let is_ours = self.head(token) == head && tail.trim_start_matches('-').starts_with(VARIANT);
        is_ours.then(|| (label.trim_end(), token, tail))
    }
}

/// Selects rows by their marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkPattern(String);

impl MarkPattern {
    /// The row of this grant.
    pub fn grant(format: OwnerFormat, owner: Owner, token: FencingToken) -> Self {
        Self(format.head(token) + &format.tail(owner))
    }

    /// The row of this attempt, whichever token it has.
    pub fn attempt(format: OwnerFormat, owner: Owner) -> Self {
        Self(format!("%{}", format.tail(owner)))
    }

    /// The row with this token.
    pub fn token(format: OwnerFormat, token: FencingToken) -> Self {
        Self(format!("{}%", format.head(token)))
    }

    /// Returns the pattern for `LIKE` over the mark. It consists of hexadecimal digits, dashes and `%`.
    pub fn as_like(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
    const DASHED: OwnerFormat = OwnerFormat::Dashed { room: 219 };

    #[test]
    fn a_mark_contains_token_and_owner() {
        let (owner, token) = (Owner::from_bytes(OWNER), FencingToken::new(1_700_000_123_456_789));
        for (format, expected) in [
            (DASHED, "018bcfe7-4a40-8c54-8809-0a0b0c0d0eff"),
            (OwnerFormat::Plain, "018bcfe74a408c5488090a0b0c0d0eff"),
        ] {
            let mark = format.head(token) + &format.tail(owner);
            assert_eq!((mark.as_str(), mark.len()), (expected, format.mark_length()));
            let value = format.label_prefix("web1:17:ann") + &mark;
            let (label, read, tail) = format.read(&value).unwrap();
            assert_eq!((read, tail), (token, format.tail(owner).as_str()));
            assert_eq!(label, if format.is_dashed() { "web1:17:ann" } else { "" });
        }
    }

    #[test]
    fn every_token_is_read_back() {
        for micros in
            (0..1000).map(|micros| 1_700_000_123_456_000 + micros).chain([0, 1, u64::from(u32::MAX)])
        {
            let value = DASHED.head(FencingToken::new(micros)) + &DASHED.tail(Owner::random());
            assert_eq!(DASHED.read(&value).unwrap().1.get(), micros);
        }
    }

    #[test]
    fn values_of_foreign_clients_are_recognised() {
        let foreign = [
            "",
            "web1",
            "web1.example.org",
            "6f9619ff-8b86-4011-b42d-00c04fc964ff",
            "018bcfe7-4a40-7c54-8809-0a0b0c0d0eff",
            "018bcfe7-4a40-8c55-8809-0a0b0c0d0eff",
            "018bcfe7-4a40-8c54-9809-0a0b0c0d0eff",
            "äääääääääääääääääääääääääääääääääääääää",
        ];
        for value in foreign {
            assert_eq!(DASHED.read(value), None, "{value}");
            assert_eq!(OwnerFormat::Plain.read(value), None, "{value}");
        }
    }

    #[test]
    fn a_label_is_cut_to_the_column() {
        let format = OwnerFormat::for_text(Some(255)).unwrap();
        assert_eq!(format.label_prefix(&"ä".repeat(300)).chars().count() + format.mark_length(), 255);
        assert_eq!(OwnerFormat::for_text(Some(40)).unwrap().label_prefix("web1"), "");
        assert_eq!(OwnerFormat::for_text(Some(32)), Some(OwnerFormat::Plain));
        assert_eq!(OwnerFormat::for_text(Some(31)), None);
    }
}
