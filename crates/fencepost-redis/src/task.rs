//! A task that does not outlive what it works for.

use tokio::task::AbortHandle;

/// A task that ends when this is dropped. By itself it might wait for answers that never come.
pub(crate) struct Task(AbortHandle);

impl Task {
    /// Starts the task. Must be called inside the runtime in which it will run.
    pub(crate) fn start(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }

    /// Ends the task.
    pub(crate) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.stop();
    }
}
