//! The error type: a kind to branch on, a message, a hint. It never contains a secret.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::grant::LostReason;

/// `Result` with Fencepost's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`], for programs to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The backend could not be reached; the request was not applied.
    Unreachable,
    /// The backend denied access: wrong password, missing right.
    Denied,
    /// The request was sent and there was no reply: it may or may not have been applied.
    OutcomeUnknown,
    /// The wait ended before the lock was acquired.
    WaitTimeout,
    /// The lock was lost while it was held.
    Lost,
    /// The client is closed.
    Closed,
    /// Clients disagree on what the lock is, for instance on the size of a semaphore; or the lock is not in the expected state.
    Conflict,
    /// This backend, or this build, does not support it.
    Unsupported,
    /// The file or chroot does not exist, and must not be created.
    Missing,
    /// A setting is not valid: URL, ttl, option.
    BadConfig,
    /// Not a valid lock name.
    BadName,
    /// The backend itself failed: disk full, corrupt data, wrong schema.
    Backend,
}

/// A failure: what was tried, on what, and why it failed. `Display` is the message, `source` the cause;
/// [`Error::full_message`] is the whole chain.
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
    /// Creates an error. The message is in lower case, says what failed and on what, and contains no secret.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, lost: None, is_transient: false, source: None }
    }

    /// Creates the error for a lost lock.
    pub fn lost(what: &str, reason: LostReason) -> Self {
        Self { lost: Some(reason), ..Self::new(ErrorKind::Lost, format!("{what} was lost: {reason}")) }
    }

    /// Creates the error of calls to a closed client.
    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the client is closed")
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Marks the error as transient: the backend replied that it cannot serve the request now. An attempt that waits for its
    /// lock is retried until its wait ends.
    #[must_use]
    pub fn transient(mut self) -> Self {
        self.is_transient = true;
        self
    }

    /// Sets the cause, which must not contain a secret either.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Prefixes the message with what was being done: `could not …: message`.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Returns the kind, to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns whether the error is transient.
    pub fn is_transient(&self) -> bool {
        self.is_transient
    }

    /// Returns what the user can do about it, if that is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Returns the message with its causes, on one line.
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

    /// Returns why the lock was lost, for [`ErrorKind::Lost`].
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
