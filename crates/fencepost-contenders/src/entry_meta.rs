//! What an entry says about itself, for people and for those who look after it: [`EntryMeta`].

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::clock::wall_time;
use fencepost_core::{Attempt, LockName, Owner, Rule};
use serde_json::{Map, Value as Json, json};

/// Between what an entry says about itself and the value of its cell.
const SEPARATOR: u8 = b'\n';

/// What an entry says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMeta {
    /// Whose entry it is.
    pub owner: Owner,
    /// The lease's length.
    pub ttl: Duration,
    /// Who it is, for people.
    pub label: Arc<str>,
    /// More about it, for people.
    pub meta: Arc<[(String, String)]>,
    /// When it came, on the wall clock.
    pub since: Duration,
    /// When it was granted, on the wall clock, if it had to wait.
    pub held_since: Option<Duration>,
    /// All names that it wants, if there are several.
    pub names: Vec<LockName>,
    /// Whether any one of them will do.
    pub any: bool,
    /// The cell that stays while it holds.
    pub cell: Option<Arc<[u8]>>,
}

impl EntryMeta {
    /// The entry_meta of an attempt that comes now.
    pub fn new(attempt: &Attempt) -> Self {
        let several = attempt.wants.len() > 1;
        let names = attempt.wants.iter().filter(|_| several).map(|want| want.name.clone());
        Self {
            owner: attempt.owner,
            ttl: attempt.ttl,
            label: attempt.label.clone(),
            meta: attempt.meta.clone(),
            since: wall_time(),
            held_since: None,
            names: names.collect(),
            any: several && attempt.rule == Rule::Any,
            cell: None,
        }
    }

    /// The entry_meta as it is stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut fields = Map::new();
        fields.insert("owner".into(), self.owner.to_hex().into());
        fields.insert("label".into(), json!(&*self.label));
        fields.insert("ttl".into(), millis(self.ttl).into());
        fields.insert("since".into(), millis(self.since).into());
        if let Some(since) = self.held_since {
            fields.insert("held_since".into(), millis(since).into());
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

    /// The entry_meta as it was stored; nothing if somebody else has made the entry.
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
            since: time("since").unwrap_or_default(),
            held_since: time("held_since"),
            names: names.collect(),
            any: fields["any"] == true,
            cell: end.map(|_| cell[1..].into()),
        })
    }
}

/// Whole milliseconds, rounded up.
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
            since: Duration::from_millis(1_700_000_000_123),
            held_since: Some(Duration::from_millis(1_700_000_000_456)),
            names: vec![LockName::new("a").unwrap(), LockName::new("b/c").unwrap()],
            any: true,
            cell: Some([0, 10, 255].into()),
        }
    }

    #[test]
    fn a_card_is_read_as_it_was_written() {
        let plain = EntryMeta {
            meta: [].into(),
            held_since: None,
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
    fn what_others_write_is_no_card() {
        for text in ["", "7587862094", "{}", "{\"owner\":\"x\",\"ttl\":1}", "10.0.0.1", "\u{ff}"] {
            assert_eq!(EntryMeta::from_bytes(text.as_bytes()), None, "{text:?}");
        }
    }
}
