//! The callers' half of a client: the commands to its thread, and the mailbox between them.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::thread::ThreadId;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, oneshot};

use crate::backend::{Backend, BackendInfo, Op, Reply};
use crate::clock::{Clock, Moment};
use crate::defaults::Defaults;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::layers::{Layers, Origin};
use crate::machine::Input;
use crate::options::Options;
use crate::response::Responder;

/// How long dropping the last handle of a client waits for queued releases.
const DROP_TIMEOUT: Duration = Duration::from_millis(250);

/// A command of a caller to the engine.
pub(crate) enum Command {
    /// An input of the state machine.
    Machine(Input<Caller, Responder<()>>),
    /// An operation that the state machine does not track: cells and breaks.
    Call {
        op: Op,
        responder: Responder<Reply>,
    },
    Query(Query),
    Timer {
        at: Moment,
        notify: oneshot::Sender<()>,
    },
    Close(oneshot::Sender<()>),
}

/// A call of a backend method other than `execute`, outside the flights. Its future also sends the result to the caller.
pub(crate) type Query = Box<dyn FnOnce(Arc<dyn Backend>) -> BoxFuture<'static, ()> + Send>;

/// The caller of an acquire.
pub(crate) struct Caller {
    pub(crate) responder: Responder<Option<Guard>>,
    /// Weak: the engine must not own the last handle, or no thread would wait for it to end.
    pub(crate) handle: Weak<Handle>,
    pub(crate) origin: Origin,
}

/// The callers' half of the engine. When the last one is dropped, the engine sends what is queued and ends.
pub(crate) struct Handle {
    mailbox: Arc<Mailbox>,
    thread: ThreadId,
    pub(crate) info: BackendInfo,
    pub(crate) clock: Clock,
    pub(crate) defaults: Defaults,
    pub(crate) layers: Layers,
}

/// The queue of commands from the callers' threads to the engine's.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<MailboxState>,
    pub(crate) arrived: Notify,
    /// Notified when the engine has ended.
    ended: Condvar,
}

#[derive(Default)]
struct MailboxState {
    commands: Vec<Command>,
    /// No handle is left.
    detached: bool,
    /// Commands are rejected.
    closed: bool,
    ended: bool,
}

impl Mailbox {
    fn detach(&self) {
        self.state().detached = true;
        self.arrived.notify_one();
    }

    /// Returns when a command has arrived. Until `spin_until` the thread polls for it instead of sleeping.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn arrival(&self, clock: &Clock, spin_until: Moment) {
        let mut arrived = pin!(self.arrived.notified());
        while clock.now() < spin_until {
            if poll_fn(|cx| Poll::Ready(arrived.as_mut().poll(cx).is_ready())).await {
                return;
            }
            // Lets the engine's other futures and the I/O driver run.
            tokio::task::yield_now().await;
            // The caller may have been woken on this core: without this it would wait until the spinning ends.
            std::thread::yield_now();
        }
        arrived.await;
    }

    /// Returns the commands that have arrived, and whether no handle is left.
    pub(crate) fn take(&self) -> (Vec<Command>, bool) {
        let mut state = self.state();
        (std::mem::take(&mut state.commands), state.detached)
    }

    /// Rejects all further commands.
    pub(crate) fn close(&self) {
        self.state().closed = true;
    }

    fn state(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects the backend, on the client's thread.
pub(crate) type Connector = BoxFuture<'static, Result<Arc<dyn Backend>>>;

impl Handle {
    /// Starts the engine of an existing backend.
    pub(crate) fn start(backend: Arc<dyn Backend>, options: Options) -> Result<Arc<Self>> {
        let info = backend.info();
        let started = Started::spawn(Box::pin(std::future::ready(Ok(backend))), options.clone())?;
        Ok(started.handle(info, options))
    }

    /// Starts the engine, which connects its backend on its own thread.
    pub(crate) async fn connect(connector: Connector, options: Options) -> Result<Arc<Self>> {
        let mut started = Started::spawn(connector, options.clone())?;
        let mut detach = DetachOnDrop(Some(started.mailbox.clone()));
        let info = (&mut started.info).await.unwrap_or_else(|_| Err(Error::closed()))?;
        detach.0 = None;
        Ok(started.handle(info, options))
    }

    /// Calls the backend beside the flights.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the client is closed.
    pub(crate) async fn query<R, F>(
        &self,
        query: impl FnOnce(Arc<dyn Backend>) -> F + Send + 'static,
    ) -> Result<R>
    where
        R: Send + 'static,
        F: Future<Output = R> + Send,
    {
        let (sender, reply) = oneshot::channel();
        let query: Query = Box::new(|backend| {
            Box::pin(async move {
                let _ = sender.send(query(backend).await);
            })
        });
        self.submit(Command::Query(query))?;
        reply.await.map_err(|_| Error::closed())
    }

    /// Queues a command for the engine.
    pub(crate) fn submit(&self, command: Command) -> Result<()> {
        let mut state = self.mailbox.state();
        if state.closed {
            return Err(Error::closed());
        }
        state.commands.push(command);
        let first = state.commands.len() == 1;
        drop(state);
        if first {
            self.mailbox.arrived.notify_one();
        }
        Ok(())
    }
}

/// Ends an engine whose caller was dropped before it had connected.
struct DetachOnDrop(Option<Arc<Mailbox>>);

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        if let Some(mailbox) = self.0.take() {
            mailbox.detach();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.mailbox.detach();
        if std::thread::current().id() != self.thread {
            let state = self.mailbox.state();
            let wait = self.mailbox.ended.wait_timeout_while(state, DROP_TIMEOUT, |state| !state.ended);
            drop(wait);
        }
    }
}

/// An engine whose thread has been started.
struct Started {
    mailbox: Arc<Mailbox>,
    thread: ThreadId,
    info: oneshot::Receiver<Result<BackendInfo>>,
}

impl Started {
    fn spawn(connector: Connector, options: Options) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Backend, "could not start the client's thread").with_source(error)
        };
        let mailbox = Arc::new(Mailbox::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let timer = {
            let _inside = runtime.enter();
            options.clock.timer().map_err(failed)?
        };
        let (send_info, info) = oneshot::channel();
        let end = AnnounceEnd(mailbox.clone());
        let origin = Origin::here();
        let client_task = async move {
            match connector.await {
                Ok(backend) => {
                    let info = backend.info();
                    let layers = Layers::new(&info, &options);
                    let mut engine = Engine::new(backend, layers, &options, end.0.clone());
                    engine.warn(origin, info.scheme);
                    // There is no receiver if the backend existed before.
                    let _ = send_info.send(Ok(info));
                    engine.run(timer).await;
                }
                Err(error) => {
                    let _ = send_info.send(Err(error));
                }
            }
            drop(end);
        };
        let thread = std::thread::Builder::new().name("fencepost-io".into());
        let thread = thread.spawn(move || runtime.block_on(client_task)).map_err(failed)?;
        Ok(Self { mailbox, thread: thread.thread().id(), info })
    }

    fn handle(self, info: BackendInfo, options: Options) -> Arc<Handle> {
        let Self { mailbox, thread, .. } = self;
        let (layers, defaults) = (Layers::new(&info, &options), Defaults::new(&options));
        Arc::new(Handle { mailbox, thread, info, clock: options.clock, defaults, layers })
    }
}

struct AnnounceEnd(Arc<Mailbox>);

impl Drop for AnnounceEnd {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closed = true;
        state.ended = true;
        let unexecuted = std::mem::take(&mut state.commands);
        drop(state);
        self.0.ended.notify_all();
        drop(unexecuted);
    }
}
