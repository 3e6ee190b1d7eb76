//! Grants whose wake-up was lost. A datagram may be: the queue of a socket is short, and another user's socket may
//! refuse. So a client with waiters looks whether the file has changed, and if so asks for each of its waiters, a page at
//! a time: a look is over when all of them were asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{Op, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::record::Ticket;
use fencepost_core::{Attempt, Owner, Result};

/// How often a client with waiters looks.
const EVERY: Duration = Duration::from_millis(100);
/// The time between the pages of one look: the writer has other work.
const BETWEEN_PAGES: Duration = Duration::from_millis(10);
/// How many waiters a page has.
const PAGE: usize = 256;
/// How long a client without waiters sleeps.
const IDLE: Duration = Duration::from_secs(3600);

/// The tickets of this client. Wake-ups of other processes name only the owner.
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

#[derive(Debug)]
pub(crate) struct Lookout {
    pub(crate) waiting: Waiters,
    /// The waiters that the present look has not asked for yet.
    unseen: Vec<Owner>,
    /// The version of the file at the beginning of the last look.
    version: Option<i64>,
    /// When to look next.
    due: Moment,
}

#[derive(Debug)]
struct Waiter {
    attempt: Arc<Attempt>,
    /// Its place in line.
    seq: u64,
}

impl Default for Lookout {
    fn default() -> Self {
        Self { waiting: Waiters::default(), unseen: Vec::new(), version: None, due: Moment::START }
    }
}

impl Lookout {
    /// How long the writer may sleep.
    pub(crate) fn patience(&self, now: Moment) -> Duration {
        if self.waiting.lock().is_empty() { IDLE } else { self.due.since(now) }
    }

    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.due <= now && !self.waiting.lock().is_empty()
    }

    /// A wake-up may have been lost: looks at once, and at every waiter.
    pub(crate) fn hurry(&mut self, now: Moment) {
        self.version = None;
        self.due = now;
    }

    /// The waiters to ask for now, given the version of the file if it can be read. Those of a look that has begun come
    /// first, so that a file that changes all the time does not keep the last of them from being asked for.
    pub(crate) fn page(&mut self, version: Option<i64>, now: Moment) -> Vec<Arc<Attempt>> {
        let waiting = self.waiting.lock();
        if self.unseen.is_empty() && version.is_some() && version != self.version {
            self.version = version;
            self.unseen.extend(waiting.keys());
        }
        let rest = self.unseen.len().saturating_sub(PAGE);
        let page = self
            .unseen
            .drain(rest..)
            .filter_map(|owner| waiting.get(&owner))
            .map(|waiter| waiter.attempt.clone())
            .collect();
        self.due = now + if self.unseen.is_empty() { EVERY } else { BETWEEN_PAGES };
        page
    }

    /// The place in line that this owner had when it was last read.
    pub(crate) fn seq(&self, owner: Owner) -> Option<u64> {
        self.waiting.lock().get(&owner).map(|waiter| waiter.seq)
    }

    /// Notes which attempts wait after a flight, and which do not any more. `tickets` are those that were read for it.
    pub(crate) fn note(
        &mut self,
        ops: &[Op],
        replies: &[Result<Reply>],
        tickets: &HashMap<Owner, Ticket>,
        now: Moment,
    ) {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            self.due = now + EVERY;
        }
        for (op, reply) in ops.iter().zip(replies) {
            let Some(attempt) = op.attempt() else { continue };
            if !matches!(reply, Ok(Reply::Waiting { .. })) {
                waiting.remove(&attempt.owner);
            } else if let Some(ticket) = tickets.get(&attempt.owner) {
                let waiter = Waiter { attempt: attempt.clone(), seq: ticket.seq };
                waiting.insert(attempt.owner, waiter);
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

    fn waiter(lookout: &mut Lookout) {
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
        lookout.note(&[op], &replies, &HashMap::from([(owner, ticket)]), Moment::START);
    }

    #[test]
    fn a_look_asks_for_every_waiter_although_the_file_changes_meanwhile() {
        let mut lookout = Lookout::default();
        (0..1_000).for_each(|_| waiter(&mut lookout));
        let mut asked = std::collections::HashSet::new();
        for version in 0..4 {
            let page = lookout.page(Some(version), Moment::START);
            assert!(page.len() <= PAGE);
            asked.extend(page.iter().map(|attempt| attempt.owner));
        }
        assert_eq!(asked.len(), 1_000);
        assert!(
            !lookout.page(Some(4), Moment::START).is_empty(),
            "the file has changed since the look began"
        );
    }

    #[test]
    fn a_file_that_has_not_changed_is_not_looked_at() {
        let mut lookout = Lookout::default();
        waiter(&mut lookout);
        assert_eq!(lookout.page(Some(7), Moment::START).len(), 1);
        assert!(lookout.page(Some(7), Moment::START).is_empty());
        assert!(!lookout.is_due(Moment::START) && lookout.is_due(Moment::START + EVERY));
        lookout.hurry(Moment::START);
        assert!(lookout.is_due(Moment::START));
        assert_eq!(lookout.page(Some(7), Moment::START).len(), 1);
    }
}
