//! The queue of jobs for the writer thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{ListPage, LockState, Op, Page, Reply};
use fencepost_core::{Finding, LockName, Result};
use tokio::sync::oneshot;

/// The length of the queue from which flights whose caller has given up are dropped.
const PRUNE_LENGTH: usize = 16;

/// The operations of one flight, and the channel for their replies.
pub(crate) type Flight = (Vec<Op>, oneshot::Sender<Vec<Result<Reply>>>);

/// A request to the writer thread.
pub(crate) enum Job {
    Execute(Flight),
    Inspect {
        name: LockName,
        reply: oneshot::Sender<Result<LockState>>,
    },
    List {
        prefix: String,
        page: Page,
        reply: oneshot::Sender<Result<ListPage>>,
    },
    Diagnose {
        reply: oneshot::Sender<Vec<Finding>>,
    },
    /// Check whether the files are in place, and poll for grants whose wake-up was lost.
    Poll,
    Stop {
        reply: oneshot::Sender<()>,
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
    /// The writer thread has ended: a job is dropped at once, and its caller sees the reply channel closed.
    closed: bool,
}

impl Inbox {
    pub(crate) fn push(&self, job: Job) {
        let mut jobs = self.jobs();
        let is_poll = |job: &Job| matches!(job, Job::Poll);
        if jobs.closed || is_poll(&job) && jobs.waiting.iter().any(is_poll) {
            return;
        }
        if jobs.waiting.len() >= PRUNE_LENGTH {
            // Spares a writer that was blocked the flights whose callers have given up meanwhile.
            jobs.waiting.retain(|job| !matches!(job, Job::Execute((_, reply)) if reply.is_closed()));
        }
        jobs.waiting.push(job);
        drop(jobs);
        self.arrived.notify_one();
    }

    /// Takes all jobs, waiting for the first for at most `timeout`.
    pub(crate) fn take(&self, timeout: Duration) -> Vec<Job> {
        let waited = self.arrived.wait_timeout_while(self.jobs(), timeout, |jobs| jobs.waiting.is_empty());
        let (mut jobs, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut jobs.waiting)
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the inbox when the writer thread ends, also if it panics.
pub(crate) struct CloseOnDrop<'a>(pub(crate) &'a Inbox);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let mut jobs = self.0.jobs();
        jobs.closed = true;
        let pending = std::mem::take(&mut jobs.waiting);
        drop(jobs);
        drop(pending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> (Job, oneshot::Receiver<Vec<Result<Reply>>>) {
        let (reply, receiver) = oneshot::channel();
        (Job::Execute((Vec::new(), reply)), receiver)
    }

    #[test]
    fn flights_without_a_caller_do_not_accumulate() {
        let inbox = Inbox::default();
        for _ in 0..1000 {
            inbox.push(job().0);
        }
        let (wanted, _reply) = job();
        inbox.push(wanted);
        assert!(inbox.take(Duration::ZERO).len() <= PRUNE_LENGTH + 1);
    }

    #[test]
    fn callers_of_a_writer_that_has_ended_get_an_error() {
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
