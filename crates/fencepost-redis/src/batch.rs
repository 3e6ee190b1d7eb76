//! Groups the operations of a flight into script calls: in a cluster a call may only use keys of one slot.

use fencepost_core::backend::Op;
use fencepost_core::{Error, ErrorKind, Mode, Result};

use crate::layout::Layout;

/// The operations of a flight that one script call executes.
pub(crate) struct Batch {
    /// The key prefix that all of them share.
    pub(crate) prefix: String,
    /// Indices into the flight's operations.
    pub(crate) indices: Vec<usize>,
    kind: BatchKind,
}

/// Which operations may share a call in a cluster. While a slot migrates, a node serves a call only if it has all keys of it
/// or none: operations on existing keys are kept apart from those that create keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchKind {
    /// A renewal in a call of its own. It uses only the lock's key, which always exists on one of the two nodes.
    Renewal,
    /// Checks of waiters, whose tickets exist.
    Checks,
    Others,
}

impl BatchKind {
    fn of(op: &Op) -> Self {
        match op {
            Op::Renew(_) => Self::Renewal,
            Op::Check(_) => Self::Checks,
            _ => Self::Others,
        }
    }
}

impl Batch {
    /// All operations of a flight in one call, as on a single server.
    pub(crate) fn all(layout: &Layout, count: usize) -> Self {
        Self { prefix: layout.prefix(""), indices: (0..count).collect(), kind: BatchKind::Others }
    }

    /// Groups operations by slot and kind. An operation whose locks are in several slots is in no batch: its index and the
    /// error are in the second result.
    pub(crate) fn group(layout: &Layout, ops: &[Op]) -> (Vec<Self>, Vec<(usize, Error)>) {
        let (mut batches, mut errors): (Vec<Self>, Vec<(usize, Error)>) = (Vec::new(), Vec::new());
        for (index, op) in ops.iter().enumerate() {
            let prefix = match common_prefix(layout, op) {
                Ok(prefix) => prefix,
                Err(error) => {
                    errors.push((index, error));
                    continue;
                }
            };
            let kind = BatchKind::of(op);
            let fits = |batch: &&mut Self| {
                batch.prefix == prefix && batch.kind == kind && kind != BatchKind::Renewal
            };
            match batches.iter_mut().find(fits) {
                Some(batch) => batch.indices.push(index),
                None => batches.push(Self { prefix, indices: vec![index], kind }),
            }
        }
        (batches, errors)
    }

    /// The keys to declare to a cluster: each key whose absence the script would take for a fact, although it may only not
    /// have migrated yet.
    pub(crate) fn declared_keys(&self, ops: &[&Op]) -> Vec<String> {
        let names = ops.iter().flat_map(|op| op.names());
        let Self { prefix, .. } = self;
        if self.kind == BatchKind::Renewal {
            return names.map(|name| format!("{prefix}l:{name}")).collect();
        }
        let mut keys = keys_of_locks(prefix, names);
        // Locks that several clients may hold have an index of their holders.
        let shared = ops.iter().flat_map(|op| op.wants()).filter(|want| want.mode != Mode::Exclusive);
        keys.extend(shared.map(|want| format!("{prefix}d:{}", want.name)));
        keys.extend(ops.iter().filter_map(|op| match op {
            Op::ReadCell(name) | Op::WriteCell { name, .. } => Some(format!("{prefix}v:{name}")),
            Op::Check(attempt) | Op::Leave(attempt) => Some(format!("{prefix}t:{}", attempt.owner.to_hex())),
            _ => None,
        }));
        keys.sort();
        keys.dedup();
        keys
    }
}

/// The keys of these locks and of their queues, and the token counter.
pub(crate) fn keys_of_locks(prefix: &str, names: impl IntoIterator<Item: std::fmt::Display>) -> Vec<String> {
    let of_locks = names.into_iter().flat_map(|name| ["l", "q"].map(|kind| format!("{prefix}{kind}:{name}")));
    of_locks.chain([format!("{prefix}c")]).collect()
}

/// Returns the prefix that the keys of all locks of an operation share.
fn common_prefix(layout: &Layout, op: &Op) -> Result<String> {
    let mut prefixes = op.names().map(|name| layout.prefix(name.as_str()));
    let first = prefixes.next().unwrap_or_default();
    if prefixes.all(|prefix| prefix == first) { Ok(first) } else { Err(not_in_one_slot(op)) }
}

fn not_in_one_slot(op: &Op) -> Error {
    let names: Vec<String> = op.names().map(|name| format!("{name:?}")).collect();
    let message = format!("locks {} are not in one slot of the Redis cluster", names.join(", "));
    Error::new(ErrorKind::Unsupported, message)
        .with_hint("give names that are acquired together a common hash tag: {order42}/pay, {order42}/ship")
}
