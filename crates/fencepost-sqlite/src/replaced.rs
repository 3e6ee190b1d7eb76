//! What is left of a writer whose database was removed or replaced: nothing is held there any more, and every caller is
//! told so. The connection is closed, so that a new client of this process does not share it.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Finding;
use fencepost_core::backend::{Op, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::push::Pusher;
use fencepost_core::record::ClientId;

use crate::identity::FileIdentity;
use crate::inbox::{Inbox, Job};
use crate::preflight::preflight_of;
use crate::wake::Sockets;

/// After so long without a renewal the engine has heard that all its grants are lost.
const QUIET: Duration = Duration::from_millis(20);
const FOREVER: Duration = Duration::from_secs(3600);

pub(crate) struct Replaced {
    pub(crate) file: FileIdentity,
    pub(crate) client: ClientId,
    pub(crate) sockets: Arc<Sockets>,
    pub(crate) own: Pusher,
}

impl Replaced {
    /// Answers until it is stopped. Newcomers wait for the socket to go, so it goes when the engine knows.
    pub(crate) fn run(self, inbox: &Inbox) {
        // The engine renews everything it holds, and is told that nothing is held.
        self.own.push(Wakeup::CheckAll);
        let clock = Clock::system();
        let mut quiet = clock.now() + QUIET;
        loop {
            let now = clock.now();
            if now >= quiet {
                self.sockets.remove(self.client);
                quiet = now + FOREVER;
            }
            for job in inbox.take(quiet.since(now)) {
                // After it was told, the engine renews no more. Newcomers send datagrams all the time.
                if renews(&job) {
                    quiet = clock.now() + QUIET;
                }
                if self.answer(job).is_break() {
                    return;
                }
            }
        }
    }

    fn answer(&self, job: Job) -> std::ops::ControlFlow<()> {
        // A caller that gave up does not want to know.
        match job {
            Job::Execute((ops, answer)) => {
                drop(answer.send(ops.iter().map(|op| self.file.answer(op)).collect()));
            }
            Job::Inspect { answer, .. } => drop(answer.send(Err(self.file.error()))),
            Job::List { answer, .. } => drop(answer.send(Err(self.file.error()))),
            Job::Examine { answer } => drop(answer.send(self.diagnose())),
            Job::Look => {}
            Job::Stop { answer } => {
                let _ = answer.send(());
                return std::ops::ControlFlow::Break(());
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    fn diagnose(&self) -> Vec<Finding> {
        let mut findings = preflight_of(self.file.path());
        findings.push(Finding::failed("identity", &self.file.error()));
        findings
    }
}

fn renews(job: &Job) -> bool {
    matches!(job, Job::Execute((ops, _)) if ops.iter().any(|op| matches!(op, Op::Renew(_))))
}
