//! Serde for the types that programs send along with their effects: names and ids as strings, tokens as numbers.

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::name::LockName;
use crate::token::{FencingToken, StorageId};

impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::new)
    }
}

impl Serialize for LockName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for LockName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for StorageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StorageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_hex(&text)
            .ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &"32 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_and_invalid_ones_rejected() {
        let id = StorageId::from_bytes([0xab; 16]);
        let json = serde_json::to_string(&(FencingToken::new(7), LockName::new("a/b").unwrap(), id)).unwrap();
        assert_eq!(json, format!(r#"[7,"a/b","{}"]"#, "ab".repeat(16)));
        let (token, name, same): (FencingToken, LockName, StorageId) = serde_json::from_str(&json).unwrap();
        assert_eq!((token.get(), name.as_str(), same), (7, "a/b", id));
        assert!(serde_json::from_str::<LockName>(r#""""#).unwrap_err().to_string().contains("empty"));
        assert!(serde_json::from_str::<StorageId>(r#""ab""#).is_err());
    }
}
