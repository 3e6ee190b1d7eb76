//! Watching locks: what has changed between one look at the list and the next, the same way on every storage.

pub(crate) mod changes;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::backend::{ListPage, Page};
use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::handle::{Command, Handle};
use crate::watch::changes::{Change, Seen, differences};

/// How many locks are asked for at a time.
const PAGE: usize = 500;

/// Whoever looks more often than this does nothing else.
const LEAST: Duration = Duration::from_millis(10);

/// Watches the locks of a [`Client`] whose names begin with a prefix. It looks again and again, and tells what has
/// changed.
///
/// It keeps its client alive, as a clone of it does. The first look reports everything that is there. What comes and goes between two looks is not seen, and what happens
/// to one lock between them is merged: a lock that was released and taken again is one [`Change::Ended`] and one
/// [`Change::Held`], however often it changed hands.
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
#[must_use = "a watch looks only when it is asked for the next change"]
pub struct Watch {
    handle: Arc<Handle>,
    prefix: Arc<str>,
    every: Duration,
    /// The look that is due or under way. It is kept here, so that a call that is dropped does not begin it anew.
    look: Option<BoxFuture<'static, Result<Look>>>,
    look_at: Moment,
    seen: Seen,
    /// When the last look began that succeeded.
    seen_at: Moment,
    untold: VecDeque<Change>,
}

/// What one look has found.
struct Look {
    began: Moment,
    found: Seen,
}

impl Watch {
    pub(crate) fn new(handle: Arc<Handle>, prefix: Arc<str>) -> Self {
        Self {
            handle,
            prefix,
            every: Duration::from_secs(1),
            look: None,
            look_at: Moment::START,
            seen: Seen::new(),
            seen_at: Moment::START,
            untold: VecDeque::new(),
        }
    }

    /// How long to wait from one look to the next: 1 s by default, and 10 ms at least.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every.max(LEAST);
        self
    }

    /// Goes on through another client, for instance after the storage was replaced: what was seen before stays seen.
    pub fn through(mut self, client: &Client) -> Self {
        self.handle = client.handle().clone();
        self.look = None;
        self
    }

    /// The next change, as soon as there is one.
    ///
    /// # Errors
    /// What the storage says when a look fails. The watch survives that: call again, and it looks again when it is
    /// time to; what has changed meanwhile is told then. After [`crate::ErrorKind::Closed`] nothing will ever come.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Change> {
        loop {
            if let Some(change) = self.untold.pop_front() {
                return Ok(change);
            }
            let Self { handle, prefix, look_at, .. } = self;
            let look =
                self.look.get_or_insert_with(|| Box::pin(look(handle.clone(), prefix.clone(), *look_at)));
            let looked = look.as_mut().await;
            self.look = None;
            let now = self.handle.clock.now();
            self.look_at = now + self.every;
            let Look { began, found } = looked?;
            self.untold.extend(differences(&self.seen, &found, now.since(self.seen_at)));
            (self.seen, self.seen_at) = (found, began);
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

/// Looks at every page, at this time or later. Pages are read one after the other, and a lock is on the page of its
/// name: one that changes meanwhile is seen as it was before or after, never twice.
async fn look(handle: Arc<Handle>, prefix: Arc<str>, at: Moment) -> Result<Look> {
    let (ring, heard) = oneshot::channel();
    handle.submit(Command::Alarm { at, ring })?;
    heard.await.map_err(|_| Error::closed())?;

    let began = handle.clock.now();
    let mut found = Seen::new();
    let mut after = None;
    loop {
        let (prefix, page) = (prefix.clone(), Page::new(PAGE).after(after));
        let page = handle.ask(async move |backend| backend.list(&prefix, page).await).await??;
        let ListPage { locks, next } = page;
        found.extend(locks.into_iter().map(|lock| (lock.name.clone(), lock)));
        if next.is_none() {
            return Ok(Look { began, found });
        }
        after = next;
    }
}
