//! The writer thread: runs the jobs of the inbox. Flights that arrived while it was busy share one transaction (group commit).

use fencepost_core::backend::{Op, Reply, Wakeup};
use fencepost_core::clock::{Clock, StorageTime};
use fencepost_core::{Error, Result, Want};
use tokio::sync::oneshot;

use crate::inbox::{CloseOnDrop, Flight, Inbox, Job};
use crate::replaced::Replaced;
use crate::state::ClientState;

/// Runs the jobs until one of them stops the thread.
pub(crate) fn run(mut state: ClientState, inbox: &Inbox) {
    let clock = Clock::system();
    let _closed = CloseOnDrop(inbox);
    loop {
        let jobs = inbox.take(state.waiter_poll.timeout(clock.now()));
        let stop = state.run_jobs(jobs, &clock);
        if let Some(stopped) = stop {
            // The connection is closed before the caller is told.
            drop(state);
            let _ = stopped.send(());
            return;
        }
        if !state.file.is_in_place() {
            return Replaced::from(state).run(inbox);
        }
        if state.waiter_poll.is_due(clock.now()) {
            state.poll_waiters(&clock);
        }
    }
}

impl ClientState {
    /// Returns the reply channel of a job that stops the thread.
    fn run_jobs(&mut self, jobs: Vec<Job>, clock: &Clock) -> Option<oneshot::Sender<()>> {
        let mut flights = Vec::new();
        let mut stop = None;
        for job in jobs {
            match job {
                Job::Execute(flight) => flights.push(flight),
                Job::Inspect { name, reply } => {
                    let _ = reply.send(self.inspect(&name, clock));
                }
                Job::List { prefix, page, reply } => {
                    let _ = reply.send(self.list(&prefix, &page, clock));
                }
                Job::Diagnose { reply } => {
                    let _ = reply.send(self.diagnose());
                }
                Job::Poll => {
                    self.file.recheck();
                    self.waiter_poll.poll_now(clock.now());
                }
                Job::Stop { reply } => stop = Some(reply),
            }
        }
        if !flights.is_empty() {
            self.run_flights(flights, clock);
        }
        stop
    }

    /// Executes all flights in one transaction. Replies and wake-ups are sent after the commit.
    fn run_flights(&mut self, flights: Vec<Flight>, clock: &Clock) {
        let outcome = self.transact(clock, |state, now| {
            let run = |(ops, _): &Flight| ops.iter().map(|op| state.execute(op, now)).collect::<Vec<_>>();
            Ok(flights.iter().map(run).collect::<Vec<_>>())
        });
        match outcome {
            Ok(replies) => {
                let now = clock.now();
                for ((ops, reply), replies) in flights.into_iter().zip(replies) {
                    self.waiter_poll.update(&ops, &replies, self.table.tickets(), now);
                    // Fails if the engine has given the flight up.
                    let _ = reply.send(replies);
                }
            }
            Err(error) => {
                for (ops, reply) in flights {
                    let _ = reply.send(ops.iter().map(|op| self.failed(op, &error)).collect());
                }
            }
        }
    }

    /// Returns the reply to an operation of a transaction that failed.
    fn failed(&self, op: &Op, error: &Error) -> Result<Reply> {
        if self.file.is_in_place() { Err(error.clone()) } else { self.file.reply_when_replaced(op) }
    }

    /// Wakes waiters that may have been granted the lock although no wake-up arrived.
    fn poll_waiters(&mut self, clock: &Clock) {
        let now = StorageTime::read(clock);
        let version = self.statements.data_version().ok();
        let Self { waiter_poll, statements, pusher, .. } = self;
        for attempt in waiter_poll.next_page(version, clock.now()) {
            let owner = attempt.owner;
            let may_be_granted =
                |want: &Want| statements.may_be_granted(&want.name, owner, now).unwrap_or(true);
            if attempt.wants.iter().any(may_be_granted) {
                pusher.push(Wakeup::Check { owner });
            }
        }
    }
}
