//! What becomes of those who came: whoever had come before is looked for, whoever came without a lease gets another, and
//! whoever was forgotten meanwhile leaves nothing behind.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Queue, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Error, ErrorKind, Result};

use crate::enter::{Came, Step};
use crate::error::Failure;
use crate::home::Home;

impl Home {
    /// The answer to one who came or went.
    pub(crate) async fn after(&self, step: &Step, came: Came, asked: Moment) -> Result<Reply> {
        let Came::WithoutLease = came else { return self.became(step, came, asked).await };
        let Step::Come { attempt, queue, .. } = step else { return Ok(Reply::NotHeld) };
        match self.come_anew(attempt, *queue, asked).await? {
            (_, Came::WithoutLease) => Err(self.failed(Failure::NoLease)),
            (step, came) => self.became(&step, came, asked).await,
        }
    }

    async fn became(&self, step: &Step, came: Came, asked: Moment) -> Result<Reply> {
        match (came, step) {
            (Came::Answer(reply), Step::Come { attempt, lease, .. }) => {
                self.arrival(attempt, lease.id, reply?).await
            }
            (Came::Answer(reply), Step::Go(grant)) => {
                if reply.is_ok() && !self.has_come_again(grant) {
                    // If this fails, it is done when the engine lets its owner leave.
                    let _ = self.bury_if_doubtful(&grant.attempt).await;
                }
                reply
            }
            (Came::Before, Step::Come { attempt, .. }) => {
                let mut replies = self.check(std::slice::from_ref(attempt), asked).await;
                match replies.pop() {
                    // Its keys are gone again, or were not whole.
                    None | Some(Ok(Reply::NoTicket)) => Err(self.forgotten(attempt)),
                    Some(reply) => reply,
                }
            }
            (Came::Taken(seen), Step::Come { attempt, queue: Queue::Join, .. }) => {
                Ok(self.wait_for_the_key(attempt, seen, asked))
            }
            (Came::NotAlone, Step::Come { attempt, .. }) => Err(self.forgotten(attempt)),
            // Its next check finds no ticket, and it asks again as another owner.
            (Came::Buried, Step::Come { queue: Queue::Join, .. }) => {
                Ok(Reply::Waiting { turn_in: Duration::ZERO })
            }
            (Came::Taken(_) | Came::Buried, _) => Ok(Reply::Busy),
            (Came::Before | Came::WithoutLease | Came::NotAlone, _) => Ok(Reply::NotHeld),
        }
    }

    /// One who has to read the lines before it comes.
    pub(crate) async fn come_rarely(&self, step: &Step, asked: Moment) -> Result<Reply> {
        let Step::Come { attempt, .. } = step else { return Ok(Reply::NotHeld) };
        let reply = self.look_and_come(step, asked).await;
        // It may have looked for a seat and not have come.
        self.state().vacate(attempt.owner);
        reply
    }

    /// One who reads the lines before it comes, with another lease if the first is gone.
    async fn look_and_come(&self, step: &Step, asked: Moment) -> Result<Reply> {
        let Step::Come { attempt, queue, mut lease, mut promise } = step.clone() else {
            return Ok(Reply::NotHeld);
        };
        let attempt = &attempt;
        let mut reply = self.take_if_free(attempt, lease, promise, asked).await?;
        if reply.is_none() {
            (lease, promise) = self.lease_for(attempt.ttl).await?;
            reply = self.take_if_free(attempt, lease, promise, asked).await?;
        }
        match reply.ok_or_else(|| self.failed(Failure::NoLease))? {
            Reply::Busy if queue == Queue::Join => {
                let (step, came) = self.come_anew(attempt, Queue::Join, asked).await?;
                self.after(&step, came, asked).await
            }
            reply => self.arrival(attempt, lease.id, reply).await,
        }
    }

    async fn come_anew(&self, attempt: &Arc<Attempt>, queue: Queue, asked: Moment) -> Result<(Step, Came)> {
        let (lease, promise) = self.lease_for(attempt.ttl).await?;
        let step = Step::Come { attempt: attempt.clone(), queue, lease, promise };
        let came = self.come_and_go(std::slice::from_ref(&step), asked).await.pop();
        came.map(|came| (step, came)).ok_or_else(|| self.forgotten(attempt))
    }

    /// Somebody has come. If its place was forgotten meanwhile, nobody would ever take its keys away.
    async fn arrival(&self, attempt: &Arc<Attempt>, lease: i64, reply: Reply) -> Result<Reply> {
        if reply != Reply::NoTicket {
            return self.settled(attempt, reply).await;
        }
        // Until its keys are removed, no other attempt gets their names.
        self.state().doubts.add(attempt, lease, self.clock.now());
        if self.clear(attempt).await.is_ok() {
            let mut state = self.state();
            state.doubts.settle(attempt.owner, &[lease]);
            state.vacate(attempt.owner);
        }
        Err(self.forgotten(attempt))
    }

    /// What somebody is told who cannot come, because it has left or another flight brings it.
    pub(crate) fn refused(&self, attempt: &Attempt, asked: Moment) -> Result<Reply> {
        if self.state().has_departed(attempt.owner, asked) {
            return Ok(Reply::Busy);
        }
        let message = format!("{} is under way to {} already", attempt.describe(), self.location);
        Err(Error::new(ErrorKind::OutcomeUnknown, message))
    }

    /// It may come again, once nothing of it is left.
    pub(crate) fn forgotten(&self, attempt: &Attempt) -> Error {
        let message = format!("{} in {} came and was cleared away", attempt.describe(), self.location);
        Error::new(ErrorKind::OutcomeUnknown, message)
    }
}
