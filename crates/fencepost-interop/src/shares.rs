//! Who had how many turns, in each tenth of a run.

use std::fmt;

use crate::counter::Turn;

/// The turns of both sides in each tenth of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Ours and theirs.
    tenths: [(usize, usize); 10],
    /// Those that ended after the run: they had begun in it.
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

    /// How many turns there were in all.
    pub fn turns(&self) -> usize {
        self.late + self.tenths.iter().map(|(ours, theirs)| ours + theirs).sum::<usize>()
    }

    /// Whether each side had at least a tenth of the turns in every tenth of the run.
    pub fn is_fair(&self) -> bool {
        self.tenths.iter().all(|(ours, theirs)| {
            let turns = ours + theirs;
            turns > 0 && ours * 10 >= turns && theirs * 10 >= turns
        })
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |(a, b): (usize, usize), (c, d): &(usize, usize)| (a + c, b + d);
        let (ours, theirs) = self.tenths.iter().fold((0, 0), sum);
        let percent = ours * 100 / (ours + theirs).max(1);
        write!(
            f,
            "{ours} turns of ours and {theirs} of theirs, {percent} % and {} %; by tenths",
            100 - percent
        )?;
        self.tenths.iter().try_for_each(|(ours, theirs)| write!(f, " {ours}:{theirs}"))
    }
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
    fn each_side_needs_a_tenth_in_every_tenth() {
        let mut shares = Shares { tenths: [(1, 9); 10], late: 0 };
        assert!(shares.is_fair());
        for unfair in [(0, 0), (0, 5), (1, 10), (10, 1)] {
            shares.tenths[7] = unfair;
            assert!(!shares.is_fair(), "{unfair:?}");
        }
        assert!(shares.to_string().ends_with("1:9 1:9 10:1 1:9 1:9"), "{shares}");
    }
}
