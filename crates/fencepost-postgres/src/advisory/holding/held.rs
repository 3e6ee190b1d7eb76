//! An attempt that holds the lock: each renewal is a heartbeat on the session, and without one the session ends.

use std::pin::pin;

use fencepost_core::backend::{Reply, Wakeup};
use fencepost_core::{Award, LostReason, Result, request_timeout};
use tokio::sync::oneshot;
use tokio_postgres::error::SqlState;

use super::Holding;
use crate::advisory::listing;
use crate::advisory::session::Session;
use crate::advisory::state::{Call, Request};

/// Whether the lock is still held after a request.
enum Held {
    Yes,
    /// The session has ended, with this code of the server.
    Lost(Option<SqlState>),
    /// No renewal was answered for a ttl.
    Expired,
}

impl Holding {
    pub(super) async fn hold(mut self, mut session: Session, award: Award) {
        if self.pending.is_none() {
            self.state.pusher.push(Wakeup::Granted { attempt: self.attempt.clone(), award });
        } else if self.is_late && !matches!(self.renew(&mut session).await, Held::Yes) {
            self.state.end(self.attempt.owner, self.key);
            return session.abort();
        }
        self.reply(Reply::Granted(award));
        loop {
            self.timer.arm(self.deadline);
            let held = tokio::select! {
                code = session.ended() => Held::Lost(code),
                () = self.timer.fired() => {
                    if self.state.clock.now() >= self.deadline { Held::Expired } else { Held::Yes }
                }
                call = self.calls.recv() => match call {
                    Some(Call { request: Request::Release, reply }) => return self.release(session, reply).await,
                    Some(call) => self.on_call(&mut session, award, call).await,
                    None => Held::Expired,
                },
            };
            match held {
                Held::Yes => {}
                Held::Lost(code) => return self.lose(&session, code.as_ref()).await,
                Held::Expired => {
                    // The lock is free at once, whatever is in flight.
                    self.state.end(self.attempt.owner, self.key);
                    return session.abort();
                }
            }
        }
    }

    async fn on_call(&mut self, session: &mut Session, award: Award, call: Call) -> Held {
        let reply = match call.request {
            Request::Leave | Request::Release => Reply::AlreadyGranted(award),
            Request::Renew => Reply::Renewed { ttl: award.ttl },
            Request::Acquire(_) | Request::Check => Reply::Granted(award),
        };
        if !matches!(call.request, Request::Leave) {
            let held = self.renew(session).await;
            if !matches!(held, Held::Yes) {
                return held;
            }
        }
        let _ = call.reply.send(Ok(reply));
        Held::Yes
    }

    /// Renews the lease by a heartbeat on the session.
    async fn renew(&mut self, session: &mut Session) -> Held {
        match self.in_time(session.heartbeat()).await {
            Some(Ok(())) => {
                self.extend();
                Held::Yes
            }
            // The server may have ended the session before the heartbeat arrived.
            Some(Err(None)) if session.is_closed() => Held::Lost(session.ended().await),
            Some(Err(code)) => Held::Lost(code),
            None => Held::Expired,
        }
    }

    async fn release(mut self, mut session: Session, reply: oneshot::Sender<Result<Reply>>) {
        let outcome = self.in_time(session.unlock()).await;
        self.state.end(self.attempt.owner, self.key);
        let outcome = match outcome {
            Some(Ok(Some(()))) => {
                self.state.put_back(session);
                Ok(Reply::Released)
            }
            Some(Ok(None)) => Ok(Reply::NotHeld),
            Some(Err(error)) => {
                // The server may have ended the session before the release arrived; it says so.
                let is_ended = session.is_closed() && session.ended().await.is_some();
                if is_ended { Ok(Reply::NotHeld) } else { Err(error) }
            }
            None => return session.abort(),
        };
        let _ = reply.send(outcome);
    }

    /// The session has ended, and the lock with it.
    async fn lose(self, session: &Session, code: Option<&SqlState>) {
        let owner = self.attempt.owner;
        self.state.end(owner, self.key);
        let mut reason = LostReason::NotHeld;
        // `Op::Break` ends a session as any administrator does, and says so before.
        if code == Some(&SqlState::ADMIN_SHUTDOWN) {
            let asking = listing::is_broken(&self.state, session.pid(), owner);
            let limit = request_timeout(self.attempt.ttl);
            if matches!(tokio::time::timeout(limit, asking).await, Ok(Ok(true))) {
                reason = LostReason::Broken;
            }
        }
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
