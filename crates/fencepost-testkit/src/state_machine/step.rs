//! The types of the model: wants, steps and replies.

use std::time::Duration;

use fencepost_core::backend::OnBusy;
use fencepost_core::{Keep, Mode, Rule};

/// The names of the locks.
pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// What one attempt asks for. Attempts are identified by number.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Indices into [`NAMES`], in order.
    pub(crate) wants: Vec<usize>,
    pub(crate) mode: Mode,
    pub(crate) rule: Rule,
    pub(crate) ttl: Duration,
}

/// One operation, with tokens as they were observed.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// The entry of an attempt becomes visible, before its acquire is decided.
    CreateEntry(usize),
    Acquire {
        id: usize,
        on_busy: OnBusy,
    },
    Check(usize),
    Leave(usize),
    Renew {
        id: usize,
        token: u64,
    },
    Release {
        id: usize,
        token: u64,
    },
    Break {
        name: usize,
        token: u64,
    },
    Write {
        id: usize,
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
    /// Returns the attempt that must have no other such operation in flight: renewals and cells are exempt.
    pub(crate) fn alone_of(&self) -> Option<usize> {
        match self {
            Self::Acquire { id, .. } | Self::Check(id) | Self::Leave(id) | Self::Release { id, .. } => {
                Some(*id)
            }
            Self::CreateEntry(_)
            | Self::Renew { .. }
            | Self::Write { .. }
            | Self::Break { .. }
            | Self::Read { .. }
            | Self::Pass(_) => None,
        }
    }

    /// Returns the token of the grant that this step ends.
    pub(crate) fn ends(&self) -> Option<u64> {
        match self {
            Self::Release { token, .. } | Self::Break { token, .. } => Some(*token),
            _ => None,
        }
    }
}

/// The expected reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedReply {
    /// None: the operation has another step.
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
    pub(crate) id: usize,
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
