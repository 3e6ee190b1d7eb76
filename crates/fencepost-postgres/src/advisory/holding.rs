//! The task of one attempt: it has a session of its own, in which it tries, waits and holds. The session ends with the attempt,
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

use super::keys::{Derived, Key, derive};
use super::listing::{self, Position};
use super::session::{Session, Tried};
use super::state::{Call, ClientState, Request};
use crate::error::lost_connection;

/// The outcome of something that an attempt waits for, while it answers requests.
enum Waited<T> {
    Done(T),
    /// The attempt leaves the queue; the reply is sent when it has left.
    Leave(oneshot::Sender<Result<Reply>>),
    /// The ticket was not checked for a ttl, or the client is closed.
    Expired,
    /// The session that waits has ended.
    Gone,
}

/// When a wait that was cancelled and goes on is cancelled again.
const CANCEL_AGAIN: Duration = Duration::from_millis(50);

/// What an attempt waits for.
#[derive(Clone, Copy)]
enum Stage {
    /// A session: the server cannot have granted anything.
    Local,
    /// The server's reply, which may be a grant.
    Trying,
    /// Its turn in the server's queue, in the session with this process.
    Queued(i32),
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
    calls: UnboundedReceiver<Call>,
    timer: Timer,
    /// When the ticket or the lease ends, unless it is renewed.
    deadline: Moment,
    /// The acquire or check that has no reply yet.
    pending: Option<oneshot::Sender<Result<Reply>>>,
    /// Whether `pending` may have been sent after the lock was granted: the lease then counts from a heartbeat.
    is_late: bool,
    key: Option<Key>,
}

impl Holding {
    pub(super) fn new(
        state: Arc<ClientState>,
        attempt: Arc<Attempt>,
        calls: UnboundedReceiver<Call>,
        timer: Timer,
    ) -> Self {
        let deadline = state.clock.now() + attempt.ttl;
        Self { state, attempt, calls, timer, deadline, pending: None, is_late: false, key: None }
    }

    pub(super) async fn run(mut self) {
        let Some(Call { request: Request::Acquire(on_busy), reply }) = self.calls.recv().await else {
            return self.state.end(self.attempt.owner, None);
        };
        self.pending = Some(reply);
        match self.acquire(on_busy).await {
            Ok((session, award)) => self.hold(session, award).await,
            Err(ended) => {
                // Before the reply: the next acquire of this owner starts again.
                self.state.end(self.attempt.owner, self.key);
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
        loop {
            let session = self.session(waits).await?;
            let is_reused = session.is_reused;
            let key = match self.resolve_key(&session).await {
                Err(Ended::Failed(error)) if is_reused && is_lost(&error) => continue,
                key => key?,
            };
            let attempt = self.attempt.clone();
            let mut trying = Box::pin(session.try_lock(key, &attempt, waits));
            let tried = match self.answering(trying.as_mut(), Stage::Trying).await {
                Waited::Done(tried) => tried,
                left => {
                    let is_unlocked = self.unlock_after(&session, trying.as_mut()).await;
                    drop(trying);
                    return Err(self.leave(session, is_unlocked, left));
                }
            };
            drop(trying);
            match tried {
                // The server has closed the session while it was not in use.
                Err(error) if is_reused && is_lost(&error) => {}
                Err(error) => return Err(error.into()),
                Ok(Tried::Acquired(token)) => {
                    self.extend();
                    return Ok((session, self.award(token)));
                }
                Ok(Tried::NotFree) if !waits => {
                    self.state.put_back(session);
                    self.state.end(self.attempt.owner, self.key.take());
                    self.reply(Reply::Busy);
                    return Err(Ended::Silently);
                }
                Ok(Tried::NotFree) => return self.wait(session, key).await,
            }
        }
    }

    /// Waits in the queue of the server.
    async fn wait(&mut self, session: Session, key: Key) -> Result<(Session, Award), Ended> {
        self.reply_waiting();
        let mode = self.attempt.wants[0].mode;
        let slice = self.state.wait_slice;
        loop {
            let mut waiting = Box::pin(session.wait(key, mode, slice));
            match self.answering(waiting.as_mut(), Stage::Queued(session.pid())).await {
                Waited::Done(granted) => {
                    drop(waiting);
                    // `None`: the wait took too long, or an administrator has cancelled it.
                    if let Some(token) = granted? {
                        return Ok((session, self.award(token)));
                    }
                }
                left => {
                    let is_gone = matches!(left, Waited::Gone);
                    let is_unlocked = !is_gone && self.cancel(&session, waiting.as_mut()).await;
                    drop(waiting);
                    return Err(self.leave(session, is_unlocked, left));
                }
            }
        }
    }

    /// Ends the wait of a session in the server. Returns whether it has no lock now and can be used again.
    async fn cancel<T>(&self, session: &Session, mut waiting: Pin<&mut impl Future<Output = T>>) -> bool {
        if self.state.is_closed() {
            return false;
        }
        let cancelling = async {
            let control = self.state.control().await?;
            loop {
                listing::cancel(&self.state.link, &control, session.pid(), self.attempt.owner).await?;
                // A cancellation that arrives before the wait has no effect.
                if tokio::time::timeout(CANCEL_AGAIN, waiting.as_mut()).await.is_ok() {
                    // It may have been granted at the last moment.
                    return session.unlock().await;
                }
            }
        };
        let limit = request_timeout(self.attempt.ttl);
        matches!(tokio::time::timeout(limit, cancelling).await, Ok(Ok(Some(()))))
    }

    /// Awaits a statement that may acquire the lock, and frees it. Returns whether the session can be used again.
    async fn unlock_after<T>(&self, session: &Session, trying: Pin<&mut impl Future<Output = T>>) -> bool {
        let unlocking = async {
            trying.await;
            session.unlock().await
        };
        let limit = request_timeout(self.attempt.ttl);
        matches!(tokio::time::timeout(limit, unlocking).await, Ok(Ok(Some(()))))
    }

    /// Ends an attempt that does not wait any more.
    fn leave<T>(&mut self, session: Session, is_unlocked: bool, why: Waited<T>) -> Ended {
        if is_unlocked {
            self.state.put_back(session);
        } else {
            session.abort();
        }
        match why {
            Waited::Leave(reply) => self.left(Some(reply)),
            Waited::Done(_) | Waited::Expired => self.left(None),
            Waited::Gone => lost_connection(self.state.link.location()).into(),
        }
    }

    /// Obtains a session. An attempt that does not wait fails if all are in use for long.
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

    async fn resolve_key(&mut self, session: &Session) -> Result<Key, Ended> {
        if let Some(key) = self.key {
            return Ok(key);
        }
        let name = self.attempt.wants[0].name.clone();
        let key = match derive(self.state.rule, &self.state.link.config().namespace, &name)? {
            Derived::Key(key) => key,
            Derived::ByServer(expression) => {
                let key =
                    self.answering(pin!(session.evaluate(expression, name.as_str())), Stage::Local).await;
                Key::Single(self.or_leave(key)??)
            }
        };
        self.state.use_key(key, &name)?;
        self.key = Some(key);
        Ok(key)
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
                Request::Renew | Request::Release => drop(reply.send(Ok(Reply::NotHeld))),
                Request::Acquire(_) | Request::Check => {
                    // What was pending before has no receiver any more.
                    let was_pending = self.pending.replace(reply).is_some();
                    self.is_late = true;
                    let pid = match stage {
                        Stage::Queued(pid) => pid,
                        Stage::Local if !was_pending => {
                            self.reply_waiting();
                            continue;
                        }
                        // What is under way is the reply.
                        Stage::Local | Stage::Trying => continue,
                    };
                    let client = self.state.clone();
                    let limit = request_timeout(self.attempt.ttl);
                    let asking = tokio::time::timeout(limit, listing::position(&client, pid));
                    let position = tokio::select! {
                        biased;
                        done = &mut future => return Waited::Done(done),
                        position = asking => position.unwrap_or_else(|_| Err(client.no_reply())),
                    };
                    match position {
                        Ok(Position::Waiting) => self.reply_waiting(),
                        // The grant arrives soon, and is the reply.
                        Ok(Position::Granted) => {}
                        Ok(Position::Gone) => return Waited::Gone,
                        Err(error) => drop(self.pending.take().map(|pending| pending.send(Err(error)))),
                    }
                }
            }
        }
    }

    /// Returns what was awaited, or ends the attempt; its session is closed with it.
    fn or_leave<T>(&mut self, waited: Waited<T>) -> Result<T, Ended> {
        match waited {
            Waited::Done(done) => Ok(done),
            Waited::Leave(reply) => Err(self.left(Some(reply))),
            Waited::Expired => Err(self.left(None)),
            Waited::Gone => Err(lost_connection(self.state.link.location()).into()),
        }
    }

    fn left(&mut self, reply: Option<oneshot::Sender<Result<Reply>>>) -> Ended {
        self.state.end(self.attempt.owner, self.key.take());
        if let Some(reply) = reply {
            self.state.bar(&self.attempt);
            let _ = reply.send(Ok(Reply::Left));
        }
        Ended::Silently
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
        let message = format!(
            "all connections for advisory locks of this client to {} are in use",
            self.state.link.location()
        );
        Error::new(ErrorKind::Unreachable, message)
            .with_hint("each lock that is held or waited for has one; allow more of them: ?connections=N")
            .transient()
    }
}

fn is_lost(error: &Error) -> bool {
    error.kind() == ErrorKind::OutcomeUnknown
}
