//! Watching locks by polling: what has changed between two snapshots, the same way on every backend.

pub(crate) mod changes;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::handle::{Command, Handle};
use crate::locks::Locks;
use crate::watch::changes::{Change, LocksByName, differences};

/// The shortest interval between two polls.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// Watches the locks of a [`Client`] whose names begin with a prefix: polls them and reports what has changed.
///
/// It keeps its client alive, as a clone of it does. The first poll reports everything. Changes between two polls are merged per
/// lock: a lock that was released and acquired again is one [`Change::Ended`] and one [`Change::Held`], however often the
/// holder changed; a lock that was held only between two polls is not reported.
///
/// ```
/// # use std::time::Duration;
/// # use fencepost_core::{Change, Client, Result};
/// # async fn example(client: Client) -> Result<()> {
/// let mut watch = client.watch("invoice/").every(Duration::from_secs(5));
/// loop {
///     match watch.next().await? {
///         Change::Held { name, holder } => println!("{name} is held by {}", holder.label),
///         Change::Ended { name, holder, .. } => println!("{name} is no longer held by {}", holder.label),
///         _ => {}
///     }
/// }
/// # }
/// ```
#[must_use = "a watch polls only when the next change is awaited"]
pub struct Watch {
    handle: Arc<Handle>,
    prefix: Arc<str>,
    every: Duration,
    /// The poll that is due or running. Kept here, so that a dropped call does not restart it.
    poll: Option<BoxFuture<'static, Result<Snapshot>>>,
    poll_at: Moment,
    seen: LocksByName,
    /// When the last successful poll began.
    seen_at: Moment,
    pending: VecDeque<Change>,
}

/// The locks that one poll has found.
struct Snapshot {
    began: Moment,
    locks: LocksByName,
}

impl Watch {
    pub(crate) fn new(handle: Arc<Handle>, prefix: Arc<str>) -> Self {
        Self {
            handle,
            prefix,
            every: Duration::from_secs(1),
            poll: None,
            poll_at: Moment::START,
            seen: LocksByName::new(),
            seen_at: Moment::START,
            pending: VecDeque::new(),
        }
    }

    /// Sets the interval between two polls: 1 s by default, 10 ms at least.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every.max(MIN_INTERVAL);
        self
    }

    /// Continues with another client, for instance after the server was replaced: what was reported is not reported again.
    pub fn with_client(mut self, client: &Client) -> Self {
        self.handle = client.handle().clone();
        self.poll = None;
        self
    }

    /// Waits for the next change.
    ///
    /// # Errors
    /// The error of the backend if a poll fails. The watch stays usable: the next call polls again when the interval has passed,
    /// and reports what has changed meanwhile. [`crate::ErrorKind::Closed`] is final.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Change> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Ok(change);
            }
            let Self { handle, prefix, poll_at, .. } = self;
            let poll =
                self.poll.get_or_insert_with(|| Box::pin(poll(handle.clone(), prefix.clone(), *poll_at)));
            let snapshot = poll.as_mut().await;
            self.poll = None;
            let now = self.handle.clock.now();
            self.poll_at = now + self.every;
            let Snapshot { began, locks } = snapshot?;
            self.pending.extend(differences(&self.seen, &locks, now.since(self.seen_at)));
            (self.seen, self.seen_at) = (locks, began);
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("prefix", &self.prefix)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}

/// Reads every page at this time or later. Pages are read one after the other, and a lock is on the page of its name: one that
/// changes meanwhile is seen as it was before or after, never twice.
async fn poll(handle: Arc<Handle>, prefix: Arc<str>, at: Moment) -> Result<Snapshot> {
    let (notify, due) = oneshot::channel();
    handle.submit(Command::Timer { at, notify })?;
    due.await.map_err(|_| Error::closed())?;

    let began = handle.clock.now();
    let mut listed = Locks::new(handle, prefix.as_ref().to_owned());
    let mut locks = LocksByName::new();
    while let Some(lock) = listed.next().await? {
        locks.insert(lock.name.clone(), lock);
    }
    Ok(Snapshot { began, locks })
}
