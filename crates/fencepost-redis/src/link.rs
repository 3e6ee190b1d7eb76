//! One connection to one server: made when it is needed, made again when it is lost, and subscribed to this client's
//! channel the whole time.

mod handshake;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::Address;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::{Mutex, Notify};

use crate::error::{Sent, call_failed, code_of, unreachable};
use crate::setup::Setup;

pub(crate) use handshake::{Driver, Scripts, log_in};

/// Connecting, with everything that belongs to it, takes no longer.
const CONNECT: Duration = Duration::from_secs(2);
/// The pauses between attempts to get a lost connection back.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Which server a link is to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    This(Address),
    /// Whichever the sentinels name.
    Primary,
}

/// A connection that is made again when it is lost.
pub(crate) struct Link {
    setup: Arc<Setup>,
    target: Target,
    state: Mutex<State>,
    /// Rung when the connection is lost.
    lost: Arc<Notify>,
    clock: Clock,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    /// When the last attempt to connect began, and why it failed.
    failed: Option<(Moment, Error)>,
    /// Whether there ever was a connection: pushes may have been lost since.
    is_known: bool,
}

/// A connection that stands.
pub(crate) struct Live {
    connection: MultiplexedConnection,
    pub(crate) scripts: Scripts,
    is_over: Arc<AtomicBool>,
    /// When anything was last heard from the server.
    heard: AtomicU64,
    driver: Driver,
}

impl Live {
    /// For calls in order, before anybody else calls.
    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }
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

impl Link {
    /// A link that connects when it is first used. It lives on the runtime in which it is made.
    pub(crate) fn new(setup: Arc<Setup>, target: Target) -> Arc<Self> {
        Self::begin(setup, target, State::default())
    }

    /// A link to a server that may have sent pushes before anybody listened.
    pub(crate) fn known(setup: Arc<Setup>, target: Target) -> Arc<Self> {
        Self::begin(setup, target, State { is_known: true, ..State::default() })
    }

    fn begin(setup: Arc<Setup>, target: Target, state: State) -> Arc<Self> {
        let lost = Arc::new(Notify::new());
        let state = Mutex::new(state);
        let link = Arc::new(Self { setup, target, state, lost: lost.clone(), clock: Clock::system() });
        tokio::spawn(tend(Arc::downgrade(&link), lost));
        link
    }

    /// The connection, which is made if there is none.
    pub(crate) async fn live(&self) -> Result<Arc<Live>> {
        let arrived = self.clock.now();
        let mut state = self.state.lock().await;
        if let Some(live) = &state.live {
            if !live.is_over.load(Ordering::Acquire) {
                return Ok(live.clone());
            }
            state.live = None;
        }
        let began = self.clock.now();
        if let Some((tried, error)) = &state.failed
            && *tried > arrived
        {
            // Somebody has tried for all who were waiting.
            return Err(error.duplicate());
        }
        let connecting =
            tokio::time::timeout(CONNECT, handshake::connect(&self.setup, &self.target, &self.lost));
        let connected = connecting.await.unwrap_or_else(|_| {
            let late = unreachable(&self.setup.location).with_source(format!("no answer within {CONNECT:?}"));
            // A server that does not expect TLS waits for more.
            Err(if self.setup.encryption.is_some() { late.with_hint("is it a TLS port?") } else { late })
        });
        match connected {
            Ok(live) => {
                let live = Arc::new(live);
                state.live = Some(live.clone());
                state.failed = None;
                if std::mem::replace(&mut state.is_known, true) {
                    self.setup.recheck();
                }
                Ok(live)
            }
            Err(error) => {
                state.failed = Some((began, error.duplicate()));
                // Until it is there again.
                self.lost.notify_one();
                Err(error)
            }
        }
    }

    /// Whether there is a connection; one that is just being made is not there yet.
    pub(crate) fn stands(&self) -> bool {
        let is_there = |live: &Arc<Live>| !live.is_over.load(Ordering::Acquire);
        self.state.try_lock().is_ok_and(|state| state.live.as_ref().is_some_and(is_there))
    }

    /// Loads the scripts again.
    pub(crate) async fn tell_scripts(&self, live: &Live, patience: Duration) -> Result<(), Failure> {
        let loading = handshake::loading(&self.setup);
        self.call_all(live, &loading, loading.len(), patience).await.map(drop)
    }

    /// Calls one command on the connection that is there.
    pub(crate) async fn call(
        &self,
        live: &Live,
        command: &Cmd,
        patience: Duration,
    ) -> Result<Value, Failure> {
        let mut connection = live.connection.clone();
        let call = async { connection.send_packed_command(command).await.and_then(fine) };
        self.answered(live, call, patience).await
    }

    /// Calls several commands, one behind the other without anything between them. If one of the first `needed` is refused,
    /// it is as if all were; what follows these is no reason to think that nothing was done.
    pub(crate) async fn call_all(
        &self,
        live: &Live,
        commands: &Pipeline,
        needed: usize,
        patience: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let mut connection = live.connection.clone();
        let count = commands.len();
        let call = async {
            let answers = connection.send_packed_commands(commands, 0, count).await?;
            let answer = |(at, answer)| if at < needed { fine(answer) } else { Ok(answer) };
            answers.into_iter().enumerate().map(answer).collect()
        };
        self.answered(live, call, patience).await
    }

    async fn answered<T>(
        &self,
        live: &Live,
        call: impl Future<Output = Result<T, RedisError>>,
        patience: Duration,
    ) -> Result<T, Failure> {
        let sent = self.clock.now();
        let Ok(answer) = tokio::time::timeout(patience, call).await else {
            if live.heard.load(Ordering::Relaxed) <= sent.as_nanos() {
                // Not a word since: the connection is dead, whatever the kernel thinks. Another may do better.
                self.give_up(live);
            }
            let message = format!("{} did not answer within {patience:?}", self.setup.location);
            return Err(Failure::Failed(Error::new(ErrorKind::OutcomeUnknown, message)));
        };
        live.heard.store(self.clock.now().as_nanos(), Ordering::Relaxed);
        answer.map_err(|error| match error.code() {
            Some("READONLY") => {
                // Demoted: somebody else is the primary now.
                self.give_up(live);
                Failure::Refused(error)
            }
            Some(_) => Failure::Refused(error),
            None => {
                self.give_up(live);
                Failure::Failed(call_failed(&self.setup.location, &error, Sent::Maybe))
            }
        })
    }

    fn give_up(&self, live: &Live) {
        if !live.is_over.swap(true, Ordering::AcqRel) {
            live.driver.stop();
            self.lost.notify_one();
        }
    }

    /// Lets go of the connection.
    pub(crate) async fn close(&self) {
        self.state.lock().await.live = None;
    }
}

impl Drop for Link {
    /// Whoever tends it is not to wait any longer.
    fn drop(&mut self) {
        self.lost.notify_one();
    }
}

/// The driver takes an error that a server answers for a value like any other.
fn fine(answer: Value) -> Result<Value, RedisError> {
    match answer {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}

/// Gets the connection back whenever it is lost, for as long as there is the link.
async fn tend(link: Weak<Link>, lost: Arc<Notify>) {
    let clock = Clock::system();
    loop {
        lost.notified().await;
        let mut pause = PAUSES.0;
        loop {
            // A clock that cannot be waited on only makes the pauses shorter than they should be.
            let _ = clock.sleep_until(clock.now() + pause).await;
            let Some(link) = link.upgrade() else {
                return;
            };
            if link.live().await.is_ok() {
                break;
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}
