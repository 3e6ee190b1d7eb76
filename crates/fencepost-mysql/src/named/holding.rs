//! The task of one attempt: it has a connection of its own, on which it tries, waits and holds. The connection ends with the attempt,
//! or is left without locks.

mod held;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply, Wakeup};
use fencepost_core::clock::{Moment, Timer};
use fencepost_core::{Attempt, Award, Error, ErrorKind, FencingToken, Result, request_timeout};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::listing::{self, Position};
use super::session::{Refused, Session, Tried};
use super::state::{Call, ClientState, Request};

/// The outcome of something that an attempt waits for, while it answers requests.
enum Waited<T> {
    Done(T),
    /// The attempt leaves the queue; the reply is sent when it has left.
    Leave(oneshot::Sender<Result<Reply>>),
    /// The ticket was not checked for a ttl, or the client is closed.
    Expired,
    /// The connection that waits has ended.
    Gone,
}

/// When a wait that goes on is interrupted, and interrupted again.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(10);

/// What an attempt waits for.
#[derive(Clone, Copy)]
enum Stage {
    /// A connection: the server cannot have granted anything.
    Local,
    /// The server's reply, which may be a grant.
    Trying,
    /// Its turn in the server's queue, on the connection with this id.
    Queued(i64),
}

/// Why an attempt ends before it holds the lock.
enum Ended {
    /// All is said.
    Silently,
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) struct Holding {
    state: Arc<ClientState>,
    attempt: Arc<Attempt>,
    /// The server's name of the lock.
    key: String,
    calls: UnboundedReceiver<Call>,
    timer: Timer,
    /// When the ticket or the lease ends, unless it is renewed.
    deadline: Moment,
    /// The acquire or check that has no reply yet.
    pending: Option<oneshot::Sender<Result<Reply>>>,
    /// Whether `pending` may have been sent after the lock was granted: the lease then counts from a heartbeat.
    is_late: bool,
}

impl Holding {
    pub(super) fn new(
        state: Arc<ClientState>,
        attempt: Arc<Attempt>,
        key: String,
        (calls, timer): (UnboundedReceiver<Call>, Timer),
    ) -> Self {
        let deadline = state.clock.now() + attempt.ttl;
        Self { state, attempt, key, calls, timer, deadline, pending: None, is_late: false }
    }

    pub(super) async fn run(mut self) {
        let Some(Call { request: Request::Acquire(on_busy), reply }) = self.calls.recv().await else {
            return self.state.end(self.attempt.owner);
        };
        self.pending = Some(reply);
        match self.acquire(on_busy).await {
            Ok((session, award)) => self.hold(session, award).await,
            Err(ended) => {
                // Before the reply: the next acquire of this owner starts again.
                self.state.end(self.attempt.owner);
                match (ended, self.pending.take()) {
                    (Ended::Failed(error), Some(pending)) => drop(pending.send(Err(error))),
                    // It was in the queue, and has lost its position.
                    (Ended::Failed(_), None) => {
                        self.state.pusher.push(Wakeup::Check { owner: self.attempt.owner });
                    }
                    (Ended::Silently, _) => {}
                }
            }
        }
    }

    async fn acquire(&mut self, on_busy: OnBusy) -> Result<(Session, Award), Ended> {
        let waits = on_busy == OnBusy::Wait;
        let (attempt, key) = (self.attempt.clone(), self.key.clone());
        loop {
            let mut session = self.session(waits).await?;
            let is_reused = session.is_reused;
            let mut trying = Box::pin(session.try_lock(&key, &attempt, waits));
            let tried = match self.answering(trying.as_mut(), Stage::Trying).await {
                Waited::Done(tried) => tried,
                left => {
                    let limit = request_timeout(attempt.ttl);
                    let is_known = tokio::time::timeout(limit, trying.as_mut()).await.is_ok();
                    drop(trying);
                    return Err(self.leave(session, is_known, left).await);
                }
            };
            drop(trying);
            match tried {
                // The server has closed the connection while it was not in use.
                Err(refused) if is_reused && refused.is_connection_lost() => {}
                Err(refused) => return Err(self.refused(refused)),
                Ok(Tried::Acquired(token)) => {
                    self.extend();
                    return Ok((session, self.award(token)));
                }
                Ok(Tried::NotFree) if waits => return self.wait(session).await,
                Ok(Tried::NotFree) => {
                    self.state.end(attempt.owner);
                    self.reply(Reply::Busy);
                    if session.unlock(&key, attempt.ttl).await.is_ok() {
                        self.state.put_back(session);
                    }
                    return Err(Ended::Silently);
                }
            }
        }
    }

    /// Waits in the queue of the server.
    async fn wait(&mut self, mut session: Session) -> Result<(Session, Award), Ended> {
        self.reply_waiting();
        let (attempt, key, id) = (self.attempt.clone(), self.key.clone(), session.id);
        loop {
            let mut waiting = Box::pin(session.wait(&key, &attempt, self.state.wait_slice));
            match self.answering(waiting.as_mut(), Stage::Queued(id)).await {
                Waited::Done(tried) => {
                    drop(waiting);
                    if let Tried::Acquired(token) = tried.map_err(|refused| self.refused(refused))? {
                        return Ok((session, self.award(token)));
                    }
                }
                left => {
                    let is_known =
                        !matches!(left, Waited::Gone) && self.interrupt(id, waiting.as_mut()).await;
                    drop(waiting);
                    return Err(self.leave(session, is_known, left).await);
                }
            }
        }
    }

    /// Ends the wait of a connection in the server. Returns whether its statements have ended.
    async fn interrupt<T>(&self, id: i64, mut waiting: Pin<&mut impl Future<Output = T>>) -> bool {
        if self.state.is_closed() {
            return false;
        }
        let interrupting = async {
            // A connection that has ended is not interrupted: after a restart of the server its id may be that of another one. An
            // interruption that arrives before the wait has no effect.
            while tokio::time::timeout(INTERRUPT_AGAIN, waiting.as_mut()).await.is_err() {
                if listing::interrupt(&self.state, id).await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(request_timeout(self.attempt.ttl), interrupting).await.unwrap_or(false)
    }

    /// Ends an attempt that does not wait any more. If its statements have ended, the connection can be used again; otherwise it is
    /// closed.
    async fn leave<T>(&mut self, mut session: Session, is_known: bool, why: Waited<T>) -> Ended {
        // The lock may have been granted at the last moment.
        if is_known && session.unlock(&self.key, request_timeout(self.attempt.ttl)).await.is_ok() {
            self.state.put_back(session);
        }
        self.or_leave(why).err().unwrap_or_else(|| self.left(None))
    }

    /// Obtains a connection. An attempt that does not wait fails if all are in use for long.
    async fn session(&mut self, waits: bool) -> Result<Session, Ended> {
        let permit = match self.state.try_permit() {
            Some(permit) => permit,
            None => self.next_permit(waits).await?,
        };
        let state = self.state.clone();
        let opened = self.answering(pin!(state.session(permit)), Stage::Local).await;
        Ok(self.or_leave(opened)??)
    }

    async fn next_permit(&mut self, waits: bool) -> Result<OwnedSemaphorePermit, Ended> {
        let state = self.state.clone();
        if waits {
            self.reply_waiting();
            let permit = self.answering(pin!(state.permit()), Stage::Local).await;
            return Ok(self.or_leave(permit)??);
        }
        let limit = request_timeout(self.attempt.ttl) / 2;
        let permit = self.answering(pin!(tokio::time::timeout(limit, state.permit())), Stage::Local).await;
        Ok(self.or_leave(permit)?.map_err(|_| self.no_connection_left())??)
    }

    /// Awaits something while it answers the requests to an attempt that does not hold the lock yet.
    async fn answering<T>(
        &mut self,
        mut future: Pin<&mut impl Future<Output = T>>,
        stage: Stage,
    ) -> Waited<T> {
        loop {
            self.timer.arm(self.deadline);
            let call = tokio::select! {
                biased;
                done = &mut future => return Waited::Done(done),
                call = self.calls.recv() => call,
                () = self.timer.fired() => {
                    if self.state.clock.now() >= self.deadline {
                        return Waited::Expired;
                    }
                    continue;
                }
            };
            let Some(Call { request, reply }) = call else { return Waited::Expired };
            match request {
                Request::Leave => return Waited::Leave(reply),
                Request::Renew | Request::Release => {
                    let _ = reply.send(Ok(Reply::NotHeld));
                    continue;
                }
                Request::Acquire(_) | Request::Check => {}
            }
            // What was pending before has no receiver any more.
            let was_pending = self.pending.replace(reply).is_some();
            self.is_late = true;
            let id = match stage {
                Stage::Queued(id) => id,
                Stage::Local if !was_pending => {
                    self.reply_waiting();
                    continue;
                }
                // What is under way is the reply.
                Stage::Local | Stage::Trying => continue,
            };
            let position = tokio::select! {
                biased;
                done = &mut future => return Waited::Done(done),
                position = self.position(id) => position,
            };
            match position {
                Ok(Position::Waiting) => self.reply_waiting(),
                // The grant arrives soon, and is the reply.
                Ok(Position::Granted) => {}
                Ok(Position::Gone) => return Waited::Gone,
                Err(error) => {
                    self.pending.take().map(|pending| pending.send(Err(error)));
                }
            }
        }
    }

    async fn position(&self, id: i64) -> Result<Position> {
        let limit = request_timeout(self.attempt.ttl);
        let asked = tokio::time::timeout(limit, listing::position(&self.state, id, &self.key)).await;
        asked.unwrap_or_else(|_| {
            Err(crate::error::unreachable(self.state.location()).with_source("no reply in time"))
        })
    }

    /// Returns what was awaited, or ends the attempt; its connection is closed with it.
    fn or_leave<T>(&mut self, waited: Waited<T>) -> Result<T, Ended> {
        match waited {
            Waited::Done(done) => Ok(done),
            Waited::Leave(reply) => Err(self.left(Some(reply))),
            Waited::Expired => Err(self.left(None)),
            Waited::Gone => {
                let text = format!("{} has ended the connection of a waiter", self.state.location());
                Err(Error::new(ErrorKind::OutcomeUnknown, text).into())
            }
        }
    }

    fn left(&mut self, reply: Option<oneshot::Sender<Result<Reply>>>) -> Ended {
        self.state.end(self.attempt.owner);
        if let Some(reply) = reply {
            self.state.bar(&self.attempt);
            let _ = reply.send(Ok(Reply::Left));
        }
        Ended::Silently
    }

    fn refused(&self, refused: Refused) -> Ended {
        refused.into_error(self.state.location(), &self.attempt.wants[0].name).into()
    }

    fn extend(&mut self) {
        self.deadline = self.state.clock.now() + self.attempt.ttl;
    }

    fn reply_waiting(&mut self) {
        self.extend();
        self.reply(Reply::Waiting { check_after: self.attempt.ttl });
    }

    fn reply(&mut self, reply: Reply) {
        self.pending.take().map(|pending| pending.send(Ok(reply)));
    }

    fn award(&self, token: FencingToken) -> Award {
        Award { token, ttl: self.attempt.ttl, chosen: 0, elapsed: Duration::ZERO }
    }

    fn no_connection_left(&self) -> Error {
        let text =
            format!("all connections for named locks of this client to {} are in use", self.state.location());
        Error::new(ErrorKind::Unreachable, text)
            .with_hint("each lock that is held or waited for has one; allow more of them: ?connections=N")
            .transient()
    }
}
