//! An established connection, and calls on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Error, ErrorKind, Result, duration_text};
use fencepost_net::Address;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::Notify;

use super::{Asking, ScriptCall, ScriptReply};
use crate::error::{Sent, call_failed, error_code};
use crate::script::Script;
use crate::state::ClientState;
use crate::task::Task;

/// How long to wait for the reply to a call that is not bounded by a lease.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// An established connection, logged in and subscribed.
pub(crate) struct LiveConnection {
    pub(super) state: Arc<ClientState>,
    pub(super) address: Address,
    pub(super) connection: MultiplexedConnection,
    /// The scripts with their SHA-1 hashes.
    pub(super) scripts: Vec<(Script, String)>,
    pub(super) is_closed: Arc<AtomicBool>,
    /// The time of the server's last reply, in nanoseconds of the clock.
    pub(super) last_response: AtomicU64,
    pub(super) driver: Task,
    /// Notified when the connection is lost.
    pub(super) connection_lost: Arc<Notify>,
}

/// Why a call failed.
pub(crate) enum Failure {
    /// The server replied with an error and has changed nothing.
    Refused(RedisError),
    /// Anything else.
    Failed(Error),
}

impl Failure {
    /// Maps the failure to an error.
    pub(crate) fn into_error(self, location: &str) -> Error {
        match self {
            Self::Refused(error) => call_failed(location, &error, Sent::No),
            Self::Failed(error) => error,
        }
    }

    /// Returns the code of the server's error.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => error_code(error),
            Self::Failed(_) => None,
        }
    }
}

impl LiveConnection {
    /// Returns the address of the server.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the driver's connection.
    pub(crate) fn driver_connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Calls one command that only reads.
    pub(crate) async fn query(&self, command: &Cmd) -> Result<Value> {
        let reply = self.call(command, READ_TIMEOUT).await;
        reply.map_err(|failure| failure.into_error(&self.state.location))
    }

    /// Calls a script that is loaded.
    pub(super) async fn send(
        &self,
        call: &ScriptCall<'_>,
        add_arguments: &impl Fn(&mut Cmd),
        asking: Asking,
    ) -> Result<ScriptReply, Failure> {
        let script = self.scripts.iter().find(|(script, _)| *script == call.script);
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.map_or("", |(_, hash)| hash)).arg(call.keys.len()).arg(&call.keys);
        add_arguments(&mut command);
        if call.min_replicas == 0 && asking == Asking::No {
            let value = self.call(&command, call.timeout).await?;
            return Ok(ScriptReply { value, confirmed_replicas: 0 });
        }
        let mut commands = redis::pipe();
        if asking == Asking::Yes {
            commands.cmd("ASKING").ignore();
        }
        commands.add_command(command);
        let required = commands.len();
        if call.min_replicas > 0 {
            // Half of the timeout, so that the script's reply arrives in time even if no replica confirms.
            let wait = u64::try_from((call.timeout / 2).as_millis()).unwrap_or(u64::MAX);
            commands.cmd("WAIT").arg(call.min_replicas).arg(wait);
        }
        let values = self.call_all(&commands, required, call.timeout).await?;
        let mut values = values.into_iter().skip(usize::from(asking == Asking::Yes));
        let value = values.next().unwrap_or(Value::Nil);
        let confirmed_replicas = match values.next() {
            Some(Value::Int(count)) => u32::try_from(count).unwrap_or_default(),
            _ => 0,
        };
        Ok(ScriptReply { value, confirmed_replicas })
    }

    async fn call(&self, command: &Cmd, timeout: Duration) -> Result<Value, Failure> {
        let mut connection = self.driver_connection();
        let call = async { connection.send_packed_command(command).await.and_then(check_value) };
        self.await_reply(call, timeout).await
    }

    /// Calls several commands in one pipeline. An error of one of the first `required` is the error of the whole call; an
    /// error of a later one is returned as a value, because the first ones had an effect.
    pub(super) async fn call_all(
        &self,
        commands: &Pipeline,
        required: usize,
        timeout: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let mut connection = self.driver_connection();
        let count = commands.len();
        let call = async {
            let values = connection.send_packed_commands(commands, 0, count).await?;
            let check = |(index, value)| if index < required { check_value(value) } else { Ok(value) };
            values.into_iter().enumerate().map(check).collect()
        };
        self.await_reply(call, timeout).await
    }

    /// Waits for a reply. Closes the connection if it is dead, or if the server is no longer the primary.
    async fn await_reply<T>(
        &self,
        call: impl Future<Output = Result<T, RedisError>>,
        timeout: Duration,
    ) -> Result<T, Failure> {
        let (clock, location) = (Clock::system(), &self.state.location);
        let sent = clock.now();
        let Ok(reply) = tokio::time::timeout(timeout, call).await else {
            if self.last_response.load(Ordering::Relaxed) <= sent.as_nanos() {
                // No reply to any call since this one was sent: the connection is dead, even if the kernel has not noticed.
                self.close();
            }
            let message = format!("no reply from {location} within {}", duration_text(timeout));
            return Err(Failure::Failed(Error::new(ErrorKind::OutcomeUnknown, message)));
        };
        self.last_response.store(clock.now().as_nanos(), Ordering::Relaxed);
        reply.map_err(|error| match error.code() {
            Some("READONLY") => {
                // The server was demoted: another one is the primary now.
                self.close();
                Failure::Refused(error)
            }
            Some(_) => Failure::Refused(error),
            None => {
                self.close();
                Failure::Failed(call_failed(location, &error, Sent::Maybe))
            }
        })
    }

    fn close(&self) {
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            self.driver.stop();
            self.connection_lost.notify_one();
        }
    }
}

/// Turns a server error, which the driver returns as a value, into an error.
fn check_value(value: Value) -> Result<Value, RedisError> {
    match value {
        Value::ServerError(error) => Err(error.into()),
        value => Ok(value),
    }
}
