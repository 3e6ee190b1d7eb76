//! What a wire is told to do.

use std::time::Duration;

use super::Direction;

/// Everything that a wire's connections look at, and what they tell.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    pub(super) road: Road,
    pub(super) delay: Duration,
    pub(super) bytes_per_second: Option<u32>,
    pub(super) hides_close: bool,
    pub(super) resets: usize,
    pub(super) to_lose: Vec<Vec<u8>>,
    pub(super) replies_lost: usize,
    pub(super) connections: usize,
    /// How many connections there have been.
    pub(super) begun: usize,
    pub(super) stranded: Stranded,
    pub(super) is_over: bool,
    /// Said once, when the wire is made.
    pub(super) waits_for_server: bool,
}

/// Connections whose requests arrive late.
#[derive(Debug, Default)]
pub(super) struct Stranded {
    /// The connections up to this number.
    pub(super) up_to: usize,
    /// What is delivered of their requests ends with these bytes.
    pub(super) last_bytes: Vec<u8>,
    /// How many of them have delivered that much.
    pub(super) delivered: usize,
    /// Whether their requests are held back.
    pub(super) are_held_back: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Road {
    #[default]
    Open,
    OneWay(Direction),
    Blocked,
    Cut,
}

impl Conditions {
    /// Whether the connection with this number was stranded.
    pub(super) fn is_stranded(&self, number: usize) -> bool {
        number <= self.stranded.up_to
    }

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
        let found = self.to_lose.iter().position(|bytes| stand_in(bytes, before, sent));
        found.map(|at| self.to_lose.remove(at)).is_some()
    }

    /// Whether this is the last that the connection with this number delivers, if it was stranded.
    pub(super) fn is_last(&self, number: usize, before: &[u8], sent: &[u8]) -> bool {
        self.is_stranded(number) && stand_in(&self.stranded.last_bytes, before, sent)
    }
}

fn stand_in(bytes: &[u8], before: &[u8], sent: &[u8]) -> bool {
    let overlap = before.len().min(bytes.len().saturating_sub(1));
    let all = [&before[before.len() - overlap..], sent].concat();
    bytes.is_empty() || all.windows(bytes.len()).any(|window| window == bytes)
}
