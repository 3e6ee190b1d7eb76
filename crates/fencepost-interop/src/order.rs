//! Checks that turns were taken in queue order.

use crate::counter::Turn;

/// Returns how often a worker had a turn before one that was queued earlier: never, where there is one queue.
pub(crate) fn overtakings(turns: impl IntoIterator<Item = Turn>) -> usize {
    let mut turns: Vec<Turn> = turns.into_iter().collect();
    turns.sort_by_key(|turn| turn.count);
    turns.windows(2).filter(|pair| pair[0].joined >= pair[1].joined).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(count: usize, joined: u64) -> Turn {
        Turn { ended: 0, count, joined }
    }

    #[test]
    fn turns_are_compared_in_the_order_of_the_counter() {
        assert_eq!(overtakings([turn(2, 90), turn(0, 7), turn(1, 8)]), 0);
        assert_eq!(overtakings([turn(2, 8), turn(0, 7), turn(1, 90)]), 1);
    }

    #[test]
    fn equal_queue_positions_count_as_overtaking() {
        assert_eq!(overtakings([turn(0, 7), turn(1, 7)]), 1);
        assert_eq!(overtakings([]), 0);
    }
}
