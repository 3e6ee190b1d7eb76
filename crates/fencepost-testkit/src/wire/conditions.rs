//! The injected behaviour of a wire.

use std::time::Duration;

use super::Direction;

/// What the connections of a wire read, and what they report.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    pub(super) link: Link,
    pub(super) delay: Duration,
    pub(super) bytes_per_second: Option<u32>,
    pub(super) hides_close: bool,
    pub(super) resets: usize,
    pub(super) to_lose: Vec<Vec<u8>>,
    pub(super) replies_lost: usize,
    pub(super) connections: usize,
    /// How many pieces clients have sent.
    pub(super) sent: usize,
    /// How many connections there have been.
    pub(super) opened: usize,
    pub(super) stranded: Stranded,
    pub(super) is_closed: bool,
    /// Set once, when the wire is created.
    pub(super) waits_for_server: bool,
}

/// Connections whose requests arrive late.
#[derive(Debug, Default)]
pub(super) struct Stranded {
    /// The connections up to this number.
    pub(super) up_to: usize,
    /// The last bytes that are delivered of their requests.
    pub(super) last_bytes: Vec<u8>,
    /// How many of them have delivered these bytes.
    pub(super) delivered: usize,
    /// Whether their requests are held back.
    pub(super) are_held_back: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Link {
    #[default]
    Open,
    OneWay(Direction),
    Blocked,
    Cut,
}

impl Conditions {
    /// Returns whether the connection with this number is stranded.
    pub(super) fn is_stranded(&self, number: usize) -> bool {
        number <= self.stranded.up_to
    }

    pub(super) fn lets_through(&self, direction: Direction) -> bool {
        match self.link {
            Link::Open => true,
            Link::OneWay(open) => open == direction,
            Link::Blocked | Link::Cut => false,
        }
    }

    /// Returns whether the reply to this is to be lost, and removes it from the replies to lose. What was sent `before`
    /// matters as well: the bytes may be split over two chunks.
    pub(super) fn take_loss(&mut self, before: &[u8], sent: &[u8]) -> bool {
        let found = self.to_lose.iter().position(|bytes| appears_in(bytes, before, sent));
        found.map(|at| self.to_lose.remove(at)).is_some()
    }

    /// Returns whether this is the last that the connection with this number delivers, if it is stranded.
    pub(super) fn is_last(&self, number: usize, before: &[u8], sent: &[u8]) -> bool {
        self.is_stranded(number) && appears_in(&self.stranded.last_bytes, before, sent)
    }
}

fn appears_in(bytes: &[u8], before: &[u8], sent: &[u8]) -> bool {
    let overlap = before.len().min(bytes.len().saturating_sub(1));
    let all = [&before[before.len() - overlap..], sent].concat();
    bytes.is_empty() || all.windows(bytes.len()).any(|window| window == bytes)
}
