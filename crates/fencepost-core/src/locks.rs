//! All locks of a prefix, read a page at a time.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::backend::{ListPage, LockState, Page};
use crate::client::list;
use crate::error::Result;
use crate::handle::Handle;
use crate::name::LockName;

/// The number of locks that are read at a time.
const PAGE_SIZE: usize = 500;

/// The locks in use whose names begin with a prefix; see [`crate::Client::locks`].
///
/// Pages are read when they are needed: a lock is returned as it was when its page was read, and never twice.
#[must_use = "locks are read only when the next one is awaited"]
pub struct Locks {
    handle: Arc<Handle>,
    prefix: String,
    fetched: VecDeque<LockState>,
    rest: Rest,
}

/// Where the next page begins.
#[derive(Clone, Debug)]
enum Rest {
    After(Option<LockName>),
    Nothing,
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Locks {
    pub(crate) fn new(handle: Arc<Handle>, prefix: String) -> Self {
        Self { handle, prefix, fetched: VecDeque::new(), rest: Rest::After(None) }
    }

    /// Returns the next lock, or `None` after the last.
    ///
    /// # Errors
    /// The error of the backend if a page cannot be read. Another call tries it again.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<LockState>> {
        while self.fetched.is_empty()
            && let Rest::After(after) = self.rest.clone()
        {
            let page = Page::new(PAGE_SIZE).after(after);
            let ListPage { locks, next } = list(&self.handle, &self.prefix, page).await?;
            self.fetched.extend(locks);
            self.rest = next.map_or(Rest::Nothing, |next| Rest::After(Some(next)));
        }
        Ok(self.fetched.pop_front())
    }
}
