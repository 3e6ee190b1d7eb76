//! A connection that stands, and the calls on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::Notify;

use super::{Answer, Asking, Call};
use crate::error::{Sent, call_failed, code_of};
use crate::script::Script;
use crate::setup::Setup;
use crate::task::Task;

/// How long to wait for the answer to a call that is about no lease.
pub(crate) const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that stands.
pub(crate) struct Live {
    pub(super) setup: Arc<Setup>,
    pub(super) connection: MultiplexedConnection,
    /// What the server calls the scripts.
    pub(super) scripts: Vec<(Script, String)>,
    pub(super) is_over: Arc<AtomicBool>,
    /// When anything was last heard from the server.
    pub(super) heard: AtomicU64,
    pub(super) driver: Task,
    /// Notified when the connection is lost.
    pub(super) lost: Arc<Notify>,
}

/// Why a call failed.
pub(crate) enum Failure {
    /// The server's own answer, which it gave instead of doing anything.
    Refused(RedisError),
    /// Anything else.
    Failed(Error),
}

impl Failure {
    /// In our words.
    pub(crate) fn into_error(self, location: &str) -> Error {
        match self {
            Self::Refused(error) => call_failed(location, &error, Sent::No),
            Self::Failed(error) => error,
        }
    }

    /// The first word of the server's answer.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => code_of(error),
            Self::Failed(_) => None,
        }
    }
}

impl Live {
    /// Returns the driver's connection, for calls in order.
    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Calls one command that only looks.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value> {
        let answer = self.call(command, LOOK_TIMEOUT).await;
        answer.map_err(|failure| failure.into_error(&self.setup.location))
    }

    /// Calls a script that the server knows.
    pub(super) async fn send(
        &self,
        call: &Call<'_>,
        arguments: &impl Fn(&mut Cmd),
        asking: Asking,
    ) -> Result<Answer, Failure> {
        let script = self.scripts.iter().find(|(script, _)| *script == call.script);
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.map_or("", |(_, name)| name)).arg(call.keys.len()).arg(&call.keys);
        arguments(&mut command);
        if call.replicas == 0 && asking == Asking::No {
            let value = self.call(&command, call.patience).await?;
            return Ok(Answer { value, replicas: 0 });
        }
        let mut commands = redis::pipe();
        if asking == Asking::Yes {
            commands.cmd("ASKING").ignore();
        }
        commands.add_command(command);
        let needed = commands.len();
        if call.replicas > 0 {
            // Half of the time, so that an answer comes back also if the replicas do not answer.
            let wait = u64::try_from((call.patience / 2).as_millis()).unwrap_or(u64::MAX);
            commands.cmd("WAIT").arg(call.replicas).arg(wait);
        }
        let values = self.call_all(&commands, needed, call.patience).await?;
        let mut values = values.into_iter().skip(usize::from(asking == Asking::Yes));
        let value = values.next().unwrap_or(Value::Nil);
        let replicas = match values.next() {
            Some(Value::Int(replicas)) => u32::try_from(replicas).unwrap_or_default(),
            _ => 0,
        };
        Ok(Answer { value, replicas })
    }

    async fn call(&self, command: &Cmd, patience: Duration) -> Result<Value, Failure> {
        let mut connection = self.connection();
        let call = async { connection.send_packed_command(command).await.and_then(fine) };
        self.answered(call, patience).await
    }

    /// Calls several commands, one behind the other without anything between them. If one of the first `needed` is refused,
    /// it is as if all were; what follows these is no reason to think that nothing was done.
    pub(super) async fn call_all(
        &self,
        commands: &Pipeline,
        needed: usize,
        patience: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let mut connection = self.connection();
        let count = commands.len();
        let call = async {
            let answers = connection.send_packed_commands(commands, 0, count).await?;
            let answer = |(at, answer)| if at < needed { fine(answer) } else { Ok(answer) };
            answers.into_iter().enumerate().map(answer).collect()
        };
        self.answered(call, patience).await
    }

    async fn answered<T>(
        &self,
        call: impl Future<Output = Result<T, RedisError>>,
        patience: Duration,
    ) -> Result<T, Failure> {
        let (clock, location) = (Clock::system(), &self.setup.location);
        let sent = clock.now();
        let Ok(answer) = tokio::time::timeout(patience, call).await else {
            if self.heard.load(Ordering::Relaxed) <= sent.as_nanos() {
                // Not a word since: the connection is dead, whatever the kernel thinks. Another may do better.
                self.give_up();
            }
            let message = format!("{location} did not answer within {patience:?}");
            return Err(Failure::Failed(Error::new(ErrorKind::OutcomeUnknown, message)));
        };
        self.heard.store(clock.now().as_nanos(), Ordering::Relaxed);
        answer.map_err(|error| match error.code() {
            Some("READONLY") => {
                // Demoted: another server is the primary now.
                self.give_up();
                Failure::Refused(error)
            }
            Some(_) => Failure::Refused(error),
            None => {
                self.give_up();
                Failure::Failed(call_failed(location, &error, Sent::Maybe))
            }
        })
    }

    fn give_up(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            self.driver.stop();
            self.lost.notify_one();
        }
    }
}

/// The driver takes an error that a server answers for a value like any other.
fn fine(answer: Value) -> Result<Value, RedisError> {
    match answer {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}
