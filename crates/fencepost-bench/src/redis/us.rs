//! Ourselves, through the facade only: as any user would.

use std::process::ExitCode;

use super::subject::Subject;
use crate::workers;

/// What we are called in the figures.
pub(crate) const NAME: &str = "fencepost";

pub(crate) fn subject() -> Subject {
    Subject {
        name: NAME,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program: workers::this_program("worker"),
        sends: &["eval", "evalsha", "fcall", "subscribe"],
    }
}

/// A worker of ours, on any storage.
pub(crate) fn serve(words: &[String]) -> ExitCode {
    workers::serve(words, async |url: &str| {
        let client = fencepost::connect(url).await.map_err(|why| format!("fencepost: {why}"))?;
        Ok(move |name: String| client.lock(name))
    })
}
