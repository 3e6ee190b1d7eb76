//! The words of the model: what is asked, what is done, what is answered.

use std::time::Duration;

use fencepost_core::backend::OnBusy;
use fencepost_core::{Keep, Mode, Rule};

/// The names that are locked.
pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// What one attempt asks for. Attempts are known by their number.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Numbers in [`NAMES`], in order.
    pub(crate) wants: Vec<usize>,
    pub(crate) mode: Mode,
    pub(crate) rule: Rule,
    pub(crate) ttl: Duration,
}

/// One operation, with tokens as they were seen.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// The entry of an attempt becomes visible, before its acquire is decided.
    Enter(usize),
    Acquire {
        who: usize,
        on_busy: OnBusy,
    },
    Check(usize),
    Leave(usize),
    Renew {
        who: usize,
        token: u64,
    },
    Release {
        who: usize,
        token: u64,
    },
    Break {
        name: usize,
        token: u64,
    },
    Write {
        who: usize,
        token: u64,
        name: usize,
        value: u8,
        keep: Keep,
    },
    Read {
        name: usize,
    },
    Pass(Duration),
}

impl Step {
    /// Returns the attempt that has no other such operation in flight meanwhile: renewals and cells are exempt.
    pub(crate) fn alone_of(&self) -> Option<usize> {
        match self {
            Self::Acquire { who, .. } | Self::Check(who) | Self::Leave(who) | Self::Release { who, .. } => {
                Some(*who)
            }
            Self::Enter(_)
            | Self::Renew { .. }
            | Self::Write { .. }
            | Self::Break { .. }
            | Self::Read { .. }
            | Self::Pass(_) => None,
        }
    }

    /// Returns the token of the grant that it ends.
    pub(crate) fn ends(&self) -> Option<u64> {
        match self {
            Self::Release { token, .. } | Self::Break { token, .. } => Some(*token),
            _ => None,
        }
    }
}

/// What the storage should say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// None: more is to come.
    Nothing,
    Granted(Grant),
    AlreadyGranted(Grant),
    Waiting,
    Busy,
    NoTicket,
    Left,
    Renewed,
    Released,
    NotHeld,
    Written,
    Cell(Option<Cell>),
    Conflict,
}

/// The `nth` grant of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) who: usize,
    pub(crate) nth: usize,
    pub(crate) names: Vec<usize>,
    pub(crate) until: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) by: (usize, usize),
    pub(crate) value: u8,
    pub(super) keep: Keep,
    pub(super) until: Duration,
}
