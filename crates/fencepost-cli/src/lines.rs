//! Results line by line: a separate thread writes them, so that a slow reader does not delay the handling of a signal.

use std::io;
use std::sync::mpsc;

use tokio::sync::oneshot;

use crate::output;

type Line = (String, oneshot::Sender<io::Result<()>>);

/// The queue of the writing thread.
pub(crate) struct Lines(mpsc::Sender<Line>);

impl Lines {
    /// Starts the thread. It ends when this is dropped, or with the process if its reader blocks for ever.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub(crate) fn new() -> io::Result<Self> {
        let (sender, lines) = mpsc::channel::<Line>();
        std::thread::Builder::new().name("fencepost-lines".into()).spawn(move || {
            for (line, written) in lines {
                // The future that waits for it may have been dropped.
                let _ = written.send(output::results(format_args!("{line}\n")));
            }
        })?;
        Ok(Self(sender))
    }

    /// Writes a line, and returns when it is written to stdout.
    ///
    /// # Errors
    /// If it cannot be written.
    ///
    /// # Cancel safety
    /// If the future is dropped the line may or may not be written.
    pub(crate) async fn write(&self, line: String) -> io::Result<()> {
        let (written, outcome) = oneshot::channel();
        let gone = || io::Error::other("the writing thread has ended");
        self.0.send((line, written)).map_err(|_| gone())?;
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }
}
