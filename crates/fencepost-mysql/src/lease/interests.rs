//! What a client waits for and holds: which pushes it expects, and how soon. No I/O.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Op, Reply, Wakeup};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Award, LockName, Owner, Result};

/// The interval of polls is this part of the time since the last event: a lock that is handed over often is polled often.
const PART_OF_SILENCE: u32 = 8;
/// The shortest interval.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
/// The longest interval of a client that waits.
const MAX_INTERVAL: Duration = Duration::from_millis(100);
/// The interval of a client that only holds locks: it is told if one of them is broken.
const HOLDING_INTERVAL: Duration = Duration::from_secs(1);
/// With more locks than this it is not examined which of them this client holds itself.
const MAX_EXAMINED: usize = 64;

/// The locks that a client waits for and holds.
#[derive(Debug)]
pub(crate) struct Interests {
    waiting: HashMap<Owner, Arc<Attempt>>,
    /// How many waiters each lock has.
    names: HashMap<LockName, usize>,
    /// The locks that this client holds, until then unless they are renewed: it hands them over itself.
    held: HashMap<LockName, Moment>,
    /// When the last lease of this client ends, unless it is renewed.
    holds_until: Moment,
    /// When something happened last.
    last_event: Moment,
}

impl Default for Interests {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            names: HashMap::new(),
            held: HashMap::new(),
            holds_until: Moment::START,
            last_event: Moment::START,
        }
    }
}

impl Interests {
    /// Updates it after a flight.
    pub(crate) fn update(&mut self, ops: &[Op], replies: &[Result<Reply>], now: Moment) {
        for (op, reply) in ops.iter().zip(replies) {
            let Some(attempt) = op.attempt() else { continue };
            match reply {
                Ok(Reply::Waiting { .. }) => self.wait(attempt, now),
                Ok(Reply::Granted(award) | Reply::AlreadyGranted(award)) => self.granted(attempt, award, now),
                Ok(Reply::Renewed { ttl }) => self.holds_until = self.holds_until.max(now + *ttl),
                Ok(Reply::Busy | Reply::NoTicket | Reply::Left) => self.stop_waiting(attempt.owner),
                Ok(Reply::Released | Reply::NotHeld) => {
                    for want in op.wants() {
                        self.held.remove(&want.name);
                    }
                    self.last_event = now;
                }
                Ok(Reply::Cell(_) | Reply::Written) | Err(_) => {}
            }
        }
    }

    /// Updates it by a push to this client.
    pub(crate) fn pushed(&mut self, push: &Wakeup, now: Moment) {
        if let Wakeup::Granted { attempt, award } = push {
            self.granted(attempt, award, now);
        }
    }

    /// Returns the attempt of an owner that waits.
    pub(crate) fn attempt(&self, owner: Owner) -> Option<Arc<Attempt>> {
        self.waiting.get(&owner).cloned()
    }

    /// Returns the time until the next poll; `None` if nothing is expected.
    pub(crate) fn interval(&self, now: Moment) -> Option<Duration> {
        if self.waiting.is_empty() {
            return (self.holds_until > now).then_some(HOLDING_INTERVAL);
        }
        let is_held_here = |name: &LockName| self.held.get(name).is_some_and(|until| *until > now);
        if self.names.len() <= MAX_EXAMINED && self.names.keys().all(is_held_here) {
            return Some(MAX_INTERVAL);
        }
        Some((now.since(self.last_event) / PART_OF_SILENCE).clamp(MIN_INTERVAL, MAX_INTERVAL))
    }

    fn wait(&mut self, attempt: &Arc<Attempt>, now: Moment) {
        if self.waiting.insert(attempt.owner, attempt.clone()).is_none() {
            for want in &attempt.wants {
                *self.names.entry(want.name.clone()).or_default() += 1;
            }
            self.last_event = now;
        }
    }

    fn stop_waiting(&mut self, owner: Owner) {
        let Some(attempt) = self.waiting.remove(&owner) else { return };
        for want in &attempt.wants {
            if let Some(count) = self.names.get_mut(&want.name) {
                *count -= 1;
                if *count == 0 {
                    self.names.remove(&want.name);
                }
            }
        }
    }

    fn granted(&mut self, attempt: &Arc<Attempt>, award: &Award, now: Moment) {
        self.stop_waiting(attempt.owner);
        self.last_event = now;
        self.holds_until = self.holds_until.max(now + award.ttl);
        if self.held.len() > 4 * MAX_EXAMINED {
            self.held.retain(|_, until| *until > now);
        }
        if self.held.len() <= 4 * MAX_EXAMINED {
            let names = attempt.wants.iter().map(|want| want.name.clone());
            self.held.extend(names.map(|name| (name, now + award.ttl)));
        }
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::backend::OnBusy;
    use fencepost_core::{FencingToken, Grant, Mode, Rule, Want};

    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn attempt(name: &str) -> Arc<Attempt> {
        let wants = vec![Want { name: LockName::new(name).unwrap(), mode: Mode::Exclusive }];
        let label = "test".into();
        Arc::new(Attempt { owner: Owner::random(), wants, rule: Rule::All, ttl: TTL, label, meta: [].into() })
    }

    fn award() -> Award {
        Award { token: FencingToken::new(1), ttl: TTL, chosen: 0, elapsed: Duration::ZERO }
    }

    fn acquire(interests: &mut Interests, attempt: &Arc<Attempt>, reply: Reply, now: Moment) {
        let op = Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait };
        interests.update(&[op], &[Ok(reply)], now);
    }

    #[test]
    fn the_interval_follows_the_time_since_the_last_event() {
        let mut interests = Interests::default();
        let (start, waiter) = (Moment::START + TTL, attempt("a"));
        assert_eq!(interests.interval(start), None);
        acquire(&mut interests, &waiter, Reply::Waiting { check_after: TTL }, start);
        assert_eq!(interests.interval(start), Some(MIN_INTERVAL));
        let later = start + Duration::from_millis(400);
        assert_eq!(interests.interval(later), Some(Duration::from_millis(50)));
        assert_eq!(interests.interval(start + TTL), Some(MAX_INTERVAL));
        assert!(interests.attempt(waiter.owner).is_some());
        interests.pushed(&Wakeup::Granted { attempt: waiter.clone(), award: award() }, later);
        assert!(interests.attempt(waiter.owner).is_none());
        assert_eq!(interests.interval(later), Some(HOLDING_INTERVAL));
        assert_eq!(interests.interval(later + TTL), None);
    }

    #[test]
    fn a_lock_that_the_client_itself_hands_over_is_polled_slowly() {
        let mut interests = Interests::default();
        let (now, holder, waiter) = (Moment::START + TTL, attempt("a"), attempt("a"));
        acquire(&mut interests, &holder, Reply::Granted(award()), now);
        acquire(&mut interests, &waiter, Reply::Waiting { check_after: TTL }, now);
        assert_eq!(interests.interval(now), Some(MAX_INTERVAL));
        let release = Op::Release(Grant { attempt: holder, award: award() });
        interests.update(&[release], &[Ok(Reply::Released)], now);
        assert_eq!(interests.interval(now), Some(MIN_INTERVAL));
    }
}
