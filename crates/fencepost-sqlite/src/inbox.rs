//! Where jobs wait for the writer.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{ListPage, LockState, Op, Page, Reply};
use fencepost_core::{Finding, LockName, Result};
use tokio::sync::oneshot;

/// When so many jobs have gathered, those that nobody waits for are forgotten.
const GATHERED: usize = 16;

/// One flight, and who waits for its answers.
pub(crate) type Flight = (Vec<Op>, oneshot::Sender<Vec<Result<Reply>>>);

/// What the writer is asked to do.
pub(crate) enum Job {
    Execute(Flight),
    Inspect {
        name: LockName,
        answer: oneshot::Sender<Result<LockState>>,
    },
    List {
        prefix: String,
        page: Page,
        answer: oneshot::Sender<Result<ListPage>>,
    },
    Examine {
        answer: oneshot::Sender<Vec<Finding>>,
    },
    /// Look at the files, and for grants whose wake-up was lost.
    Look,
    Stop {
        answer: oneshot::Sender<()>,
    },
}

#[derive(Default)]
pub(crate) struct Inbox {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: Vec<Job>,
    /// The writer has gone: whoever asks is told at once, because its answer is dropped.
    closed: bool,
}

impl Inbox {
    pub(crate) fn push(&self, job: Job) {
        let mut jobs = self.jobs();
        let is_look = |job: &Job| matches!(job, Job::Look);
        if jobs.closed || is_look(&job) && jobs.waiting.iter().any(is_look) {
            return;
        }
        if jobs.waiting.len() >= GATHERED {
            // A writer that is kept from writing need not do afterwards what nobody waits for any more.
            jobs.waiting.retain(|job| !matches!(job, Job::Execute((_, answer)) if answer.is_closed()));
        }
        jobs.waiting.push(job);
        drop(jobs);
        self.arrived.notify_one();
    }

    /// Waits for jobs, but not longer than `patience`.
    pub(crate) fn take(&self, patience: Duration) -> Vec<Job> {
        let waited = self.arrived.wait_timeout_while(self.jobs(), patience, |jobs| jobs.waiting.is_empty());
        let (mut jobs, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut jobs.waiting)
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the inbox when the writer goes, also if it panics.
pub(crate) struct CloseOnDrop<'a>(pub(crate) &'a Inbox);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let mut jobs = self.0.jobs();
        jobs.closed = true;
        let left = std::mem::take(&mut jobs.waiting);
        drop(jobs);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> (Job, oneshot::Receiver<Vec<Result<Reply>>>) {
        let (answer, reply) = oneshot::channel();
        (Job::Execute((Vec::new(), answer)), reply)
    }

    #[test]
    fn what_nobody_waits_for_does_not_gather() {
        let inbox = Inbox::default();
        for _ in 0..1000 {
            inbox.push(job().0);
        }
        let (wanted, _reply) = job();
        inbox.push(wanted);
        assert!(inbox.take(Duration::ZERO).len() <= GATHERED + 1);
    }

    #[test]
    fn whoever_asks_a_writer_that_has_gone_is_told() {
        let inbox = Inbox::default();
        let (before, mut reply_before) = job();
        inbox.push(before);
        drop(CloseOnDrop(&inbox));
        let (after, mut reply_after) = job();
        inbox.push(after);
        assert!(reply_before.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        assert!(reply_after.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
    }
}
