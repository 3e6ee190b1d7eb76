//! A lock that can be taken: how long, how patiently, in which mode.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::answer::answer;
use crate::backend::OnBusy;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Attempt, Mode, Rule, Want};
use crate::guard::Guard;
use crate::handle::{Caller, Command, Handle};
use crate::layers::Origin;
use crate::machine::Input;
use crate::name::LockName;
use crate::token::Owner;

/// A lock of a [`crate::Client`], and how to take it. Making one does nothing; it may be used many times.
///
/// It is first come, first served among Fencepost clients. It is **not** re-entrant: a task that takes a lock it holds
/// already waits for itself. Use [`Guard::share`] to hand one grant to several tasks.
///
/// Do not use a lock where the storage can do the whole job by itself: a unique key, a conditional update or an
/// `INSERT … ON CONFLICT` needs no lease and cannot be lost.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    handle: Arc<Handle>,
    /// Checked when the lock is made, told when it is taken.
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
    /// The length of a lease unless told otherwise.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

    pub(crate) fn new(handle: Arc<Handle>, names: Result<Vec<LockName>>, rule: Rule) -> Self {
        let label = handle.label.clone();
        Self {
            handle,
            names,
            rule,
            mode: Mode::Exclusive,
            ttl: Self::DEFAULT_TTL,
            wait: None,
            max_hold: None,
            label,
            meta: [].into(),
        }
    }

    /// How long the lock outlives a holder that crashes. It is renewed three times as often. 30 s by default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long [`Lock::acquire`] waits at most. For ever by default.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// How long the lock may be held in all: after that the guard is lost and the lock released, for work that hangs.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// How the lock is to be held: exclusively by default.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Who is asking, as others see it: host:pid:user by default, with the user's number if neither `USER` nor `LOGNAME`
    /// is set.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = label.into();
        self
    }

    /// Adds a fact about the holder for others to see.
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.meta = self.meta.iter().cloned().chain([(key.into(), value.into())]).collect();
        self
    }

    /// Takes the lock if it is free and nobody waits for it; `None` otherwise.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`] and [`ErrorKind::BadConfig`] before anything is sent; whatever the storage says after.
    ///
    /// # Cancel safety
    /// If the future is dropped the lock is not taken: what was under way is undone in the background.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.attempt(OnBusy::Return, Moment::NEVER).await
    }

    /// Takes the lock, waiting in line for its turn.
    ///
    /// # Errors
    /// [`ErrorKind::WaitTimeout`] if [`Lock::wait`] was over first, and those of [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    /// If the future is dropped the place in line is given up, and a grant that was just coming is given back.
    pub async fn acquire(&self) -> Result<Guard> {
        let (on_busy, until) = match self.wait {
            None => (OnBusy::Wait, Moment::NEVER),
            Some(Duration::ZERO) => (OnBusy::Return, Moment::NEVER),
            Some(wait) => (OnBusy::Wait, self.handle.clock.now() + wait),
        };
        let waited_out = |what: &str| {
            let wait = self.wait.unwrap_or_default();
            Error::new(ErrorKind::WaitTimeout, format!("{what} did not become free within {wait:?}"))
        };
        match self.attempt(on_busy, until).await {
            Ok(Some(guard)) => Ok(guard),
            Ok(None) => Err(waited_out(&self.describe())),
            Err(error) if error.kind() == ErrorKind::WaitTimeout => Err(waited_out(&self.describe())),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock, does the work, and releases it. If the lock is lost meanwhile the work is cancelled: its future
    /// is dropped at the point where it waits.
    ///
    /// # Errors
    /// Those of [`Lock::acquire`], and [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    /// If the future is dropped the work is dropped with it and the lock released.
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

    fn describe(&self) -> String {
        let names = self.names.as_deref().unwrap_or_default();
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        format!("lock {}", names.join(", "))
    }

    fn attempt(
        &self,
        on_busy: OnBusy,
        until: Moment,
    ) -> impl Future<Output = Result<Option<Guard>>> + Send + use<> {
        let prepared = self.prepare();
        let (handle, max_hold) = (self.handle.clone(), self.max_hold);
        async move {
            let attempt = Arc::new(prepared?);
            let (answer, verdict) = answer();
            let owner = attempt.owner;
            let acquiring = handle.layers.acquiring(&attempt);
            let origin = Origin::here();
            let caller = Caller { answer, handle: Arc::downgrade(&handle), origin };
            let acquire = Input::Acquire { attempt, on_busy, until, max_hold, caller };
            let verdict = match handle.submit(Command::Machine(acquire)) {
                Ok(()) => {
                    let mut abandon = Abandon(Some((handle, owner)));
                    let verdict = verdict.await;
                    abandon.0 = None;
                    verdict
                }
                Err(error) => Err(error),
            };
            acquiring.ended(&verdict);
            verdict
        }
    }

    fn prepare(&self) -> Result<Attempt> {
        let names = self.names.as_ref().map_err(Error::clone)?;
        let info = &self.handle.info;
        let bad = |text: String| Err(Error::new(ErrorKind::BadConfig, text));
        if self.ttl < info.min_ttl || self.ttl > info.max_ttl {
            return bad(format!(
                "the ttl must be between {:?} and {:?} on {}, not {:?}",
                info.min_ttl, info.max_ttl, info.scheme, self.ttl
            ));
        }
        if self.mode == (Mode::Semaphore { permits: 0 }) {
            return bad("a semaphore needs at least one slot".into());
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

/// Tells the engine that the caller of an attempt has gone.
struct Abandon(Option<(Arc<Handle>, Owner)>);

impl Drop for Abandon {
    fn drop(&mut self) {
        if let Some((handle, owner)) = self.0.take() {
            // A closed client has undone everything already.
            let _ = handle.submit(Command::Machine(Input::Abandon(owner)));
        }
    }
}
