//! A lock that can be acquired: its ttl, wait limit and mode.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::backend::OnBusy;
use crate::clock::Moment;
use crate::duration_text::duration_text;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Attempt, Mode, Rule, Want};
use crate::guard::Guard;
use crate::handle::{Caller, Command, Handle};
use crate::layers::Origin;
use crate::machine::Input;
use crate::name::LockName;
use crate::response::response;
use crate::token::Owner;

/// A lock of a [`crate::Client`], with how to acquire it. Creating one does no I/O; it can be used many times.
///
/// Waiters acquire it in the order in which they joined the queue. It is **not** re-entrant: a task that acquires a lock which it
/// holds already waits for itself. Use [`Guard::share`] to use one grant in several tasks.
///
/// Do not use a lock where the database can do the whole job: a unique key, a conditional update or an
/// `INSERT … ON CONFLICT` needs no lease and cannot be lost.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    handle: Arc<Handle>,
    /// Validated when the lock is created; an error is returned when it is acquired.
    names: Result<Vec<LockName>>,
    rule: Rule,
    mode: Mode,
    ttl: Duration,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    label: Arc<str>,
    meta: Arc<[(String, String)]>,
}

impl Lock {
    /// The ttl unless the lock or [`crate::Options::ttl`] sets another; shortened or extended to what the backend can keep.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

    pub(crate) fn new(handle: Arc<Handle>, names: Result<Vec<LockName>>, rule: Rule, ttl: Duration) -> Self {
        let label = handle.defaults.label.clone();
        let (mode, meta) = (Mode::Exclusive, [].into());
        Self { handle, names, rule, mode, ttl, wait: None, max_hold: None, label, meta }
    }

    /// Sets how long the lock stays held after its holder has crashed; [`crate::Client::default_ttl`] unless set. The lease is
    /// renewed every third of this.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Limits how long [`Lock::acquire`] waits. Without a limit by default.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Limits how long the lock is held: after this time the guard is lost and the lock released, in case the work hangs.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets the mode: [`Mode::Exclusive`] by default.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Acquires the lock as a reader: many readers can hold it at once, but not together with an exclusive holder.
    ///
    /// ```
    /// # async fn example(client: fencepost_core::Client) -> fencepost_core::Result<()> {
    /// let reading = client.lock("catalogue").shared().acquire().await?;
    /// # drop(reading);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// Acquires one of `permits` permits of a semaphore. All clients of this name must agree on the number.
    ///
    /// ```
    /// # async fn example(client: fencepost_core::Client) -> fencepost_core::Result<()> {
    /// let permit = client.lock("reports").semaphore(3).acquire().await?;
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(self, permits: u32) -> Self {
        self.mode(Mode::Semaphore { permits })
    }

    /// Sets the label under which the holder or waiter is shown; see [`crate::Options::label`].
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = label.into();
        self
    }

    /// Adds a key and value that are shown with the holder.
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.meta = self.meta.iter().cloned().chain([(key.into(), value.into())]).collect();
        self
    }

    /// Acquires the lock if it is free and has no waiters; returns `None` otherwise.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`] and [`ErrorKind::BadConfig`] before anything is sent; afterwards the error of the backend.
    ///
    /// # Cancel safety
    /// If the future is dropped the lock is not acquired: a request in flight is undone in the background.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.attempt(OnBusy::Return, Moment::NEVER).await
    }

    /// Acquires the lock, waiting in the queue if necessary.
    ///
    /// # Errors
    /// [`ErrorKind::WaitTimeout`] if the limit of [`Lock::wait`] was reached, and those of [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    /// If the future is dropped the attempt leaves the queue, and a grant in flight is released.
    pub async fn acquire(&self) -> Result<Guard> {
        let (on_busy, until) = match self.wait {
            None => (OnBusy::Wait, Moment::NEVER),
            Some(Duration::ZERO) => (OnBusy::Return, Moment::NEVER),
            Some(wait) => (OnBusy::Wait, self.handle.clock.now() + wait),
        };
        match self.attempt(on_busy, until).await {
            Ok(Some(guard)) => Ok(guard),
            Ok(None) => Err(self.wait_timeout()),
            Err(error) if error.kind() == ErrorKind::WaitTimeout => Err(self.wait_timeout()),
            Err(error) => Err(error),
        }
    }

    fn wait_timeout(&self) -> Error {
        let wait = duration_text(self.wait.unwrap_or_default());
        Error::new(ErrorKind::WaitTimeout, format!("{} could not be acquired within {wait}", self.describe()))
    }

    /// Acquires the lock, runs the work, and releases the lock. If the lock is lost meanwhile the work is cancelled: its future
    /// is dropped at its current await point.
    ///
    /// For work that can fail, [`Lock::try_run`] lets `?` work inside the closure.
    ///
    /// # Errors
    /// Those of [`Lock::acquire`], and [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the work is dropped with it and the lock released.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.acquire().await?;
        let out = {
            let work = pin!(work(&guard));
            let lost = pin!(guard.lost());
            match select(work, lost).await {
                Either::Left((out, _)) => out,
                Either::Right((reason, _)) => return Err(Error::lost(&self.describe(), reason)),
            }
        };
        match guard.release().await {
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            _ => Ok(out),
        }
    }

    /// Runs work that can fail, as [`Lock::run`] does. Its error type is the caller's: it has to be made from an [`Error`], so
    /// that a lock that was not acquired or was lost is reported the same way.
    ///
    /// ```
    /// # use fencepost_core::{Client, FencingToken};
    /// # async fn charge(_invoice: u32, _token: FencingToken) -> std::io::Result<u32> { Ok(7) }
    /// # async fn store(_receipt: u32) -> Result<(), std::fmt::Error> { Ok(()) }
    /// type BoxError = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// async fn pay(client: &Client) -> Result<u32, BoxError> {
    ///     client
    ///         .lock("invoice/42")
    ///         .try_run(async |guard| {
    ///             let receipt = charge(42, guard.token()).await?;
    ///             store(receipt).await?;
    ///             Ok(receipt)
    ///         })
    ///         .await
    /// }
    /// ```
    ///
    /// The error type is inferred where the result is returned. Where it is not, the closure names it:
    /// `async |guard| -> Result<_, BoxError> { … }`.
    ///
    /// # Errors
    /// Those of the work, and those of [`Lock::run`] converted by `From`. If the lock is lost first, the work is
    /// cancelled and the error is [`ErrorKind::Lost`]. If the work ends first, its error is returned, unless the release finds that
    /// the lock was no longer held: then it is `Lost`.
    ///
    /// # Cancel safety
    /// As that of [`Lock::run`].
    pub async fn try_run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.run(work).await?
    }

    fn describe(&self) -> String {
        let names = self.names.as_deref().unwrap_or_default();
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        let word = if names.len() == 1 { "lock" } else { "locks" };
        format!("{word} {}", names.join(", "))
    }

    fn attempt(
        &self,
        on_busy: OnBusy,
        until: Moment,
    ) -> impl Future<Output = Result<Option<Guard>>> + Send + use<> {
        let attempt = self.new_attempt();
        let (handle, max_hold) = (self.handle.clone(), self.max_hold);
        async move {
            let attempt = Arc::new(attempt?);
            let (responder, response) = response();
            let owner = attempt.owner;
            let acquiring = handle.layers.acquiring(&attempt);
            let origin = Origin::here();
            let caller = Caller { responder, handle: Arc::downgrade(&handle), origin };
            let acquire = Input::Acquire { attempt, on_busy, until, max_hold, caller };
            let outcome = match handle.submit(Command::Machine(acquire)) {
                Ok(()) => {
                    let mut abandon = AbandonOnDrop(Some((handle, owner)));
                    let outcome = response.await;
                    abandon.0 = None;
                    outcome
                }
                Err(error) => Err(error),
            };
            acquiring.ended(&outcome);
            outcome
        }
    }

    fn new_attempt(&self) -> Result<Attempt> {
        let names = self.names.as_ref().map_err(Error::clone)?;
        self.handle.info.check_ttl(self.ttl)?;
        if self.mode == (Mode::Semaphore { permits: 0 }) {
            return Err(Error::new(ErrorKind::BadConfig, "a semaphore needs at least one permit"));
        }
        Ok(Attempt {
            owner: Owner::random(),
            wants: names.iter().map(|name| Want { name: name.clone(), mode: self.mode }).collect(),
            rule: self.rule,
            ttl: self.ttl,
            label: self.label.clone(),
            meta: self.meta.clone(),
        })
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lock")
            .field("names", &self.names)
            .field("mode", &self.mode)
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// Tells the engine, when dropped, that no caller waits for the attempt any more.
struct AbandonOnDrop(Option<(Arc<Handle>, Owner)>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        if let Some((handle, owner)) = self.0.take() {
            // A closed client has left every queue already.
            let _ = handle.submit(Command::Machine(Input::Abandon(owner)));
        }
    }
}
