//! The writer thread after its database was removed or replaced: the client holds no lock any more, and every caller is told so.
//! The connection is closed, so that a new client of this process does not share it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Op, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::push::Pusher;
use fencepost_core::record::ClientId;

use crate::identity::FileIdentity;
use crate::inbox::{Inbox, Job};
use crate::state::ClientState;
use crate::wake::Sockets;

/// The time without a renewal after which the engine knows that all its grants are lost.
const QUIET_PERIOD: Duration = Duration::from_millis(20);
/// Bounds one wait for jobs when there is nothing else to do.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

pub(crate) struct Replaced {
    pub(crate) file: FileIdentity,
    client: ClientId,
    sockets: Arc<Sockets>,
    pusher: Pusher,
}

impl From<ClientState> for Replaced {
    /// Closes the connection.
    fn from(state: ClientState) -> Self {
        let ClientState { file, client, sockets, pusher, .. } = state;
        Self { file, client, sockets, pusher }
    }
}

impl Replaced {
    /// Replies to jobs until one of them stops the thread. New clients wait until the socket is removed, so it is removed when
    /// the engine knows.
    pub(crate) fn run(self, inbox: &Inbox) {
        // Makes the engine renew all its grants, and each reply is that it does not hold the lock.
        self.pusher.push(Wakeup::CheckAll);
        let clock = Clock::system();
        let mut deadline = clock.now() + QUIET_PERIOD;
        loop {
            let now = clock.now();
            if now >= deadline {
                self.sockets.remove(self.client);
                deadline = now + IDLE_TIMEOUT;
            }
            for job in inbox.take(deadline.since(now)) {
                // Only renewals extend the deadline: the engine stops renewing once it knows, whereas new clients send
                // datagrams all the time.
                if renews(&job) {
                    deadline = clock.now() + QUIET_PERIOD;
                }
                if self.reply(job).is_break() {
                    return;
                }
            }
        }
    }

    fn reply(&self, job: Job) -> ControlFlow<()> {
        // Sending fails if the caller has given up.
        match job {
            Job::Execute((ops, reply)) => {
                drop(reply.send(ops.iter().map(|op| self.file.reply_when_replaced(op)).collect()));
            }
            Job::Inspect { reply, .. } => drop(reply.send(Err(self.file.error()))),
            Job::List { reply, .. } => drop(reply.send(Err(self.file.error()))),
            Job::Diagnose { reply } => drop(reply.send(self.diagnose())),
            Job::Poll => {}
            Job::Stop { reply } => {
                let _ = reply.send(());
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

fn renews(job: &Job) -> bool {
    matches!(job, Job::Execute((ops, _)) if ops.iter().any(|op| matches!(op, Op::Renew(_))))
}
