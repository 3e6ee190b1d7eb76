//! The task of one attempt: it has a session of its own, in which it tries, waits and holds. The session ends with the attempt,
//! or is left without locks.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply, Wakeup};
use fencepost_core::clock::{Moment, Timer};
use fencepost_core::{Attempt, Award, Error, ErrorKind, FencingToken, Result, request_timeout};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::server::{LockServer, LockSession, Position, Tried};
use super::state::{Call, ClientState, Lent, Request};

/// When a wait that was cancelled and goes on is cancelled again.
const CANCEL_AGAIN: Duration = Duration::from_millis(50);

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

/// What an attempt waits for.
#[derive(Clone, Copy)]
enum Stage<Q> {
    /// A session: the server cannot have granted anything.
    Local,
    /// The server's reply, which may be a grant.
    Trying,
    /// Its turn in the server's queue, in this session.
    Queued(Q),
}

/// Why an attempt ends before it holds the lock.
enum Ended {
    /// All is said, and the attempt takes no more requests.
    Silently,
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What an attempt obtains: a session that has the lock with this key.
type Acquired<S> = (Lent<<S as LockServer>::Session>, <S as LockServer>::Key, Award);

pub(super) struct AttemptTask<S: LockServer> {
    pub(super) state: Arc<ClientState<S>>,
    pub(super) attempt: Arc<Attempt>,
    pub(super) calls: UnboundedReceiver<Call>,
    pub(super) timer: Timer,
    /// When the ticket or the lease ends, unless it is renewed.
    pub(super) deadline: Moment,
    /// The acquire or check that has no reply yet.
    pub(super) pending: Option<oneshot::Sender<Result<Reply>>>,
    /// Whether `pending` may have been sent after the lock was granted: the lease then counts from a heartbeat.
    pub(super) is_late: bool,
    /// The key, unless only the server can derive it.
    derived: Option<S::Key>,
    /// The key that is recorded as in use.
    used: Option<S::Key>,
}

impl<S: LockServer> AttemptTask<S> {
    pub(super) fn new(
        state: Arc<ClientState<S>>,
        attempt: Arc<Attempt>,
        derived: Option<S::Key>,
        (calls, timer): (UnboundedReceiver<Call>, Timer),
    ) -> Self {
        let deadline = state.clock.now() + attempt.ttl;
        Self { state, attempt, calls, timer, deadline, pending: None, is_late: false, derived, used: None }
    }

    pub(super) async fn run(mut self) {
        let Some(Call { request: Request::Acquire(on_busy), reply }) = self.calls.recv().await else {
            return self.end();
        };
        self.pending = Some(reply);
        match self.acquire(on_busy).await {
            Ok((lent, key, award)) => self.hold(lent, key, award).await,
            Err(Ended::Silently) => {}
            Err(Ended::Failed(error)) => {
                // Before the reply: the next acquire of this owner starts again.
                self.end();
                match self.pending.take() {
                    Some(pending) => drop(pending.send(Err(error))),
                    // It was in the queue, and has lost its position.
                    None => self.state.pusher.push(Wakeup::Check { owner: self.attempt.owner }),
                }
            }
        }
    }

    async fn acquire(&mut self, on_busy: OnBusy) -> Result<Acquired<S>, Ended> {
        loop {
            let mut lent = self.session(on_busy).await?;
            let key = match self.resolve_key(&mut lent.session).await {
                Err(Ended::Failed(error)) if is_closed_meanwhile(&lent, &error) => continue,
                key => key?,
            };
            let (lent, tried) = self.try_lock(lent, &key, on_busy).await?;
            match tried {
                Err(error) if is_closed_meanwhile(&lent, &error) => {}
                Err(error) => return Err(error.into()),
                Ok(Tried::Acquired(token)) => {
                    self.extend();
                    return Ok((lent, key, self.award(token)));
                }
                Ok(_) if on_busy == OnBusy::Wait => return self.wait(lent, key).await,
                Ok(_) => return Err(self.busy(lent, &key).await),
            }
        }
    }

    /// Tries to acquire the lock in this session, or numbers a grant; an attempt that leaves waits for the end of the statement.
    async fn try_lock(
        &mut self,
        mut lent: Lent<S::Session>,
        key: &S::Key,
        on_busy: OnBusy,
    ) -> Result<(Lent<S::Session>, Result<Tried>), Ended> {
        let attempt = self.attempt.clone();
        let mut trying = lent.session.try_lock(key, &attempt, on_busy);
        match self.answering(trying.as_mut(), Stage::Trying).await {
            Waited::Done(tried) => {
                drop(trying);
                Ok((lent, tried))
            }
            stopped => {
                let ending = async {
                    drop(trying.as_mut().await);
                    true
                };
                let time_left = self.time_left(ending).await;
                drop(trying);
                Err(self.leave(lent, key, time_left, stopped).await)
            }
        }
    }

    /// Ends an attempt that does not wait.
    async fn busy(&mut self, mut lent: Lent<S::Session>, key: &S::Key) -> Ended {
        if S::Session::IS_CLEAN_WHEN_BUSY {
            // Before the reply: the next attempt uses it.
            self.state.put_back(lent);
            self.end();
            self.reply(Reply::Busy);
        } else {
            self.end();
            self.reply(Reply::Busy);
            if lent.session.unlock(key, &self.attempt).await.is_ok() {
                self.state.put_back(lent);
            }
        }
        Ended::Silently
    }

    /// Waits in the queue of the server.
    async fn wait(&mut self, mut lent: Lent<S::Session>, key: S::Key) -> Result<Acquired<S>, Ended> {
        self.reply_waiting();
        let (attempt, slice, id) = (self.attempt.clone(), self.state.info.wait_slice, lent.session.id());
        loop {
            let mut waiting = lent.session.wait(&key, &attempt, slice);
            match self.answering(waiting.as_mut(), Stage::Queued((id, &key))).await {
                Waited::Done(tried) => {
                    drop(waiting);
                    let mut tried = tried?;
                    if tried == Tried::Unnumbered {
                        let (same, numbered) = self.try_lock(lent, &key, OnBusy::Wait).await?;
                        (lent, tried) = (same, numbered?);
                    }
                    // Otherwise the wait took too long, or an administrator has cancelled it.
                    if let Tried::Acquired(token) = tried {
                        return Ok((lent, key, self.award(token)));
                    }
                }
                stopped => {
                    let is_gone = matches!(stopped, Waited::Gone) || self.state.is_closed();
                    let time_left = if is_gone { None } else { self.cancel(id, waiting.as_mut()).await };
                    drop(waiting);
                    return Err(self.leave(lent, &key, time_left, stopped).await);
                }
            }
        }
    }

    /// Ends the wait of a session in the server. Returns the time that is left to free the lock, if the wait has ended.
    async fn cancel<T>(
        &self,
        id: S::Id,
        mut waiting: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> Option<Duration> {
        let cancelling = async {
            let mut pause = Duration::ZERO;
            // A session that has ended is not cancelled: its id may be that of another one by now. A cancellation that arrives
            // before the wait has no effect.
            while tokio::time::timeout(pause, waiting.as_mut()).await.is_err() {
                if self.state.server.cancel(id, self.attempt.owner).await.is_err() {
                    return false;
                }
                pause = CANCEL_AGAIN;
            }
            true
        };
        self.time_left(cancelling).await
    }

    /// Awaits the end of a statement. Returns how much of the time of a request is left then; `None` if it is not known to have
    /// ended.
    async fn time_left(&self, ending: impl Future<Output = bool>) -> Option<Duration> {
        let (clock, limit) = (&self.state.clock, request_timeout(self.attempt.ttl));
        let began = clock.now();
        let has_ended = tokio::time::timeout(limit, ending).await.unwrap_or(false);
        has_ended.then(|| limit.saturating_sub(clock.now().since(began)))
    }

    /// Ends an attempt that does not wait any more. Its session can be used again if its statement has ended and the lock is freed
    /// in the time that is left; otherwise it is closed.
    async fn leave<T>(
        &mut self,
        mut lent: Lent<S::Session>,
        key: &S::Key,
        time_left: Option<Duration>,
        why: Waited<T>,
    ) -> Ended {
        let is_unlocked = match time_left {
            // The lock may have been granted at the last moment.
            Some(limit) => {
                let unlocking = lent.session.unlock(key, &self.attempt);
                matches!(tokio::time::timeout(limit, unlocking).await, Ok(Ok(_)))
            }
            None => false,
        };
        if is_unlocked {
            self.state.put_back(lent);
        } else {
            drop(lent);
        }
        self.or_leave(why).err().unwrap_or_else(|| self.left(None))
    }

    /// Obtains a session. An attempt that does not wait fails if all are in use for long.
    async fn session(&mut self, on_busy: OnBusy) -> Result<Lent<S::Session>, Ended> {
        let permit = match self.state.try_permit() {
            Some(permit) => permit,
            None => self.next_permit(on_busy).await?,
        };
        let state = self.state.clone();
        Ok(self.preparing(state.session(permit)).await??)
    }

    async fn next_permit(&mut self, on_busy: OnBusy) -> Result<OwnedSemaphorePermit, Ended> {
        let state = self.state.clone();
        if on_busy == OnBusy::Wait {
            self.reply_waiting();
            return Ok(self.preparing(state.permit()).await??);
        }
        let limit = request_timeout(self.attempt.ttl) / 2;
        let permit = self.preparing(tokio::time::timeout(limit, state.permit())).await?;
        Ok(permit.map_err(|_| self.no_connection_left())??)
    }

    async fn resolve_key(&mut self, session: &mut S::Session) -> Result<S::Key, Ended> {
        if let Some(key) = &self.used {
            return Ok(key.clone());
        }
        let (state, attempt) = (self.state.clone(), self.attempt.clone());
        let name = &attempt.wants[0].name;
        let key = match self.derived.clone() {
            Some(key) => key,
            None => self.preparing(state.server.compute_key(session, name)).await??,
        };
        state.use_key(key.clone(), name)?;
        self.used = Some(key.clone());
        Ok(key)
    }

    /// Awaits something that cannot grant the lock. If the attempt leaves meanwhile, its session is closed with it.
    async fn preparing<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Ended> {
        let waited = self.answering(pin!(future), Stage::Local).await;
        self.or_leave(waited)
    }

    /// Awaits something while it answers the requests to an attempt that does not hold the lock yet.
    async fn answering<T>(
        &mut self,
        mut future: Pin<&mut (impl Future<Output = T> + ?Sized)>,
        stage: Stage<(S::Id, &S::Key)>,
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
                Request::Renew(_) | Request::Release(_) => {
                    let _ = reply.send(Ok(Reply::NotHeld));
                    continue;
                }
                Request::Acquire(_) | Request::Check => {}
            }
            // What was pending before has no receiver any more.
            let was_pending = self.pending.replace(reply).is_some();
            self.is_late = true;
            let (id, key) = match stage {
                Stage::Queued(queued) => queued,
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
                position = self.position(id, key) => position,
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

    async fn position(&self, id: S::Id, key: &S::Key) -> Result<Position> {
        let server = &self.state.server;
        let asked = tokio::time::timeout(request_timeout(self.attempt.ttl), server.position(id, key)).await;
        asked.unwrap_or_else(|_| Err(server.unreachable().with_source("no reply in time")))
    }

    /// Returns what was awaited, or ends the attempt.
    fn or_leave<T>(&mut self, waited: Waited<T>) -> Result<T, Ended> {
        match waited {
            Waited::Done(done) => Ok(done),
            Waited::Leave(reply) => Err(self.left(Some(reply))),
            Waited::Expired => Err(self.left(None)),
            Waited::Gone => Err(self.state.server.lost_waiter().into()),
        }
    }

    fn left(&mut self, reply: Option<oneshot::Sender<Result<Reply>>>) -> Ended {
        self.end();
        if let Some(reply) = reply {
            self.state.bar(&self.attempt);
            let _ = reply.send(Ok(Reply::Left));
        }
        Ended::Silently
    }

    /// Takes no more requests. Called once, and before the last reply: the next request of this owner starts another task.
    pub(super) fn end(&mut self) {
        self.state.end(self.attempt.owner, self.used.take());
    }

    pub(super) fn extend(&mut self) {
        self.deadline = self.state.clock.now() + self.attempt.ttl;
    }

    fn reply_waiting(&mut self) {
        self.extend();
        self.reply(Reply::Waiting { check_after: self.attempt.ttl });
    }

    pub(super) fn reply(&mut self, reply: Reply) {
        self.pending.take().map(|pending| pending.send(Ok(reply)));
    }

    fn award(&self, token: FencingToken) -> Award {
        Award { token, ttl: self.attempt.ttl, chosen: 0, elapsed: Duration::ZERO }
    }

    fn no_connection_left(&self) -> Error {
        let info = &self.state.info;
        let message =
            format!("all connections for {} of this client to {} are in use", info.locks, info.location);
        Error::new(ErrorKind::Unreachable, message)
            .with_hint("each lock that is held or waited for has one; allow more of them: ?connections=N")
            .transient()
    }
}

/// Returns whether the server has closed the session while it was not in use: another one is used.
fn is_closed_meanwhile<S: LockSession>(lent: &Lent<S>, error: &Error) -> bool {
    lent.is_reused && (error.kind() == ErrorKind::OutcomeUnknown || !lent.session.is_usable())
}
