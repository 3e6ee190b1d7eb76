//! The rules of backends in which every attempt has its own entry: a key in etcd, a node in ZooKeeper. The server stores the
//! entries of a lock in order of creation. A client that reads them can tell which attempts hold the lock and which wait.
//!
//! Nothing here does I/O: [`holder_count`] says how many entries of a queue hold the lock, [`EntryMeta`] is the data stored
//! in an entry, [`OwnEntries`] records the entries of one client, [`lock_state`] describes a queue for listings.

mod entry_meta;
mod lock_state;
mod own_entries;
mod persistent_cell;

use fencepost_core::Mode;

pub use entry_meta::EntryMeta;
pub use lock_state::{Contender, MultiState, lock_state};
pub use own_entries::{OwnEntries, OwnEntry};
pub use persistent_cell::PersistentCell;

/// Returns how many entries at the front of this queue hold the lock. The order is strict: an entry whose mode is not
/// compatible blocks all entries behind it.
///
/// ```
/// use fencepost_core::Mode::{Exclusive, Shared, Semaphore};
/// use fencepost_contenders::holder_count;
///
/// assert_eq!(holder_count([Exclusive, Exclusive]), 1);
/// assert_eq!(holder_count([Shared, Shared, Exclusive, Shared]), 2);
/// assert_eq!(holder_count([Semaphore { permits: 2 }; 5]), 2);
/// ```
pub fn holder_count(queue: impl IntoIterator<Item = Mode>) -> usize {
    let mut holders: Option<Mode> = None;
    let mut count = 0_usize;
    for mode in queue {
        let fits = match (holders, mode) {
            (None, _) => true,
            (Some(held), Mode::Semaphore { permits }) => {
                count < permits as usize && held.is_compatible_with(mode)
            }
            (Some(held), _) => held.is_compatible_with(mode),
        };
        if !fits {
            break;
        }
        holders = Some(mode);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: Mode = Mode::Semaphore { permits: 3 };

    #[test]
    fn an_incompatible_entry_blocks_all_entries_behind_it() {
        use Mode::{Exclusive as X, Shared as S};
        for (queue, expected) in [
            (vec![], 0),
            (vec![X], 1),
            (vec![X, S, S], 1),
            (vec![S, S, X, S], 2),
            (vec![S, S], 2),
            (vec![THREE; 3], 3),
            (vec![THREE; 4], 3),
            // A foreign entry in the queue of a semaphore blocks the entries behind it.
            (vec![THREE, X, THREE], 1),
        ] {
            assert_eq!(holder_count(queue.clone()), expected, "{queue:?}");
        }
    }

    /// A holder keeps the lock when another entry is removed: a grant is never revoked.
    #[test]
    fn removing_an_entry_never_revokes_another_hold() {
        use Mode::{Exclusive as X, Shared as S};
        let queues = [vec![S, S, X, S, X], vec![X, S, S, X], vec![THREE; 6], vec![S, X, S]];
        for queue in queues {
            let held = holder_count(queue.clone());
            for removed in 0..queue.len() {
                let mut rest = queue.clone();
                rest.remove(removed);
                let remaining = if removed < held { held - 1 } else { held };
                assert!(holder_count(rest) >= remaining, "{queue:?} without {removed}");
            }
        }
    }
}
