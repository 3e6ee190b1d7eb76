//! Fencepost as a subject, through its public API only.

use std::process::ExitCode;

use fencepost::Options;

use super::subject::{Subject, TASKS};
use crate::workers;

/// The name in the figures.
pub(crate) const NAME: &str = "fencepost";
pub(crate) const LOW_LATENCY: &str = "fencepost, low latency";
pub(crate) const LOW_LATENCY_WORKER: &str = "low-latency-worker";

pub(crate) fn subject() -> Subject {
    Subject {
        name: NAME,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program: workers::this_program("worker"),
        tasks: TASKS,
    }
}

/// Fencepost with [`Options::low_latency`].
pub(crate) fn low_latency() -> Subject {
    Subject { name: LOW_LATENCY, program: workers::this_program(LOW_LATENCY_WORKER), ..subject() }
}

/// Runs a worker, on any backend.
pub(crate) fn serve(words: &[String], options: &Options) -> ExitCode {
    workers::serve(words, async |url: &str| {
        let connected = fencepost::connect_with(url, options.clone()).await;
        let client = connected.map_err(|why| format!("fencepost: {why}"))?;
        Ok(move |name: String| client.lock(name))
    })
}
