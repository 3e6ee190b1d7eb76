//! Spans and events for the `tracing` facade: `lock acquire` while a caller waits, `lock hold` while a lock is held.
//!
//! A span is created with the caller's subscriber, and its later events on the client's thread go to the same subscriber. Names,
//! tokens and the backend's scheme are recorded; owners and URLs never are.

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

/// The span and the subscriber of a caller.
pub(crate) struct Origin {
    span: Span,
    subscriber: Dispatch,
}

impl Drop for Origin {
    fn drop(&mut self) {
        drop_span(&self.subscriber, std::mem::replace(&mut self.span, Span::none()));
    }
}

impl Origin {
    /// Returns the current one.
    pub(crate) fn here() -> Self {
        Self { span: Span::current(), subscriber: dispatcher::get_default(Dispatch::clone) }
    }

    /// Returns whether warnings are recorded.
    pub(crate) fn records_warnings(&self) -> bool {
        with_subscriber(&self.subscriber, || enabled!(target: "fencepost", Level::WARN))
    }

    /// Logs the findings of a new connection.
    pub(crate) fn warn(&self, backend: &'static str, findings: &[Finding]) {
        for Finding { check, found, advice, .. } in findings {
            with_subscriber(&self.subscriber, || {
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

    /// Starts the span of a hold.
    pub(super) fn holding(self, backend: &'static str, grant: &Grant) -> HoldObserver {
        let subscriber = self.subscriber.clone();
        let span = with_subscriber(&subscriber, || {
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
        HoldObserver { backend, grant: grant.clone(), subscriber, span: Mutex::new(Some(span)) }
    }
}

/// The span of an acquire.
pub(super) struct AcquireObserver {
    span: Span,
}

impl AcquireObserver {
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

/// The span of a hold.
pub(super) struct HoldObserver {
    backend: &'static str,
    grant: Grant,
    subscriber: Dispatch,
    /// Taken when the hold ends, so that the span ends then and not with the last of its guards.
    span: Mutex<Option<Span>>,
}

impl HoldObserver {
    pub(super) fn renewal(&self, renewal: Renewal<'_>) {
        let span = self.span.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Span::id);
        let (name, token) = (Names(self.grant.held()), self.grant.award.token.get());
        with_subscriber(&self.subscriber, || match renewal {
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
            // Reported as the end of the hold.
            Renewal::NotHeld => {}
        });
    }

    pub(super) fn ended(&self, reason: LostReason, held: Duration) {
        let span = self.span.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(span) = &span {
            span.record("fencepost.lock.end", labels::reason(reason));
            span.record("fencepost.lock.hold_ms", millis(held));
        }
        // An end that was requested is no reason to warn.
        if !matches!(reason, LostReason::Released | LostReason::Closed) {
            self.warn_of_loss(span.as_ref().and_then(Span::id), reason);
        }
        if let Some(span) = span {
            drop_span(&self.subscriber, span);
        }
    }

    fn warn_of_loss(&self, span: Option<Id>, reason: LostReason) {
        with_subscriber(&self.subscriber, || {
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

/// Runs this with the subscriber, or with that of this thread if there was none.
fn with_subscriber<T>(subscriber: &Dispatch, tell: impl FnOnce() -> T) -> T {
    if subscriber.is::<NoSubscriber>() { tell() } else { dispatcher::with_default(subscriber, tell) }
}

/// A span that ends releases its parent, and the registry of `tracing-subscriber` does so through the thread's subscriber: on
/// the client's thread that may be another one, and the parent would never end.
fn drop_span(subscriber: &Dispatch, span: Span) {
    if !span.is_none() {
        with_subscriber(subscriber, || drop(span));
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Displays the names of a lock.
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
