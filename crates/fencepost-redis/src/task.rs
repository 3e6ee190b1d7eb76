//! A background task that is bound to its handle.

use tokio::task::AbortHandle;

/// A background task that is aborted when this is dropped: by itself it might wait forever for a reply.
pub(crate) struct Task(AbortHandle);

impl Task {
    /// Starts the task. Must be called inside the runtime in which it will run.
    pub(crate) fn start(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }

    /// Aborts the task.
    pub(crate) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.stop();
    }
}
