//! The results of `break`, `hold`, `rights`, `schema` and `sweep`.

use fencepost::{FencingToken, Guard, HolderState, LockName};
use serde::Serialize;

use super::{Holder, millis};

/// The result of `break --json`.
#[derive(Serialize)]
pub(crate) struct BreakResult<'a> {
    lock: &'a str,
    /// Of the holder that was removed; `null` if there was none.
    token: Option<u64>,
    holder: Option<Holder<'a>>,
    broken: bool,
}

impl<'a> BreakResult<'a> {
    pub(crate) fn new(name: &'a LockName, removed: Option<&'a HolderState>) -> Self {
        Self {
            lock: name.as_str(),
            token: removed.and_then(|holder| holder.token).map(FencingToken::get),
            holder: removed.map(Holder::from),
            broken: removed.is_some(),
        }
    }
}

/// The lock that `hold --json` holds.
#[derive(Serialize)]
pub(crate) struct Held<'a> {
    name: &'a str,
    token: u64,
    storage_id: String,
    label: &'a str,
    ttl_ms: u64,
}

impl<'a> From<&'a Guard> for Held<'a> {
    fn from(guard: &'a Guard) -> Self {
        Self {
            name: guard.name().as_str(),
            token: guard.token().get(),
            storage_id: guard.storage_id().to_string(),
            label: guard.label(),
            ttl_ms: millis(guard.ttl()),
        }
    }
}

/// The result of `rights --json`.
#[derive(Serialize)]
pub(crate) struct Rights<'a> {
    /// Without secrets.
    pub(crate) url: &'a str,
    pub(crate) rights: &'a str,
}

/// The result of `schema --json`.
#[derive(Serialize)]
pub(crate) struct Schema<'a> {
    /// Without secrets.
    pub(crate) url: &'a str,
    pub(crate) schema: &'a str,
}

/// The result of `sweep --json`.
#[derive(Serialize)]
pub(crate) struct Swept {
    /// How many names are gone; `null` if the backend itself removes them.
    pub(crate) removed: Option<u64>,
}

#[cfg(test)]
mod tests {
    use fencepost::Mode;

    use super::*;
    use crate::sample;

    #[test]
    fn the_shape_is_stable() {
        let name = LockName::new("a").unwrap();
        let text = |removed| super::super::line(&BreakResult::new(&name, removed));
        assert_eq!(text(None), r#"{"lock":"a","token":null,"holder":null,"broken":false}"#);
        let holder = sample::holder("web", 7, Mode::Exclusive);
        let as_json = r#"{"token":7,"mode":"exclusive","label":"web","meta":{},"held_for_ms":130000,"ttl_ms":30000,"ttl_left_ms":21000}"#;
        assert_eq!(
            text(Some(&holder)),
            format!(r#"{{"lock":"a","token":7,"holder":{as_json},"broken":true}}"#)
        );
    }
}
