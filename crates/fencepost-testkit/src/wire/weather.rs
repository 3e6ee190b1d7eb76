//! What a wire is told to do.

use std::time::Duration;

use super::Direction;

/// Everything that a wire's connections look at, and what they tell.
#[derive(Debug, Default)]
pub(super) struct Weather {
    pub(super) road: Road,
    pub(super) delay: Duration,
    pub(super) bytes_per_second: Option<u32>,
    pub(super) hides_ends: bool,
    pub(super) resets: usize,
    pub(super) to_lose: Vec<Vec<u8>>,
    pub(super) answers_lost: usize,
    pub(super) connections: usize,
    pub(super) is_over: bool,
    /// Said once, when the wire is made.
    pub(super) waits_for_server: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Road {
    #[default]
    Open,
    OneWay(Direction),
    Blocked,
    Cut,
}

impl Weather {
    pub(super) fn lets_through(&self, direction: Direction) -> bool {
        match self.road {
            Road::Open => true,
            Road::OneWay(open) => open == direction,
            Road::Blocked | Road::Cut => false,
        }
    }

    /// Whether an answer to this is to be lost; then it counts as one of those that were asked for. What was sent
    /// `before` matters as well: bytes may stand across two chunks.
    pub(super) fn take_loss(&mut self, before: &[u8], sent: &[u8]) -> bool {
        let stands_in = |bytes: &Vec<u8>| {
            let overlap = before.len().min(bytes.len().saturating_sub(1));
            let all = [&before[before.len() - overlap..], sent].concat();
            bytes.is_empty() || all.windows(bytes.len()).any(|window| window == bytes)
        };
        let found = self.to_lose.iter().position(stands_in);
        found.map(|at| self.to_lose.remove(at)).is_some()
    }
}
