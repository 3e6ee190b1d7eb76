//! Replaces `trace` or `metrics` where the feature is off: does nothing.
#![allow(dead_code, reason = "each feature needs its half")]
#![allow(clippy::unused_self, reason = "the shape is that of the real ones")]

use std::sync::Arc;
use std::time::Duration;

use super::Renewal;
use super::labels::Outcome;
use crate::backend::Backend;
use crate::clock::Clock;
use crate::finding::Finding;
use crate::grant::{Attempt, Grant, LostReason};
use crate::options::Options;
use crate::token::FencingToken;

pub(crate) struct Origin;

impl Origin {
    pub(crate) fn here() -> Self {
        Self
    }

    pub(crate) fn records_warnings(&self) -> bool {
        false
    }

    pub(crate) fn warn(&self, _backend: &'static str, _findings: &[Finding]) {}

    pub(super) fn holding(self, _backend: &'static str, _grant: &Grant) -> HoldObserver {
        HoldObserver
    }
}

pub(super) struct Meters;

impl Meters {
    pub(super) fn new(_backend: &'static str, _options: &Options) -> Self {
        Self
    }

    pub(super) fn acquiring(&self, _attempt: &Attempt) -> AcquireObserver {
        AcquireObserver
    }

    pub(super) fn holding(&self, _grant: &Grant) -> HoldObserver {
        HoldObserver
    }
}

pub(super) fn measured(backend: Arc<dyn Backend>, _clock: &Clock, _meters: &Arc<Meters>) -> Arc<dyn Backend> {
    backend
}

pub(super) struct AcquireObserver;

impl AcquireObserver {
    pub(super) fn new(_backend: &'static str, _attempt: &Attempt) -> Self {
        Self
    }

    pub(super) fn ended(&self, _outcome: Outcome, _token: Option<FencingToken>, _waited: Duration) {}
}

pub(super) struct HoldObserver;

impl HoldObserver {
    pub(super) fn renewal(&self, _renewal: Renewal<'_>) {}

    pub(super) fn ended(&self, _reason: LostReason, _held: Duration) {}
}
