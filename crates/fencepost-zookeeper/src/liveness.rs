//! When the leader of an ensemble last heard of a session, as far as answers prove it. Pure bookkeeping.
//!
//! A leader counts a session's time from the last report of the server that the client is connected to. Reports are the
//! replies to the leader's pings, which leave every half tick; neither a write nor a `sync` extends a session. What their
//! answers prove is order. Leader and follower talk through two streams that keep their order: when an answer of the leader
//! has arrived, all pings that the leader sent before it have been replied to, and those replies go ahead of whatever the
//! client sends next. So the report of a request that was *heard* has reached the leader when these have followed:
//!
//! 1. a request that was sent half a tick later: a ping was due, and the leader was *running*;
//! 2. one that was sent a [`SessionRange::gap`] after the answer to that: the ping was sent, however long the leader stood still
//!    before;
//! 3. a write that was sent after the answer to that: the reply was processed before the write, and the session lived.
//!
//! Answers that arrive in one burst after a stall prove nothing about each other: none was sent after the answer to another.

use std::collections::VecDeque;

use fencepost_core::clock::Moment;

use crate::session_range::SessionRange;

/// How many round round_trips are remembered: those of two ticks, if there are many.
const MAX_ROUND_TRIPS: usize = 64;

/// A request that passes through the leader and is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) sent: Moment,
    /// The newest report that the leader has processed when it processes this request.
    last_report: Moment,
}

/// A request that passed through the leader, and its answer.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    sent: Moment,
    answered: Moment,
}

/// What is known about one session.
#[derive(Debug)]
pub(crate) struct Liveness {
    range: SessionRange,
    opened: Moment,
    /// The leases of the session count from this moment.
    lease_start: Moment,
    round_trips: VecDeque<RoundTrip>,
}

impl Liveness {
    /// Liveness for a session that was requested at this moment: the leader creates it, and counts its time from then.
    pub(crate) fn new(range: SessionRange, opened: Moment) -> Self {
        Self { range, opened, lease_start: opened, round_trips: VecDeque::with_capacity(MAX_ROUND_TRIPS) }
    }

    /// Records a request that is sent now.
    pub(crate) fn on_send(&self, now: Moment) -> Request {
        Request { sent: now, last_report: self.last_report(now) }
    }

    /// Records that a request which passed through the leader was answered.
    pub(crate) fn on_reply(&mut self, request: Request, now: Moment) {
        // A few in each gap are enough, however many there are.
        let is_dense = match self.round_trips.make_contiguous() {
            [.., before, last] => last.sent.since(before.sent) < self.range.gap() / 4,
            _ => false,
        };
        if is_dense {
            self.round_trips.pop_back();
        } else if self.round_trips.len() == MAX_ROUND_TRIPS {
            self.round_trips.pop_front();
        }
        self.round_trips.push_back(RoundTrip { sent: request.sent, answered: now });
    }

    /// Records that a write was answered, which proves that the session lived.
    pub(crate) fn on_write_reply(&mut self, request: Request, now: Moment) {
        self.on_reply(request, now);
        self.lease_start = self.lease_start.max(self.lease_start_of(request));
    }

    /// Returns the moment from which a lease would count whose write is sent now.
    pub(crate) fn lease_start_if_sent(&self, now: Moment) -> Moment {
        self.lease_start_of(self.on_send(now))
    }

    fn lease_start_of(&self, write: Request) -> Moment {
        if self.range.has_followers {
            write.sent.min(write.last_report + self.range.margin())
        } else {
            write.sent
        }
    }

    /// Returns the moment from which leases count: the session lives for a ttl after it.
    pub(crate) fn lease_start(&self) -> Moment {
        self.lease_start
    }

    /// Returns when the newest request was sent whose report the leader has before anything that is sent now.
    fn last_report(&self, now: Moment) -> Moment {
        let last = self.newest_answered_by(now);
        let running = last.and_then(|last| self.newest_answered_by(last.sent - self.range.gap()));
        let heard =
            running.and_then(|running| self.newest_answered_by(running.sent - self.range.half_tick()));
        heard.map_or(self.opened, |heard| heard.sent)
    }

    fn newest_answered_by(&self, moment: Moment) -> Option<RoundTrip> {
        let answered = self.round_trips.iter().filter(|trip| trip.answered <= moment);
        answered.max_by_key(|trip| trip.sent).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A tick of 800 ms: pings every 400, a gap of 100, a margin of 800.
    const RANGE: SessionRange = SessionRange {
        shortest: Duration::from_millis(1600),
        longest: Duration::from_secs(60),
        has_followers: true,
    };

    fn at(millis: u64) -> Moment {
        Moment::START + Duration::from_millis(10_000 + millis)
    }

    /// From when leases count after round round_trips, given as milliseconds of sends and answers, of which the last is a write. The
    /// session was opened ten seconds before.
    fn lease_start_after(round_trips: &[(u64, u64)]) -> Moment {
        let mut liveness = Liveness::new(RANGE, at(0) - Duration::from_secs(10));
        let mut events: Vec<(u64, bool, usize)> = Vec::new();
        for (index, (sent, answered)) in round_trips.iter().enumerate() {
            events.extend([(*sent, false, index), (*answered, true, index)]);
        }
        // What is answered and sent in the same moment is sent first: it proves nothing.
        events.sort_unstable();
        let mut requests = vec![None; round_trips.len()];
        for (time, is_answer, index) in events {
            match requests[index] {
                Some(request) if is_answer && index + 1 == round_trips.len() => {
                    liveness.on_write_reply(request, at(time))
                }
                Some(request) => liveness.on_reply(request, at(time)),
                None => requests[index] = Some(liveness.on_send(at(time))),
            }
        }
        liveness.lease_start()
    }

    fn steady(from: u64, to: u64) -> Vec<(u64, u64)> {
        (from..to).step_by(100).map(|sent| (sent, sent + 5)).collect()
    }

    #[test]
    fn a_lease_counts_from_its_write_if_the_leader_answers_all_the_time() {
        for round_trips in [steady(0, 2000), (0..2000).map(|sent| (sent, sent + 1)).collect()] {
            let (sent, _) = *round_trips.last().unwrap();
            assert_eq!(lease_start_after(&round_trips), at(sent));
        }
    }

    #[test]
    fn a_stall_counts_whatever_arrives_in_the_burst_after_it() {
        let before = steady(0, 1000);
        let calm = lease_start_after(&before);
        for burst in [
            vec![(2900, 3000)],
            vec![(1000, 3000), (2900, 3000)],
            (1000..2990).step_by(10).map(|sent| (sent, 3000)).collect(),
        ] {
            let round_trips = [before.clone(), burst].concat();
            let lease_start = lease_start_after(&round_trips);
            assert!(lease_start >= calm && lease_start <= at(900) + RANGE.margin(), "{lease_start:?}");
        }
    }

    #[test]
    fn a_write_after_a_burst_does_not_make_the_stall_undone() {
        // Sent during the stall, before it and after it.
        let round_trips = [steady(0, 1000), vec![(1000, 3000), (2900, 3000), (3001, 3005)]].concat();
        assert!(lease_start_after(&round_trips) <= at(900) + RANGE.margin());
    }

    #[test]
    fn a_session_that_was_silent_is_not_proven_at_once() {
        let round_trips = [steady(0, 1000), vec![(60_000, 60_005)]].concat();
        assert!(lease_start_after(&round_trips) <= at(900) + RANGE.margin());
        let round_trips = [steady(0, 1000), vec![(60_000, 60_005), (60_006, 60_010)]].concat();
        assert!(lease_start_after(&round_trips) <= at(1000) + RANGE.margin());
        let round_trips = [steady(0, 1000), steady(60_000, 60_900)].concat();
        assert_eq!(lease_start_after(&round_trips), at(60_800));
    }

    #[test]
    fn a_ping_that_is_due_while_the_leader_stands_still_is_not_taken_for_sent() {
        // The leader stands still from 1000 to 3000; the two requests of that time are answered before the ping is sent.
        let round_trips = [steady(0, 1000), vec![(1010, 3000), (3001, 3002), (3003, 3004)]].concat();
        assert!(lease_start_after(&round_trips) <= at(900) + RANGE.margin());
    }

    #[test]
    fn a_new_session_needs_no_more_evidence() {
        let mut liveness = Liveness::new(RANGE, at(0));
        let write = liveness.on_send(at(700));
        liveness.on_write_reply(write, at(705));
        assert_eq!(liveness.lease_start(), at(700));
        let late = liveness.on_send(at(1000));
        liveness.on_write_reply(late, at(1005));
        assert_eq!(liveness.lease_start(), at(0) + RANGE.margin());
    }

    #[test]
    fn a_server_that_stands_alone_hears_of_a_session_by_itself() {
        let mut liveness = Liveness::new(SessionRange { has_followers: false, ..RANGE }, at(0));
        let write = liveness.on_send(at(60_000));
        liveness.on_write_reply(write, at(90_000));
        assert_eq!(liveness.lease_start(), at(60_000));
    }
}
