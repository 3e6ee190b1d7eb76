//! Label values that spans and metrics share.

use crate::error::{Error, ErrorKind, Result};
use crate::grant::{LostReason, Mode};
use crate::guard::Guard;

/// The outcome of an acquire, as its caller saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Acquired,
    Held,
    Timeout,
    Cancelled,
    Error,
}

impl Outcome {
    pub(super) const WORDS: [&str; 5] = ["acquired", "held", "timeout", "cancelled", "error"];

    pub(super) fn of(outcome: &Result<Option<Guard>>) -> Self {
        match outcome.as_ref().map_err(Error::kind) {
            Ok(Some(_)) => Self::Acquired,
            Ok(None) => Self::Held,
            Err(ErrorKind::WaitTimeout) => Self::Timeout,
            Err(_) => Self::Error,
        }
    }

    pub(super) fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

/// The modes, without the size of a semaphore.
pub(super) const KINDS: [&str; 3] = ["exclusive", "shared", "semaphore"];

/// Returns the index in [`KINDS`].
pub(super) fn kind(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Semaphore { .. } => 2,
    }
}

/// Returns the label value for why a lock is no longer held.
pub(super) fn reason(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Expired => "expired",
        LostReason::NotHeld => "not_held",
        LostReason::Broken => "broken",
        LostReason::MaxHold => "max_hold",
        LostReason::Closed => "closed",
        LostReason::Abandoned => "abandoned",
        LostReason::Released => "released",
    }
}
