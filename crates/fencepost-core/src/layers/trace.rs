//! Spans and events for the `tracing` facade: `lock acquire` while a caller waits, `lock hold` while a lock is held.
//!
//! A span is made for whoever listens where the caller is, and what happens to it later on the client's thread is told
//! to the same listener. Names, tokens and the storage's scheme are shown; owners and URLs never are.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::dispatcher::{self, Dispatch};
use tracing::field::Empty;
use tracing::subscriber::NoSubscriber;
use tracing::{Id, Level, Span, enabled, info_span, trace, warn};

use super::Renewal;
use super::labels::{self, KINDS, Outcome};
use crate::finding::Finding;
use crate::grant::{Attempt, Grant, LostReason, Want};
use crate::token::FencingToken;

/// Where a caller is: its span, and who listens there.
pub(crate) struct Origin {
    span: Span,
    listener: Dispatch,
}

impl Drop for Origin {
    fn drop(&mut self) {
        let_go(&self.listener, std::mem::replace(&mut self.span, Span::none()));
    }
}

impl Origin {
    /// Where we are now.
    pub(crate) fn here() -> Self {
        Self { span: Span::current(), listener: dispatcher::get_default(Dispatch::clone) }
    }

    /// Whether anybody here wants to be warned.
    pub(crate) fn listens(&self) -> bool {
        heard_by(&self.listener, || enabled!(target: "fencepost", Level::WARN))
    }

    /// Warns of what was found when somebody connected from here.
    pub(crate) fn warn(&self, backend: &'static str, findings: &[Finding]) {
        for Finding { check, found, advice, .. } in findings {
            heard_by(&self.listener, || {
                warn!(
                    target: "fencepost",
                    parent: &self.span,
                    {
                        fencepost.lock.backend = backend,
                        fencepost.check = check,
                        fencepost.advice = advice.as_deref().unwrap_or_default(),
                    },
                    "{check}: {found}"
                );
            });
        }
    }

    /// A lock begins to be held by a caller from here.
    pub(super) fn holding(self, backend: &'static str, grant: &Grant) -> Holding {
        let listener = self.listener.clone();
        let span = heard_by(&listener, || {
            info_span!(
                target: "fencepost",
                parent: &self.span,
                "lock hold",
                fencepost.lock.name = %Names(grant.held()),
                fencepost.lock.backend = backend,
                fencepost.lock.token = grant.award.token.get(),
                fencepost.lock.end = Empty,
                fencepost.lock.hold_ms = Empty,
            )
        });
        Holding { backend, grant: grant.clone(), listener, span: Mutex::new(Some(span)) }
    }
}

/// A caller that waits.
pub(super) struct Acquiring {
    span: Span,
}

impl Acquiring {
    pub(super) fn new(backend: &'static str, attempt: &Attempt) -> Self {
        let mode = attempt.wants.first().map_or(0, |want| labels::kind(want.mode));
        let span = info_span!(
            target: "fencepost",
            "lock acquire",
            fencepost.lock.name = %Names(&attempt.wants),
            fencepost.lock.backend = backend,
            fencepost.lock.mode = KINDS[mode],
            fencepost.lock.token = Empty,
            fencepost.lock.outcome = Empty,
            fencepost.lock.wait_ms = Empty,
        );
        Self { span }
    }

    pub(super) fn ended(&self, outcome: Outcome, token: Option<FencingToken>, waited: Duration) {
        if let Some(token) = token {
            self.span.record("fencepost.lock.token", token.get());
        }
        self.span.record("fencepost.lock.outcome", outcome.word());
        self.span.record("fencepost.lock.wait_ms", millis(waited));
    }
}

/// A lock that is held.
pub(super) struct Holding {
    backend: &'static str,
    grant: Grant,
    listener: Dispatch,
    /// Taken when it is no longer held, so that the span ends then and not with the last of its guards.
    span: Mutex<Option<Span>>,
}

impl Holding {
    pub(super) fn renewal(&self, renewal: Renewal<'_>) {
        let span = self.span.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Span::id);
        let (name, token) = (Names(self.grant.held()), self.grant.award.token.get());
        heard_by(&self.listener, || match renewal {
            Renewal::Done { margin } => trace!(
                target: "fencepost",
                parent: span,
                {
                    fencepost.lock.name = %name,
                    fencepost.lock.token = token,
                    fencepost.lock.margin_ms = millis(margin),
                },
                "lease renewed"
            ),
            Renewal::Failed(error) => warn!(
                target: "fencepost",
                parent: span,
                {
                    fencepost.lock.name = %name,
                    fencepost.lock.backend = self.backend,
                    fencepost.lock.token = token,
                    error = %error,
                },
                "renewal failed"
            ),
            Renewal::Unanswered => warn!(
                target: "fencepost",
                parent: span,
                {
                    fencepost.lock.name = %name,
                    fencepost.lock.backend = self.backend,
                    fencepost.lock.token = token,
                },
                "renewal not answered"
            ),
            // That is the end of it, and told as such.
            Renewal::NotHeld => {}
        });
    }

    pub(super) fn ended(&self, reason: LostReason, held: Duration) {
        let span = self.span.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(span) = &span {
            span.record("fencepost.lock.end", labels::reason(reason));
            span.record("fencepost.lock.hold_ms", millis(held));
        }
        // What somebody has kind for is no reason to warn.
        if !matches!(reason, LostReason::Released | LostReason::Closed) {
            self.warn_of_loss(span.as_ref().and_then(Span::id), reason);
        }
        if let Some(span) = span {
            let_go(&self.listener, span);
        }
    }

    fn warn_of_loss(&self, span: Option<Id>, reason: LostReason) {
        heard_by(&self.listener, || {
            warn!(
                target: "fencepost",
                parent: span,
                {
                    fencepost.lock.name = %Names(self.grant.held()),
                    fencepost.lock.backend = self.backend,
                    fencepost.lock.token = self.grant.award.token.get(),
                    fencepost.lock.reason = labels::reason(reason),
                },
                "lock lost: {reason}"
            );
        });
    }
}

/// Tells it to the listener, or to the one of this thread if there was none.
fn heard_by<T>(listener: &Dispatch, tell: impl FnOnce() -> T) -> T {
    if listener.is::<NoSubscriber>() { tell() } else { dispatcher::with_default(listener, tell) }
}

/// A span that ends lets go of its parent, and the registry of `tracing-subscriber` asks the thread's listener to do so:
/// on the client's thread that may be another, and the parent would never end.
fn let_go(listener: &Dispatch, span: Span) {
    if !span.is_none() {
        heard_by(listener, || drop(span));
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The names of a lock, as they were given.
struct Names<'a>(&'a [Want]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, want) in self.0.iter().enumerate() {
            f.write_str(if number == 0 { "" } else { ", " })?;
            fmt::Display::fmt(&want.name, f)?;
        }
        Ok(())
    }
}
