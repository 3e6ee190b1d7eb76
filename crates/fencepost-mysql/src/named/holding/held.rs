//! An attempt that holds the lock: each renewal is a heartbeat on its connection, and without one the server ends the connection.

use std::pin::pin;

use fencepost_core::backend::{Reply, Wakeup};
use fencepost_core::{Award, Error, ErrorKind, FencingToken, LostReason, Result, request_timeout};
use tokio::sync::oneshot;

use super::Holding;
use crate::error::unreachable;
use crate::named::listing;
use crate::named::session::Session;
use crate::named::state::{Call, Request};

/// Whether the lock is still held after a request.
enum Held {
    Yes,
    /// The connection has ended, or does not have the lock.
    Lost,
    /// No renewal was answered for a ttl.
    Expired,
}

impl Holding {
    pub(super) async fn hold(mut self, mut session: Session, award: Award) {
        if self.pending.is_none() {
            self.state.pusher.push(Wakeup::Granted { attempt: self.attempt.clone(), award });
        } else if self.is_late && !matches!(self.renew(&mut session).await, Held::Yes) {
            return self.state.end(self.attempt.owner);
        }
        self.reply(Reply::Granted(award));
        loop {
            self.timer.arm(self.deadline);
            let held = tokio::select! {
                () = self.timer.fired() => {
                    if self.state.clock.now() >= self.deadline { Held::Expired } else { Held::Yes }
                }
                call = self.calls.recv() => match call {
                    Some(Call { request: Request::Release, reply }) => {
                        return self.release(session, award.token, reply).await;
                    }
                    Some(call) => self.on_call(&mut session, award, call).await,
                    None => Held::Expired,
                },
            };
            match held {
                Held::Yes => {}
                Held::Lost => return self.lose(),
                // The connection is closed, and the lock free at once, whatever is in flight.
                Held::Expired => return self.state.end(self.attempt.owner),
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

    /// Renews the lease by a heartbeat on the connection.
    async fn renew(&mut self, session: &mut Session) -> Held {
        let (key, ttl) = (self.key.clone(), self.attempt.ttl);
        match self.in_time(session.heartbeat(&key, ttl)).await {
            Some(Ok(true)) => {
                self.extend();
                Held::Yes
            }
            Some(_) => Held::Lost,
            None => Held::Expired,
        }
    }

    async fn release(
        mut self,
        mut session: Session,
        token: FencingToken,
        reply: oneshot::Sender<Result<Reply>>,
    ) {
        let (key, ttl, state) = (self.key.clone(), self.attempt.ttl, self.state.clone());
        let unlocked = self.in_time(session.unlock(&key, ttl)).await;
        state.end(self.attempt.owner);
        let was_held = match unlocked {
            Some(Ok(was_held)) => {
                state.put_back(session);
                Ok(was_held)
            }
            Some(Err(_)) => {
                drop(session);
                let asking = listing::was_released(&state, token);
                let asked = tokio::time::timeout(request_timeout(ttl), asking).await;
                asked.unwrap_or_else(|_| Err(unreachable(state.location())))
            }
            None => return,
        };
        let outcome = was_held.map(|was_held| if was_held { Reply::Released } else { Reply::NotHeld });
        let _ = reply.send(outcome.map_err(|error| {
            let text = format!("no reply from {} to a release", state.location());
            Error::new(ErrorKind::OutcomeUnknown, text).with_source(error)
        }));
    }

    /// The connection has ended, and the lock with it: an administrator, `Op::Break` and an outage look the same.
    fn lose(self) {
        let owner = self.attempt.owner;
        self.state.end(owner);
        self.state.pusher.push(Wakeup::Lost { owner, reason: LostReason::NotHeld });
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
