//! The kinds of operations, for faults that hit only some of them.

use fencepost_core::backend::Op;

/// The kind of an [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of `Op`")]
pub enum OpKind {
    Acquire,
    Check,
    Leave,
    Renew,
    Release,
    ReadCell,
    WriteCell,
    Break,
}

impl OpKind {
    /// Returns the kind of this operation.
    pub fn of(op: &Op) -> Self {
        match op {
            Op::Acquire { .. } => Self::Acquire,
            Op::Check(_) => Self::Check,
            Op::Leave(_) => Self::Leave,
            Op::Renew(_) => Self::Renew,
            Op::Release(_) => Self::Release,
            Op::ReadCell(_) => Self::ReadCell,
            Op::WriteCell { .. } => Self::WriteCell,
            Op::Break { .. } => Self::Break,
        }
    }
}
