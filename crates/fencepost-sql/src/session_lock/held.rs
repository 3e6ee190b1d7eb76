//! An attempt that holds the lock: each renewal is a heartbeat on the session, and without one the session ends.

use std::pin::pin;

use fencepost_core::backend::{Reply, Wakeup};
use fencepost_core::{Award, FencingToken, LostReason, Result, request_timeout};
use tokio::sync::oneshot;

use super::attempt::AttemptTask;
use super::server::{LockServer, LockSession};
use super::state::{Call, Lent, Request};

/// Whether the lock is still held after a request.
enum Held {
    Yes,
    /// The session has ended, or does not have the lock.
    Lost,
    /// No renewal was answered for a ttl.
    Expired,
}

impl<S: LockServer> AttemptTask<S> {
    pub(super) async fn hold(mut self, mut lent: Lent<S::Session>, key: S::Key, award: Award) {
        let session = &mut lent.session;
        if self.pending.is_none() {
            self.state.pusher.push(Wakeup::Granted { attempt: self.attempt.clone(), award });
        } else if self.is_late && !matches!(self.renew(session, &key).await, Held::Yes) {
            return self.end();
        }
        self.reply(Reply::Granted(award));
        loop {
            self.timer.arm(self.deadline);
            let held = tokio::select! {
                () = session.ended() => Held::Lost,
                () = self.timer.fired() => {
                    if self.state.clock.now() >= self.deadline { Held::Expired } else { Held::Yes }
                }
                call = self.calls.recv() => match call {
                    Some(Call { request: Request::Release(token), reply }) if token == award.token => {
                        return self.release(lent, &key, award.token, reply).await;
                    }
                    Some(call) => self.on_call(session, &key, award, call).await,
                    None => Held::Expired,
                },
            };
            match held {
                Held::Yes => {}
                Held::Lost => return self.lose(session).await,
                Held::Expired => {
                    // The lock is free at once, whatever is in flight.
                    drop(lent);
                    return self.end();
                }
            }
        }
    }

    async fn on_call(&mut self, session: &mut S::Session, key: &S::Key, award: Award, call: Call) -> Held {
        let reply = match call.request {
            Request::Leave => Reply::AlreadyGranted(award),
            Request::Renew(token) if token == award.token => Reply::Renewed { ttl: award.ttl },
            // An earlier grant of this owner.
            Request::Renew(_) | Request::Release(_) => Reply::NotHeld,
            Request::Acquire(_) | Request::Check => Reply::Granted(award),
        };
        if !matches!(reply, Reply::AlreadyGranted(_) | Reply::NotHeld) {
            let held = self.renew(session, key).await;
            if !matches!(held, Held::Yes) {
                return held;
            }
        }
        let _ = call.reply.send(Ok(reply));
        Held::Yes
    }

    /// Renews the lease by a heartbeat on the session.
    async fn renew(&mut self, session: &mut S::Session, key: &S::Key) -> Held {
        let attempt = self.attempt.clone();
        match self.in_time(session.heartbeat(key, &attempt)).await {
            Some(true) => {
                self.extend();
                Held::Yes
            }
            Some(false) => Held::Lost,
            None => Held::Expired,
        }
    }

    async fn release(
        mut self,
        mut lent: Lent<S::Session>,
        key: &S::Key,
        token: FencingToken,
        reply: oneshot::Sender<Result<Reply>>,
    ) {
        let attempt = self.attempt.clone();
        let unlocked = self.in_time(lent.session.unlock(key, &attempt)).await;
        self.end();
        let was_held = match unlocked {
            Some(Ok(was_held)) => {
                self.state.put_back(lent);
                Ok(was_held)
            }
            Some(Err(error)) => self.state.server.was_released(lent.session, &attempt, token, error).await,
            None => return,
        };
        let _ = reply.send(was_held.map(|held| if held { Reply::Released } else { Reply::NotHeld }));
    }

    /// The session has ended, and the lock with it.
    async fn lose(mut self, session: &S::Session) {
        self.end();
        let owner = self.attempt.owner;
        let asking = self.state.server.is_broken(session, owner);
        let is_broken = tokio::time::timeout(request_timeout(self.attempt.ttl), asking).await;
        let reason = if is_broken == Ok(true) { LostReason::Broken } else { LostReason::NotHeld };
        self.state.pusher.push(Wakeup::Lost { owner, reason });
    }

    /// Awaits the reply to a statement, until the lease ends.
    async fn in_time<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        loop {
            self.timer.arm(self.deadline);
            tokio::select! {
                biased;
                done = &mut future => return Some(done),
                () = self.timer.fired() => {
                    if self.state.clock.now() >= self.deadline {
                        return None;
                    }
                }
            }
        }
    }
}
