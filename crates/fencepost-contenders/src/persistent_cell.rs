//! The stored form of a cell that outlives the grant that wrote it: [`PersistentCell`].

use std::time::Duration;

use fencepost_core::{Cell, FencingToken};
use serde_json::{Value as Json, json};

/// A cell that outlives the grant that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistentCell {
    /// The value and the token of the grant that wrote it.
    pub cell: Cell,
    /// How long the cell is stored; `None` means until it is overwritten or cleared.
    pub ttl: Option<Duration>,
}

impl PersistentCell {
    /// Encodes the cell as it is stored: one line of JSON, then the value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut header = json!({ "token": self.cell.token.get() });
        if let Some(ttl) = self.ttl {
            header["ms"] = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).into();
        }
        let mut bytes = header.to_string().into_bytes();
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.cell.bytes);
        bytes
    }

    /// Decodes a stored cell. Returns `None` if the bytes are not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let header: Json = serde_json::from_slice(&bytes[..end]).ok()?;
        let token = FencingToken::new(header["token"].as_u64()?);
        let ttl = header["ms"].as_u64().map(Duration::from_millis);
        Some(Self { cell: Cell { token, bytes: bytes[end + 1..].into() }, ttl })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_survives_a_round_trip() {
        for ttl in [None, Some(Duration::from_secs(7 * 24 * 3600))] {
            for bytes in [&b""[..], b"\n\n", &[0, 255]] {
                let cell = Cell { token: FencingToken::new(9), bytes: bytes.into() };
                let kept = PersistentCell { cell, ttl };
                assert_eq!(PersistentCell::from_bytes(&kept.to_bytes()), Some(kept));
            }
        }
        assert_eq!(PersistentCell::from_bytes(b"{}"), None);
        assert_eq!(PersistentCell::from_bytes(b"{}\n"), None);
    }
}
