//! Polls for grants whose wake-up was lost. Datagrams are lost because the queue of a socket is short and another user's socket
//! may reject them. So a client with waiters checks at an interval whether the file has changed, and if so checks each of its
//! waiters, a page at a time: a poll is complete when all of them were checked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{Op, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::record::Ticket;
use fencepost_core::{Attempt, Owner, Result};

/// The interval between polls of a client with waiters.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The interval between the pages of one poll, which leaves the writer thread time for flights.
const PAGE_INTERVAL: Duration = Duration::from_millis(10);
/// The number of waiters in a page.
const PAGE_SIZE: usize = 256;
/// Bounds one wait for jobs of a client without waiters.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// The waiting attempts of this client by owner. Wake-ups of other processes name only the owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiters(Arc<Mutex<HashMap<Owner, Waiter>>>);

impl Waiters {
    pub(crate) fn attempt(&self, owner: Owner) -> Option<Arc<Attempt>> {
        self.lock().get(&owner).map(|waiter| waiter.attempt.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, Waiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waiters of a client, and when to poll for which.
#[derive(Debug)]
pub(crate) struct WaiterPoll {
    pub(crate) waiters: Waiters,
    /// The waiters that the current poll has not checked yet.
    unchecked: Vec<Owner>,
    /// The version of the file at the beginning of the last poll.
    version: Option<i64>,
    /// When the next page is due.
    due: Moment,
}

#[derive(Debug)]
struct Waiter {
    attempt: Arc<Attempt>,
    /// Its queue position.
    seq: u64,
}

impl Default for WaiterPoll {
    fn default() -> Self {
        Self { waiters: Waiters::default(), unchecked: Vec::new(), version: None, due: Moment::START }
    }
}

impl WaiterPoll {
    /// Returns how long the writer thread may wait for jobs.
    pub(crate) fn timeout(&self, now: Moment) -> Duration {
        if self.waiters.lock().is_empty() { IDLE_TIMEOUT } else { self.due.since(now) }
    }

    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.due <= now && !self.waiters.lock().is_empty()
    }

    /// Makes a poll of all waiters due at once, because a wake-up may have been lost.
    pub(crate) fn poll_now(&mut self, now: Moment) {
        self.version = None;
        self.due = now;
    }

    /// Returns the waiters to check now, given the version of the file if it can be read. A poll that has begun is completed
    /// first, so that all waiters are checked although the file changes all the time.
    pub(crate) fn next_page(&mut self, version: Option<i64>, now: Moment) -> Vec<Arc<Attempt>> {
        let waiters = self.waiters.lock();
        if self.unchecked.is_empty() && version.is_some() && version != self.version {
            self.version = version;
            self.unchecked.extend(waiters.keys());
        }
        let rest = self.unchecked.len().saturating_sub(PAGE_SIZE);
        let page = self
            .unchecked
            .drain(rest..)
            .filter_map(|owner| waiters.get(&owner))
            .map(|waiter| waiter.attempt.clone())
            .collect();
        self.due = now + if self.unchecked.is_empty() { POLL_INTERVAL } else { PAGE_INTERVAL };
        page
    }

    /// Returns the queue position that this owner had when it was last read.
    pub(crate) fn seq(&self, owner: Owner) -> Option<u64> {
        self.waiters.lock().get(&owner).map(|waiter| waiter.seq)
    }

    /// Adds the attempts that wait after a flight and removes those that no longer wait. `tickets` are those that were read for
    /// the flight.
    pub(crate) fn update(
        &mut self,
        ops: &[Op],
        replies: &[Result<Reply>],
        tickets: &HashMap<Owner, Ticket>,
        now: Moment,
    ) {
        let mut waiters = self.waiters.lock();
        if waiters.is_empty() {
            self.due = now + POLL_INTERVAL;
        }
        for (op, reply) in ops.iter().zip(replies) {
            let Some(attempt) = op.attempt() else { continue };
            if !matches!(reply, Ok(Reply::Waiting { .. })) {
                waiters.remove(&attempt.owner);
            } else if let Some(ticket) = tickets.get(&attempt.owner) {
                let waiter = Waiter { attempt: attempt.clone(), seq: ticket.seq };
                waiters.insert(attempt.owner, waiter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::backend::OnBusy;
    use fencepost_core::clock::StorageTime;
    use fencepost_core::record::ClientId;
    use fencepost_core::{LockName, Mode, Rule, Want};

    use super::*;

    fn add_waiter(poll: &mut WaiterPoll) {
        let want = Want { name: LockName::new("a").unwrap(), mode: Mode::Shared };
        let ttl = Duration::from_secs(30);
        let owner = Owner::random();
        let attempt =
            Attempt { owner, wants: vec![want], rule: Rule::All, ttl, label: "test".into(), meta: [].into() };
        let attempt = Arc::new(attempt);
        let until = StorageTime::from_nanos(0) + ttl;
        let ticket =
            Ticket { attempt: attempt.clone(), seq: 1, until, since: Duration::ZERO, client: ClientId(1) };
        let op = Op::Acquire { attempt, on_busy: OnBusy::Wait };
        let replies = [Ok(Reply::Waiting { check_after: ttl })];
        poll.update(&[op], &replies, &HashMap::from([(owner, ticket)]), Moment::START);
    }

    #[test]
    fn a_poll_checks_every_waiter_although_the_file_changes_meanwhile() {
        let mut poll = WaiterPoll::default();
        (0..1_000).for_each(|_| add_waiter(&mut poll));
        let mut checked = std::collections::HashSet::new();
        for version in 0..4 {
            let page = poll.next_page(Some(version), Moment::START);
            assert!(page.len() <= PAGE_SIZE);
            checked.extend(page.iter().map(|attempt| attempt.owner));
        }
        assert_eq!(checked.len(), 1_000);
        assert!(
            !poll.next_page(Some(4), Moment::START).is_empty(),
            "the file has changed since the poll began"
        );
    }

    #[test]
    fn a_file_that_has_not_changed_is_not_polled() {
        let mut poll = WaiterPoll::default();
        add_waiter(&mut poll);
        assert_eq!(poll.next_page(Some(7), Moment::START).len(), 1);
        assert!(poll.next_page(Some(7), Moment::START).is_empty());
        assert!(!poll.is_due(Moment::START) && poll.is_due(Moment::START + POLL_INTERVAL));
        poll.poll_now(Moment::START);
        assert!(poll.is_due(Moment::START));
        assert_eq!(poll.next_page(Some(7), Moment::START).len(), 1);
    }
}
