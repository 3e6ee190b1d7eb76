//! The turns of both sides, in each tenth of a run.

use std::fmt;

use crate::counter::Turn;

/// The turns of both sides in each tenth of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Ours and theirs.
    tenths: [(usize, usize); 10],
    /// Turns that ended after the run: they had started in it.
    late: usize,
}

impl Shares {
    /// Counts turns by the times at which they ended.
    pub fn count(began: u64, ended: u64, ours: &[Turn], theirs: &[Turn]) -> Self {
        let mut shares = Self::default();
        let length = (ended - began).max(1);
        let tenth =
            |turn: &Turn| usize::try_from(turn.ended.saturating_sub(began) * 10 / length).unwrap_or(10);
        for turn in ours {
            match shares.tenths.get_mut(tenth(turn)) {
                Some((ours, _)) => *ours += 1,
                None => shares.late += 1,
            }
        }
        for turn in theirs {
            match shares.tenths.get_mut(tenth(turn)) {
                Some((_, theirs)) => *theirs += 1,
                None => shares.late += 1,
            }
        }
        shares
    }

    /// Returns how many turns there were in all.
    pub fn turns(&self) -> usize {
        self.late + self.tenths.iter().map(|(ours, theirs)| ours + theirs).sum::<usize>()
    }

    /// Returns whether each side had at least a tenth of the turns, and neither went without one for two tenths of the run.
    /// The shares within a moment depend on the machine.
    pub fn is_fair(&self) -> bool {
        let (ours, theirs) = sum(&self.tenths);
        let has_share = |turns: usize| turns > 0 && turns * 10 >= ours + theirs;
        let is_served = |tenths: &[(usize, usize)]| {
            let (ours, theirs) = sum(tenths);
            ours > 0 && theirs > 0
        };
        has_share(ours) && has_share(theirs) && self.tenths.windows(2).all(is_served)
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ours, theirs) = sum(&self.tenths);
        let percent = ours * 100 / (ours + theirs).max(1);
        write!(
            f,
            "{ours} turns of ours and {theirs} of theirs, {percent} % and {} %; by tenths",
            100 - percent
        )?;
        self.tenths.iter().try_for_each(|(ours, theirs)| write!(f, " {ours}:{theirs}"))
    }
}

/// Returns the turns of both sides.
fn sum(tenths: &[(usize, usize)]) -> (usize, usize) {
    tenths.iter().fold((0, 0), |(ours, theirs), tenth| (ours + tenth.0, theirs + tenth.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_counted_where_they_ended() {
        let at = |ended| Turn { ended, count: 0, joined: 0 };
        let (ours, theirs) = ([1000, 1099, 1100, 1999].map(at), [1500, 2000].map(at));
        let shares = Shares::count(1000, 2000, &ours, &theirs);
        assert_eq!((shares.tenths[0], shares.tenths[1], shares.tenths[5]), ((2, 0), (1, 0), (0, 1)));
        assert_eq!((shares.tenths[9], shares.late, shares.turns()), ((1, 0), 1, 6));
        assert!(!shares.is_fair());
    }

    #[test]
    fn each_side_needs_a_tenth_and_no_long_wait() {
        let mut shares = Shares { tenths: [(1, 9); 10], late: 0 };
        assert!(shares.is_fair());
        shares.tenths[7] = (0, 9);
        assert!(!shares.is_fair(), "less than a tenth");
        shares.tenths[0] = (5, 5);
        assert!(shares.is_fair(), "an uneven moment");
        shares.tenths[8] = (0, 9);
        shares.tenths[0] = (9, 5);
        assert!(!shares.is_fair(), "two tenths without a turn");
        assert!(!Shares::default().is_fair());
    }
}
