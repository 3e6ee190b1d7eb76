//! The rules of storages in which every attempt has an entry of its own: a key, a node. The storage keeps the entries of a
//! lock in the order in which they came, and whoever reads them knows who holds it and who waits.
//!
//! Nothing here does I/O: [`holding`] says who of a line holds, [`EntryMeta`] is what an entry says about itself, [`OwnEntries`]
//! remembers the entries of one client, [`state`] is the line as people see it.

mod entry_meta;
mod kept_cell;
mod own_entries;
mod state;

use fencepost_core::Mode;

pub use entry_meta::EntryMeta;
pub use kept_cell::KeptCell;
pub use own_entries::{OwnEntries, OwnEntry};
pub use state::{Contender, Elsewhere, state};

/// How many of the first in this line hold the lock. First come, first served: whoever does not fit in keeps out
/// everybody behind it.
///
/// ```
/// use fencepost_core::Mode::{Exclusive, Shared, Semaphore};
/// use fencepost_contenders::holding;
///
/// assert_eq!(holding([Exclusive, Exclusive]), 1);
/// assert_eq!(holding([Shared, Shared, Exclusive, Shared]), 2);
/// assert_eq!(holding([Semaphore { permits: 2 }; 5]), 2);
/// ```
pub fn holding(line: impl IntoIterator<Item = Mode>) -> usize {
    let mut inside: Option<Mode> = None;
    let mut count = 0_usize;
    for mode in line {
        let fits = match (inside, mode) {
            (None, _) => true,
            (Some(there), Mode::Semaphore { permits }) => {
                count < permits as usize && there.is_compatible_with(mode)
            }
            (Some(there), _) => there.is_compatible_with(mode),
        };
        if !fits {
            break;
        }
        inside = Some(mode);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: Mode = Mode::Semaphore { permits: 3 };

    #[test]
    fn whoever_does_not_fit_in_keeps_out_everybody_behind_it() {
        use Mode::{Exclusive as X, Shared as S};
        for (line, expected) in [
            (vec![], 0),
            (vec![X], 1),
            (vec![X, S, S], 1),
            (vec![S, S, X, S], 2),
            (vec![S, S], 2),
            (vec![THREE; 3], 3),
            (vec![THREE; 4], 3),
            // A foreign entry in the line of a semaphore: nobody passes it.
            (vec![THREE, X, THREE], 1),
        ] {
            assert_eq!(holding(line.clone()), expected, "{line:?}");
        }
    }

    /// Whoever holds goes on holding when anybody leaves: a grant is never taken back.
    #[test]
    fn a_departure_never_costs_another_its_hold() {
        use Mode::{Exclusive as X, Shared as S};
        let lines = [vec![S, S, X, S, X], vec![X, S, S, X], vec![THREE; 6], vec![S, X, S]];
        for line in lines {
            let held = holding(line.clone());
            for leaves in 0..line.len() {
                let mut rest = line.clone();
                rest.remove(leaves);
                let left = if leaves < held { held - 1 } else { held };
                assert!(holding(rest) >= left, "{line:?} without {leaves}");
            }
        }
    }
}
