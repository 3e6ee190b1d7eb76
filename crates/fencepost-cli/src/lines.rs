//! Results line by line, for a reader that may be slow: a thread of their own writes them, so that a signal is heard
//! while the reader takes its time.

use std::io;
use std::sync::mpsc;

use tokio::sync::oneshot;

use crate::output;

type Line = (String, oneshot::Sender<io::Result<()>>);

/// Where lines go.
pub(crate) struct Lines(mpsc::Sender<Line>);

impl Lines {
    /// Starts the thread. It ends with this, or with the process if its reader never comes back.
    ///
    /// # Errors
    /// If the operating system has no thread left.
    pub(crate) fn new() -> io::Result<Self> {
        let (sender, lines) = mpsc::channel::<Line>();
        std::thread::Builder::new().name("fencepost-lines".into()).spawn(move || {
            for (line, written) in lines {
                // Who does not wait for it does not want to know.
                let _ = written.send(output::results(format_args!("{line}\n")));
            }
        })?;
        Ok(Self(sender))
    }

    /// Writes a line, and returns when it is on its way.
    ///
    /// # Errors
    /// If it cannot be written.
    ///
    /// # Cancel safety
    /// If the future is dropped the line may or may not be written.
    pub(crate) async fn write(&self, line: String) -> io::Result<()> {
        let (written, outcome) = oneshot::channel();
        let gone = || io::Error::other("the thread that writes has gone");
        self.0.send((line, written)).map_err(|_| gone())?;
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }
}
