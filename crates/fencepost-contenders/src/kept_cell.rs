//! A cell that outlives the grant that wrote it, as it is stored: [`KeptCell`].

use std::time::Duration;

use fencepost_core::{Cell, FencingToken};
use serde_json::{Value as Json, json};

/// A cell that outlives the grant that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptCell {
    /// The value and the token of the grant that wrote it.
    pub cell: Cell,
    /// For how long it stays, if it is not for ever.
    pub lasts: Option<Duration>,
}

impl KeptCell {
    /// The cell as it is stored: a line about it, then its value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut about = json!({ "token": self.cell.token.get() });
        if let Some(lasts) = self.lasts {
            about["ms"] = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX).into();
        }
        let mut bytes = about.to_string().into_bytes();
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.cell.bytes);
        bytes
    }

    /// The cell as it was stored; nothing if that is not what is there.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let about: Json = serde_json::from_slice(&bytes[..end]).ok()?;
        let token = FencingToken::new(about["token"].as_u64()?);
        let lasts = about["ms"].as_u64().map(Duration::from_millis);
        Some(Self { cell: Cell { token, bytes: bytes[end + 1..].into() }, lasts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_read_as_it_was_written() {
        for lasts in [None, Some(Duration::from_secs(7 * 24 * 3600))] {
            for bytes in [&b""[..], b"\n\n", &[0, 255]] {
                let cell = Cell { token: FencingToken::new(9), bytes: bytes.into() };
                let kept = KeptCell { cell, lasts };
                assert_eq!(KeptCell::from_bytes(&kept.to_bytes()), Some(kept));
            }
        }
        assert_eq!(KeptCell::from_bytes(b"{}"), None);
        assert_eq!(KeptCell::from_bytes(b"{}\n"), None);
    }
}
