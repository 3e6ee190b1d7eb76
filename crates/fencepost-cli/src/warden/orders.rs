//! The orders that fencepost sends to its warden, a line of text each. No I/O here.

use std::io::Write;

use fencepost::clock::Moment;
use rustix::process::Pid;

/// What to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Every process of this group.
    Group(Pid),
    /// This process alone.
    Process(Pid),
}

/// One order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The command that runs under the lock.
    Watch(Target),
    /// The time at which its lease can end.
    Until(Moment),
}

impl Order {
    /// The length of the longest order.
    pub(crate) const MAX: usize = 32;

    /// Writes the order, and returns its length. It allocates nothing: a process that has just been forked must not.
    pub(crate) fn encode(self, line: &mut [u8; Self::MAX]) -> usize {
        let mut rest = line.as_mut_slice();
        let written = match self {
            Self::Watch(Target::Group(id)) => writeln!(rest, "group {id}"),
            Self::Watch(Target::Process(id)) => writeln!(rest, "process {id}"),
            Self::Until(moment) => writeln!(rest, "until {}", moment.as_nanos()),
        };
        let left = rest.len();
        if written.is_ok() { Self::MAX - left } else { 0 }
    }

    fn decode(line: &str) -> Option<Self> {
        let (word, number) = line.split_once(' ')?;
        let process = || number.parse().ok().and_then(Pid::from_raw);
        match word {
            "group" => Some(Self::Watch(Target::Group(process()?))),
            "process" => Some(Self::Watch(Target::Process(process()?))),
            "until" => Some(Self::Until(Moment::from_nanos(number.parse().ok()?))),
            _ => None,
        }
    }
}

/// The orders that the warden has received so far.
#[derive(Debug)]
pub(crate) struct Orders {
    pub(crate) target: Option<Target>,
    until: Moment,
    /// The beginning of an order that has not been received in full.
    rest: String,
}

impl Default for Orders {
    fn default() -> Self {
        Self { target: None, until: Moment::NEVER, rest: String::new() }
    }
}

impl Orders {
    /// Returns when to kill: never as long as there is no target. A target that arrives after that time is killed at once.
    pub(crate) fn end(&self) -> Moment {
        if self.target.is_some() { self.until } else { Moment::NEVER }
    }

    /// Applies the orders in what was received.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.rest.push_str(&String::from_utf8_lossy(bytes));
        while let Some((line, rest)) = self.rest.split_once('\n') {
            match Order::decode(line) {
                Some(Order::Watch(target)) => self.target = Some(target),
                Some(Order::Until(until)) => self.until = until,
                None => {}
            }
            self.rest = rest.to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(order: Order) -> Vec<u8> {
        let mut line = [0; Order::MAX];
        let length = order.encode(&mut line);
        line[..length].to_vec()
    }

    #[test]
    fn every_order_is_decoded_as_it_was_encoded() {
        let id = Pid::from_raw(i32::MAX).unwrap();
        let until = Moment::from_nanos(u64::MAX);
        let mut orders = Orders::default();
        orders.receive(&line(Order::Watch(Target::Process(id))));
        assert_eq!(orders.target, Some(Target::Process(id)));
        orders.receive(&line(Order::Watch(Target::Group(id))));
        orders.receive(&line(Order::Until(until)));
        assert_eq!((orders.target, orders.until), (Some(Target::Group(id)), until));
    }

    #[test]
    fn the_end_of_the_lease_counts_once_there_is_a_target() {
        let until = Moment::from_nanos(5);
        let mut orders = Orders::default();
        orders.receive(&line(Order::Until(until)));
        assert_eq!(orders.end(), Moment::NEVER);
        orders.receive(&line(Order::Watch(Target::Group(Pid::INIT))));
        assert_eq!(orders.end(), until);
    }

    #[test]
    fn an_order_may_arrive_in_parts_and_several_at_once() {
        let mut orders = Orders::default();
        orders.receive(b"until 1\nunt");
        assert_eq!(orders.until, Moment::from_nanos(1));
        orders.receive(b"il 2\nuntil 3");
        assert_eq!(orders.until, Moment::from_nanos(2));
        orders.receive(b"4\n");
        assert_eq!(orders.until, Moment::from_nanos(34));
    }

    #[test]
    fn a_malformed_order_is_ignored() {
        let mut orders = Orders::default();
        orders.receive(b"\ngroup\ngroup -1x\ngroup 0\nkill 7\nuntil -5\n\xff\xfe\n");
        assert_eq!((orders.target, orders.until), (None, Moment::NEVER));
    }
}
