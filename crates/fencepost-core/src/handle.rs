//! The callers' end of a client: what they ask of its thread, and the mailbox between them.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::thread::ThreadId;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, oneshot};

use crate::answer::Answer;
use crate::backend::{Backend, BackendInfo, Op, Reply};
use crate::clock::{Clock, Moment};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::layers::{Layers, Origin};
use crate::machine::Input;
use crate::options::Options;

/// How long the last handle of a client waits for queued releases when it is dropped.
const FAREWELL: Duration = Duration::from_millis(250);

/// What callers ask of the engine.
pub(crate) enum Command {
    /// Something about an attempt or a grant.
    Machine(Input<Caller, Answer<()>>),
    /// An operation that belongs to neither.
    Call {
        op: Op,
        answer: Answer<Reply>,
    },
    Question(Question),
    Alarm {
        at: Moment,
        ring: oneshot::Sender<()>,
    },
    Close(oneshot::Sender<()>),
}

/// What the backend is asked beside the flights; the future also tells the caller.
pub(crate) type Question = Box<dyn FnOnce(Arc<dyn Backend>) -> BoxFuture<'static, ()> + Send>;

/// What waits for a lock.
pub(crate) struct Caller {
    pub(crate) answer: Answer<Option<Guard>>,
    /// Not the handle itself: the engine must not be the last to have it, or no thread would wait for it to end.
    pub(crate) handle: Weak<Handle>,
    pub(crate) origin: Origin,
}

/// The callers' end of the engine. When the last one goes, the engine finishes what is queued and ends.
pub(crate) struct Handle {
    mailbox: Arc<Mailbox>,
    thread: ThreadId,
    pub(crate) info: BackendInfo,
    pub(crate) clock: Clock,
    pub(crate) label: Arc<str>,
    pub(crate) layers: Layers,
}

/// What lies between the callers' threads and the engine's.
#[derive(Default)]
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    pub(crate) arrived: Notify,
    /// Signalled when the engine has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Letters {
    commands: Vec<Command>,
    /// No handle is left.
    orphaned: bool,
    /// Nothing is taken any more.
    closed: bool,
    ended: bool,
}

impl Mailbox {
    fn orphan(&self) {
        self.letters().orphaned = true;
        self.arrived.notify_one();
    }

    /// Returns when something has arrived. Until `awake_until` the thread looks for it and does not sleep.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn news(&self, clock: &Clock, awake_until: Moment) {
        let mut arrived = pin!(self.arrived.notified());
        while clock.now() < awake_until {
            if poll_fn(|cx| Poll::Ready(arrived.as_mut().poll(cx).is_ready())).await {
                return;
            }
            // What else the engine waits for has its turn, and so have the sockets.
            tokio::task::yield_now().await;
            // The caller may have been woken on this very core: without this it waits until the vigil is over.
            std::thread::yield_now();
        }
        arrived.await;
    }

    /// Everything that has arrived, and whether no handle is left.
    pub(crate) fn take(&self) -> (Vec<Command>, bool) {
        let mut letters = self.letters();
        (std::mem::take(&mut letters.commands), letters.orphaned)
    }

    /// From now on nothing is taken.
    pub(crate) fn close(&self) {
        self.letters().closed = true;
    }

    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the client's thread gets its backend.
pub(crate) type Connector = BoxFuture<'static, Result<Arc<dyn Backend>>>;

impl Handle {
    /// Starts the engine of a backend that is there already.
    pub(crate) fn start(backend: Arc<dyn Backend>, options: Options, label: Arc<str>) -> Result<Arc<Self>> {
        let info = backend.info();
        let started = Started::spawn(Box::pin(std::future::ready(Ok(backend))), options.clone())?;
        Ok(started.handle(info, options, label))
    }

    /// Starts the engine and lets it make its backend on its own thread.
    pub(crate) async fn connect(
        connector: Connector,
        options: Options,
        label: Arc<str>,
    ) -> Result<Arc<Self>> {
        let mut started = Started::spawn(connector, options.clone())?;
        let mut unwanted = Unwanted(Some(started.mailbox.clone()));
        let info = (&mut started.info).await.unwrap_or_else(|_| Err(Error::closed()))?;
        unwanted.0 = None;
        Ok(started.handle(info, options, label))
    }

    /// Asks the backend something beside the flights.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the client is closed.
    pub(crate) async fn ask<R, F>(
        &self,
        question: impl FnOnce(Arc<dyn Backend>) -> F + Send + 'static,
    ) -> Result<R>
    where
        R: Send + 'static,
        F: Future<Output = R> + Send,
    {
        let (answer, answered) = oneshot::channel();
        let question: Question = Box::new(|backend| {
            Box::pin(async move {
                let _ = answer.send(question(backend).await);
            })
        });
        self.submit(Command::Question(question))?;
        answered.await.map_err(|_| Error::closed())
    }

    /// Hands a command to the engine.
    pub(crate) fn submit(&self, command: Command) -> Result<()> {
        let mut letters = self.mailbox.letters();
        if letters.closed {
            return Err(Error::closed());
        }
        letters.commands.push(command);
        let first = letters.commands.len() == 1;
        drop(letters);
        if first {
            self.mailbox.arrived.notify_one();
        }
        Ok(())
    }
}

/// Ends an engine whose caller has gone before it had connected.
struct Unwanted(Option<Arc<Mailbox>>);

impl Drop for Unwanted {
    fn drop(&mut self) {
        if let Some(mailbox) = self.0.take() {
            mailbox.orphan();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.mailbox.orphan();
        if std::thread::current().id() != self.thread {
            let letters = self.mailbox.letters();
            let wait = self.mailbox.ended.wait_timeout_while(letters, FAREWELL, |letters| !letters.ended);
            drop(wait);
        }
    }
}

/// An engine whose thread runs.
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
        let (tell, info) = oneshot::channel();
        let end = AnnounceEnd(mailbox.clone());
        let origin = Origin::here();
        let life = async move {
            match connector.await {
                Ok(backend) => {
                    let info = backend.info();
                    let layers = Layers::new(&info, &options);
                    let mut engine = Engine::new(backend, layers, &options, end.0.clone());
                    engine.warn(origin, info.scheme);
                    // Nobody waits for it if the backend was there before.
                    let _ = tell.send(Ok(info));
                    engine.run(timer).await;
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            }
            drop(end);
        };
        let thread = std::thread::Builder::new().name("fencepost-io".into());
        let thread = thread.spawn(move || runtime.block_on(life)).map_err(failed)?;
        Ok(Self { mailbox, thread: thread.thread().id(), info })
    }

    fn handle(self, info: BackendInfo, options: Options, label: Arc<str>) -> Arc<Handle> {
        let Self { mailbox, thread, .. } = self;
        let (layers, clock) = (Layers::new(&info, &options), options.clock);
        Arc::new(Handle { mailbox, thread, info, clock, label, layers })
    }
}

struct AnnounceEnd(Arc<Mailbox>);

impl Drop for AnnounceEnd {
    fn drop(&mut self) {
        let mut letters = self.0.letters();
        letters.closed = true;
        letters.ended = true;
        let left = std::mem::take(&mut letters.commands);
        drop(letters);
        self.0.ended.notify_all();
        drop(left);
    }
}
