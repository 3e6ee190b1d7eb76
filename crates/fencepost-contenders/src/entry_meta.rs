//! The data stored in an entry, for listings and for clients that clean up after others: [`EntryMeta`].

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::clock::wall_time;
use fencepost_core::{Attempt, LockName, Owner, Rule};
use serde_json::{Map, Value as Json, json};

/// Separates the JSON of an entry from the value of its cell.
const SEPARATOR: u8 = b'\n';

/// The data stored in an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMeta {
    /// The owner of the entry.
    pub owner: Owner,
    /// The lease's length.
    pub ttl: Duration,
    /// The label of the attempt, for listings.
    pub label: Arc<str>,
    /// Additional key-value pairs, for listings.
    pub meta: Arc<[(String, String)]>,
    /// The wall-clock time at which the entry was created.
    pub enqueued_at: Duration,
    /// The wall-clock time of the grant, if the attempt had to wait.
    pub granted_at: Option<Duration>,
    /// All names of the attempt, if it has several.
    pub names: Vec<LockName>,
    /// Whether one of these names suffices ([`Rule::Any`]).
    pub any: bool,
    /// The cell that exists while the entry holds the lock.
    pub cell: Option<Arc<[u8]>>,
}

impl EntryMeta {
    /// Returns the data for the entries of an attempt, created now.
    pub fn new(attempt: &Attempt) -> Self {
        let several = attempt.wants.len() > 1;
        let names = attempt.wants.iter().filter(|_| several).map(|want| want.name.clone());
        Self {
            owner: attempt.owner,
            ttl: attempt.ttl,
            label: attempt.label.clone(),
            meta: attempt.meta.clone(),
            enqueued_at: wall_time(),
            granted_at: None,
            names: names.collect(),
            any: several && attempt.rule == Rule::Any,
            cell: None,
        }
    }

    /// Encodes the data as it is stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut fields = Map::new();
        fields.insert("owner".into(), self.owner.to_hex().into());
        fields.insert("label".into(), json!(&*self.label));
        fields.insert("ttl".into(), millis(self.ttl).into());
        fields.insert("since".into(), millis(self.enqueued_at).into());
        if let Some(granted_at) = self.granted_at {
            fields.insert("held_since".into(), millis(granted_at).into());
        }
        if !self.meta.is_empty() {
            fields.insert("meta".into(), json!(&*self.meta));
        }
        if !self.names.is_empty() {
            let names: Vec<&str> = self.names.iter().map(LockName::as_str).collect();
            fields.insert("names".into(), json!(names));
        }
        if self.any {
            fields.insert("any".into(), true.into());
        }
        let mut bytes = Json::Object(fields).to_string().into_bytes();
        if let Some(cell) = &self.cell {
            bytes.push(SEPARATOR);
            bytes.extend_from_slice(cell);
        }
        bytes
    }

    /// Decodes stored data. Returns `None` for an entry of a foreign client.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == SEPARATOR);
        let (text, cell) = bytes.split_at(end.unwrap_or(bytes.len()));
        let fields: Json = serde_json::from_slice(text).ok()?;
        let time = |field: &str| fields[field].as_u64().map(Duration::from_millis);
        let meta =
            fields["meta"].as_array().into_iter().flatten().filter_map(|pair| {
                Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()))
            });
        let names = fields["names"].as_array().into_iter().flatten();
        let names = names.filter_map(|name| LockName::new(name.as_str()?).ok());
        Some(Self {
            owner: Owner::from_hex(fields["owner"].as_str()?)?,
            ttl: time("ttl")?,
            label: fields["label"].as_str().unwrap_or_default().into(),
            meta: meta.collect(),
            enqueued_at: time("since").unwrap_or_default(),
            granted_at: time("held_since"),
            names: names.collect(),
            any: fields["any"] == true,
            cell: end.map(|_| cell[1..].into()),
        })
    }
}

/// Returns whole milliseconds, rounded up.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry_meta() -> EntryMeta {
        EntryMeta {
            owner: Owner::from_bytes([7; 16]),
            ttl: Duration::from_secs(30),
            label: "host:1 \"ann\"\n".into(),
            meta: [("job".to_owned(), "nightly".to_owned())].into(),
            enqueued_at: Duration::from_millis(1_700_000_000_123),
            granted_at: Some(Duration::from_millis(1_700_000_000_456)),
            names: vec![LockName::new("a").unwrap(), LockName::new("b/c").unwrap()],
            any: true,
            cell: Some([0, 10, 255].into()),
        }
    }

    #[test]
    fn entry_meta_survives_a_round_trip() {
        let plain = EntryMeta {
            meta: [].into(),
            granted_at: None,
            names: Vec::new(),
            any: false,
            cell: None,
            ..entry_meta()
        };
        for entry_meta in [entry_meta(), plain.clone(), EntryMeta { cell: Some([].into()), ..plain }] {
            assert_eq!(EntryMeta::from_bytes(&entry_meta.to_bytes()), Some(entry_meta));
        }
    }

    #[test]
    fn foreign_data_is_not_entry_meta() {
        for text in ["", "7587862094", "{}", "{\"owner\":\"x\",\"ttl\":1}", "10.0.0.1", "\u{ff}"] {
            assert_eq!(EntryMeta::from_bytes(text.as_bytes()), None, "{text:?}");
        }
    }
}
