//! What can go wrong: one error type with a kind to branch on. It never contains a secret.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::grant::LostReason;

/// `Result` with Fencepost's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure it was: the part of an [`Error`] that programs branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The storage could not be reached; the request had no effect.
    Unreachable,
    /// The storage refused: wrong password, missing right.
    Denied,
    /// The request was sent and no answer came: it may or may not have had its effect.
    OutcomeUnknown,
    /// The wait was over before the lock was free.
    WaitTimeout,
    /// The lock was lost while it was held.
    Lost,
    /// The client is closed.
    Closed,
    /// Clients disagree about what the lock is, for instance on the size of a semaphore.
    Conflict,
    /// This storage, or this build, cannot do that.
    Unsupported,
    /// There is no storage there yet, and none was to be made.
    Missing,
    /// A setting makes no sense: URL, ttl, option.
    BadConfig,
    /// Not a valid lock name.
    BadName,
    /// The storage itself is in trouble: full, corrupt, wrong schema.
    Backend,
}

/// A failure: what was tried, on what, and why it did not work.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    lost: Option<LostReason>,
    is_transient: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with its message: lower case, what failed and on what, no secrets.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, lost: None, is_transient: false, source: None }
    }

    /// The error of work under a lock that was lost.
    pub fn lost(what: &str, reason: LostReason) -> Self {
        Self { lost: Some(reason), ..Self::new(ErrorKind::Lost, format!("{what} was lost: {reason}")) }
    }

    /// Returns the error of everything that is kind of a closed client.
    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the client is closed")
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Marks a refusal for the time being: the storage answers, and says that it cannot serve now. An attempt that waits for
    /// its lock is repeated until its wait is over.
    #[must_use]
    pub fn transient(mut self) -> Self {
        self.is_transient = true;
        self
    }

    /// Adds the error beneath, which must not contain a secret either.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Puts what was being done in front: `could not …: message`.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The kind, to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the storage refused for the time being.
    pub fn is_transient(&self) -> bool {
        self.is_transient
    }

    /// What the user can do about it, if we know.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The message with its causes, on one line.
    pub fn full_message(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = self.source();
        while let Some(found) = cause {
            let said = found.to_string();
            // Some errors quote their cause themselves.
            if !text.contains(&said) {
                text = format!("{text}: {said}");
            }
            cause = found.source();
        }
        text
    }

    /// Why the lock was lost, for [`ErrorKind::Lost`].
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.lost
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
