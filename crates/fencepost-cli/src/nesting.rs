//! Nested runs: the locks that are held above this process, so that a run that would wait for itself is rejected.

use fencepost::{FencingToken, Guard, LockName, LockState, Mode, StorageId};
use serde::{Deserialize, Serialize};

/// The environment variable with the list.
pub(crate) const VARIABLE: &str = "FENCEPOST_HELD";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    name: String,
    storage_id: String,
    token: u64,
}

/// The locks that are held above this process, the outermost first.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldAbove(Vec<Held>);

impl HeldAbove {
    /// Reads the list. A malformed one was not written by fencepost and counts as empty.
    pub(crate) fn from_environment() -> Self {
        std::env::var(VARIABLE).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap_or_default())
    }

    /// Returns whether a lock of this name may be held above this process.
    pub(crate) fn mentions(&self, name: &LockName, storage_id: StorageId) -> bool {
        let storage_id = storage_id.to_string();
        self.0.iter().any(|held| held.name == name.as_str() && held.storage_id == storage_id)
    }

    /// Returns whether a waiter for this lock would wait for a holder that waits for this process. The environment may be
    /// outdated: only the token of a holder proves that it is still above this process.
    pub(crate) fn would_wait_for_itself(&self, state: &LockState, storage_id: StorageId, mode: Mode) -> bool {
        let storage_id = storage_id.to_string();
        let is_above = |token: FencingToken| {
            let same = |held: &Held| held.name == state.name.as_str() && held.storage_id == storage_id;
            self.0.iter().any(|held| same(held) && held.token == token.get())
        };
        let mut holders = state.holders.iter().map(|holder| holder.token.is_some_and(is_above));
        match mode {
            // Another holder's permit may become free.
            Mode::Semaphore { .. } => !state.holders.is_empty() && holders.all(|above| above),
            _ => holders.any(|above| above),
        }
    }

    /// Returns the list for a command that runs under one more lock.
    pub(crate) fn with(&self, guard: &Guard) -> String {
        let held = Held {
            name: guard.name().as_str().to_owned(),
            storage_id: guard.storage_id().to_string(),
            token: guard.token().get(),
        };
        let list: Vec<&Held> = self.0.iter().chain([&held]).collect();
        serde_json::to_string(&list).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn state(tokens: &[u64], mode: Mode) -> LockState {
        sample::lock("a", tokens.iter().map(|token| sample::holder("x", *token, mode)))
    }

    fn above(storage_id: StorageId) -> HeldAbove {
        HeldAbove::parse(&format!(r#"[{{"name":"a","storage_id":"{storage_id}","token":7}}]"#))
    }

    #[test]
    fn only_the_token_of_a_holder_proves_that_it_is_above_this_process() {
        let (here, elsewhere) = (StorageId::random(), StorageId::random());
        let waits = |tokens: &[u64], storage_id| {
            let mode = Mode::Exclusive;
            above(here).would_wait_for_itself(&state(tokens, mode), storage_id, mode)
        };
        assert!(waits(&[7], here));
        assert!(!waits(&[8], here));
        assert!(!waits(&[], here));
        assert!(!waits(&[7], elsewhere));
    }

    #[test]
    fn a_reader_waits_for_a_writer_that_waits_for_another_reader() {
        let here = StorageId::random();
        let waits =
            |tokens: &[u64], mode| above(here).would_wait_for_itself(&state(tokens, mode), here, mode);
        assert!(waits(&[3, 7], Mode::Shared));
        assert!(!waits(&[3, 7], Mode::Semaphore { permits: 2 }), "the other permit may become free");
        assert!(waits(&[7], Mode::Semaphore { permits: 1 }));
    }

    #[test]
    fn a_malformed_list_counts_as_empty() {
        let name = LockName::new("a").unwrap();
        for text in ["", "1", "[1]", "{}", r#"[{"name":"a"}]"#] {
            assert!(!HeldAbove::parse(text).mentions(&name, StorageId::random()), "{text}");
        }
    }
}
