//! How often the first waiter looks at the row, and for how long a client leaves a lock to others.
//!
//! Other clients poll: if the waiters of one client handed the lock over to each other without a gap, they would never find it
//! free.

use std::time::Duration;

use fencepost_core::clock::Moment;

/// The shortest and the longest time between two looks at a row that another client holds.
const POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// How long the holders of one client may follow each other before it leaves a gap, and the longest gap.
const MAX_STREAK: Duration = Duration::from_millis(35);
const MAX_GAP: Duration = Duration::from_millis(100);
/// A lock that was free for longer has no streak.
const STREAK_GAP: Duration = Duration::from_millis(10);

/// What a client has seen of one lock.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The holder that was last seen.
    holder: Option<SeenHolder>,
    /// When the first of this client's holders acquired the lock that have had it one after the other, and when the last of
    /// them released it.
    streak: Option<(Moment, Option<Moment>)>,
    gap_until: Option<Moment>,
    /// When a waiter last looked at the row while a holder of this client had it, or when that acquired it.
    looked: Option<Moment>,
}

/// A holder of another client.
#[derive(Debug)]
struct SeenHolder {
    value: String,
    since: Moment,
    /// The end of its lease.
    until: Option<Moment>,
}

/// How much later a lease must end to be a new one, and not the same one seen through a slower reply.
const NEW_LEASE: Duration = Duration::from_millis(20);

/// Adds jitter, so that clients do not poll at the same time.
pub(super) fn jittered(duration: Duration, random: f64) -> Duration {
    duration.mul_f64(0.5 + random.clamp(0.0, 1.0))
}

impl Pace {
    /// Records a holder of another client. Returns when to look again: soon if holders change quickly. A value that is not
    /// unique, such as a host name, belongs to another holder if the lease ends later than before.
    pub(super) fn on_held(
        &mut self,
        (value, is_unique): (&str, bool),
        left: Option<Duration>,
        now: Moment,
        random: f64,
    ) -> Duration {
        self.streak = None;
        let until = left.map(|left| now + left);
        let is_same = |seen: &&SeenHolder| {
            seen.value == value && (is_unique || until <= seen.until.map(|until| until + NEW_LEASE))
        };
        let since = self.holder.as_ref().filter(is_same).map_or(now, |seen| seen.since);
        self.holder = Some(SeenHolder { value: value.to_owned(), since, until });
        let interval = jittered((now.since(since) / 4).clamp(POLL.0, POLL.1), random);
        left.map_or(interval, |left| interval.min(left + Duration::from_millis(1)))
    }

    /// Records that the row was not free although no holder was seen. Returns when to look again.
    pub(super) fn on_contended(random: f64) -> Duration {
        jittered(POLL.0, random)
    }

    /// Returns how long it takes until the row of this client's own holder is to be looked at again; `None` if it is looked at
    /// now.
    pub(super) fn looked_before(&mut self, interval: Duration, now: Moment) -> Option<Duration> {
        let due = self.looked.map(|looked| looked + interval).filter(|due| *due > now);
        if due.is_none() {
            self.looked = Some(now);
        }
        due.map(|due| due.since(now))
    }

    /// Records a grant of this client.
    pub(super) fn on_granted(&mut self, now: Moment) {
        self.holder = None;
        self.looked = Some(now);
        let start = match self.streak {
            Some((start, Some(released))) if now.since(released) <= STREAK_GAP => start,
            Some((start, None)) => start,
            _ => now,
        };
        self.streak = Some((start, None));
    }

    /// Records a release of this client, which leaves a gap if its holders have had the lock for long.
    pub(super) fn on_released(&mut self, now: Moment, random: f64) {
        let Some((start, _)) = self.streak else { return };
        let streak = now.since(start);
        if streak < MAX_STREAK {
            self.streak = Some((start, Some(now)));
        } else {
            self.streak = None;
            self.gap_until = Some(now + jittered(streak.min(MAX_GAP), random));
        }
    }

    /// Returns how long the lock is still left to others.
    pub(super) fn gap(&self, now: Moment) -> Option<Duration> {
        self.gap_until.filter(|until| *until > now).map(|until| until.since(now))
    }

    /// Returns whether nothing has to be remembered of a lock that this client does not hold.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        let is_recent = |at: Moment| now.since(at) <= MAX_GAP * 2;
        let has_streak = self.streak.is_some_and(|(_, released)| released.is_some_and(is_recent));
        let has_holder = self.holder.as_ref().is_some_and(|seen| is_recent(seen.since));
        !has_streak && !has_holder && self.gap(now).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

    fn after(millis: u64) -> Moment {
        NOW + Duration::from_millis(millis)
    }

    #[test]
    fn a_client_leaves_a_gap_after_a_streak() {
        let mut pace = Pace::default();
        for round in 0..4 {
            pace.on_granted(after(round * 10));
            pace.on_released(after(round * 10 + 9), 0.5);
            assert_eq!(pace.gap(after(round * 10 + 9)).is_some(), round == 3, "{round}");
        }
        assert_eq!(pace.gap(after(39)), Some(Duration::from_millis(39)));
        assert!(!pace.is_over(after(77)) && pace.is_over(after(78)));
        pace.on_granted(after(100));
        pace.on_released(after(9_000), 1.0);
        assert_eq!(pace.gap(after(9_000)), Some(Duration::from_millis(150)));
    }

    #[test]
    fn a_lock_that_others_had_in_between_has_no_streak() {
        let mut pace = Pace::default();
        for round in 0..10 {
            pace.on_granted(after(round * 30));
            pace.on_released(after(round * 30 + 9), 0.5);
            assert!(pace.gap(after(round * 30 + 9)).is_none());
        }
    }

    #[test]
    fn the_row_of_an_own_holder_is_looked_at_now_and_then() {
        let (mut pace, second) = (Pace::default(), Duration::from_secs(1));
        pace.on_granted(after(0));
        assert_eq!(pace.looked_before(second, after(400)), Some(Duration::from_millis(600)));
        assert_eq!(pace.looked_before(second, after(1_000)), None);
        assert_eq!(pace.looked_before(second, after(1_100)), Some(Duration::from_millis(900)));
    }

    #[test]
    fn a_holder_that_stays_is_looked_at_less_often() {
        let mut pace = Pace::default();
        let millis = |millis| Duration::from_millis(millis);
        assert_eq!(pace.on_held(("a", true), None, after(0), 0.5), millis(5));
        assert_eq!(pace.on_held(("a", true), None, after(200), 0.5), millis(50));
        assert_eq!(pace.on_held(("a", true), None, after(20_000), 0.5), millis(250));
        assert_eq!(pace.on_held(("a", true), Some(millis(30)), after(20_000), 0.5), millis(31));
        assert_eq!(pace.on_held(("b", true), None, after(20_000), 0.5), millis(5));
        let lease = |left| Some(millis(left));
        assert_eq!(pace.on_held(("host", false), lease(10_000), after(0), 0.5), millis(5));
        assert_eq!(pace.on_held(("host", false), lease(9_805), after(200), 0.5), millis(50));
        assert_eq!(pace.on_held(("host", false), lease(10_000), after(400), 0.5), millis(5));
    }
}
