//! When leases of a session start: what replies prove about the time at which the leader last received a report of the
//! session. No I/O.
//!
//! A leader measures a session's timeout from the last report of the server that the client is connected to. Reports
//! are the replies to the leader's pings, which are sent every half tick; neither a write nor a `sync` extends a
//! session. What their replies prove is order. Leader and follower communicate through two streams that keep their
//! order: when a reply of the leader has arrived, the follower has replied to all pings that the leader sent before it,
//! and these replies precede everything that the client sends next. So the leader has the report of a request that was
//! answered (*reported*) when these have followed:
//!
//! 1. a request sent half a tick later and answered: a ping was due, and the leader was *running*;
//! 2. a request sent a [`SessionRange::gap`] after that reply: the ping was sent, however long the leader was stalled
//!    before;
//! 3. a write sent after the reply to that: the follower's report was processed before the write, and the session was
//!    alive.
//!
//! Replies that arrive in one burst after a stall prove nothing about each other: no request was sent after the reply
//! to another.

use std::collections::VecDeque;

use fencepost_core::clock::Moment;

use crate::session_range::SessionRange;

/// The maximum number of round trips that are remembered: those of two ticks under load.
const MAX_ROUND_TRIPS: usize = 64;

/// A request in flight that passes through the leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) sent: Moment,
    /// The newest report that the leader has processed when it processes this request.
    last_report: Moment,
}

/// A request that passed through the leader, and its reply.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    sent: Moment,
    answered: Moment,
}

/// The round trips of one session and what they prove.
#[derive(Debug)]
pub(crate) struct Liveness {
    range: SessionRange,
    opened: Moment,
    /// The start of the session's leases.
    lease_start: Moment,
    round_trips: VecDeque<RoundTrip>,
}

impl Liveness {
    /// Creates the record of a session that was requested at `opened`. The leader creates the session and measures its
    /// timeout from then.
    pub(crate) fn new(range: SessionRange, opened: Moment) -> Self {
        Self { range, opened, lease_start: opened, round_trips: VecDeque::with_capacity(MAX_ROUND_TRIPS) }
    }

    /// Starts a request that passes through the leader and is sent now.
    pub(crate) fn start_request(&self, now: Moment) -> Request {
        Request { sent: now, last_report: self.last_report(now) }
    }

    /// Records the reply to a request that passed through the leader.
    pub(crate) fn on_reply(&mut self, request: Request, now: Moment) {
        // A few round trips per gap are enough.
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

    /// Records the reply to a write, which proves that the session was alive.
    pub(crate) fn on_write_reply(&mut self, request: Request, now: Moment) {
        self.on_reply(request, now);
        self.lease_start = self.lease_start.max(self.lease_start_of(request));
    }

    /// Returns the lease start that a write sent now would prove.
    pub(crate) fn lease_start_if_sent(&self, now: Moment) -> Moment {
        self.lease_start_of(self.start_request(now))
    }

    fn lease_start_of(&self, write: Request) -> Moment {
        if self.range.has_followers {
            write.sent.min(write.last_report + self.range.margin())
        } else {
            write.sent
        }
    }

    /// Returns the start of the session's leases: the session lives for at least a ttl after it.
    pub(crate) fn lease_start(&self) -> Moment {
        self.lease_start
    }

    /// Returns when the newest request was sent whose report the leader has before everything that is sent now.
    fn last_report(&self, now: Moment) -> Moment {
        let last = self.newest_answered_by(now);
        let running = last.and_then(|last| self.newest_answered_by(last.sent - self.range.gap()));
        let reported =
            running.and_then(|running| self.newest_answered_by(running.sent - self.range.half_tick()));
        reported.map_or(self.opened, |reported| reported.sent)
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

    /// A tick of 800 ms: pings every 400 ms, a gap of 100 ms, a margin of 800 ms.
    const RANGE: SessionRange = SessionRange {
        shortest: Duration::from_millis(1600),
        longest: Duration::from_secs(60),
        has_followers: true,
    };

    fn at(millis: u64) -> Moment {
        Moment::START + Duration::from_millis(10_000 + millis)
    }

    /// Returns the lease start after these round trips, given as milliseconds of requests and replies; the last one is
    /// a write. The session was opened ten seconds earlier.
    fn lease_start_after(round_trips: &[(u64, u64)]) -> Moment {
        let mut liveness = Liveness::new(RANGE, at(0) - Duration::from_secs(10));
        let mut events: Vec<(u64, bool, usize)> = Vec::new();
        for (index, (sent, answered)) in round_trips.iter().enumerate() {
            events.extend([(*sent, false, index), (*answered, true, index)]);
        }
        // Of a reply and a request at the same time the request comes first: it proves nothing.
        events.sort_unstable();
        let mut requests = vec![None; round_trips.len()];
        for (time, is_answer, index) in events {
            match requests[index] {
                Some(request) if is_answer && index + 1 == round_trips.len() => {
                    liveness.on_write_reply(request, at(time));
                }
                Some(request) => liveness.on_reply(request, at(time)),
                None => requests[index] = Some(liveness.start_request(at(time))),
            }
        }
        liveness.lease_start()
    }

    fn steady(from: u64, to: u64) -> Vec<(u64, u64)> {
        (from..to).step_by(100).map(|sent| (sent, sent + 5)).collect()
    }

    #[test]
    fn a_lease_starts_at_its_write_if_the_leader_replies_steadily() {
        for round_trips in [steady(0, 2000), (0..2000).map(|sent| (sent, sent + 1)).collect()] {
            let (sent, _) = *round_trips.last().unwrap();
            assert_eq!(lease_start_after(&round_trips), at(sent));
        }
    }

    #[test]
    fn a_burst_of_replies_does_not_hide_the_stall_before_it() {
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
    fn a_write_after_a_burst_does_not_hide_the_stall() {
        // Sent before, during and after the stall.
        let round_trips = [steady(0, 1000), vec![(1000, 3000), (2900, 3000), (3001, 3005)]].concat();
        assert!(lease_start_after(&round_trips) <= at(900) + RANGE.margin());
    }

    #[test]
    fn the_first_write_of_an_idle_session_proves_little() {
        let round_trips = [steady(0, 1000), vec![(60_000, 60_005)]].concat();
        assert!(lease_start_after(&round_trips) <= at(900) + RANGE.margin());
        let round_trips = [steady(0, 1000), vec![(60_000, 60_005), (60_006, 60_010)]].concat();
        assert!(lease_start_after(&round_trips) <= at(1000) + RANGE.margin());
        let round_trips = [steady(0, 1000), steady(60_000, 60_900)].concat();
        assert_eq!(lease_start_after(&round_trips), at(60_800));
    }

    #[test]
    fn a_ping_that_is_due_during_a_stall_of_the_leader_is_not_assumed_sent() {
        // The leader is stalled from 1000 to 3000; both requests of that time are answered before the ping is sent.
        let round_trips = [steady(0, 1000), vec![(1010, 3000), (3001, 3002), (3003, 3004)]].concat();
        assert!(lease_start_after(&round_trips) <= at(900) + RANGE.margin());
    }

    #[test]
    fn a_new_session_is_reported_by_its_creation() {
        let mut liveness = Liveness::new(RANGE, at(0));
        let write = liveness.start_request(at(700));
        liveness.on_write_reply(write, at(705));
        assert_eq!(liveness.lease_start(), at(700));
        let late = liveness.start_request(at(1000));
        liveness.on_write_reply(late, at(1005));
        assert_eq!(liveness.lease_start(), at(0) + RANGE.margin());
    }

    #[test]
    fn a_standalone_server_needs_no_reports() {
        let mut liveness = Liveness::new(SessionRange { has_followers: false, ..RANGE }, at(0));
        let write = liveness.start_request(at(60_000));
        liveness.on_write_reply(write, at(90_000));
        assert_eq!(liveness.lease_start(), at(60_000));
    }
}
