//! Taking the lock: waiting in line, saying for whom, and leaving the line when a signal comes.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::time::Duration;

use fencepost::clock::Clock;
use fencepost::{Client, ErrorKind, FencingToken, Guard, Lock, LockName, LockState, Result};
use rustix::process::Signal;

use crate::news::{News, REPEAT};
use crate::output::{Level, Output};
use crate::signals::Signals;
use crate::status::{Event, Status};
use crate::words;

/// After this a wait is worth a word; with `-v` much earlier.
const SOON: Duration = Duration::from_secs(1);
const AT_ONCE: Duration = Duration::from_millis(50);
/// How often it is looked whether the holder has changed.
const LOOK: Duration = Duration::from_secs(5);

/// How patient the user is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Now or never.
    None,
    /// As the lock says.
    InLine,
}

/// How the attempt to take the lock has ended.
pub(crate) enum Attempt {
    Acquired(Guard),
    /// Somebody else holds it, or the wait was over.
    Busy,
    /// A signal came first. The place in line is being given up; closing the client waits for that.
    Signalled(Signal),
}

/// Who waits for what.
pub(crate) struct Waiter<'a> {
    pub(crate) client: &'a Client,
    pub(crate) name: &'a LockName,
    pub(crate) label: &'a str,
    pub(crate) output: Output,
    pub(crate) status: &'a Status,
}

impl Waiter<'_> {
    /// Takes the lock.
    ///
    /// # Errors
    /// What the storage says.
    pub(crate) async fn take(
        &self,
        lock: &Lock,
        patience: Patience,
        signals: &mut Signals,
    ) -> Result<Attempt> {
        let attempt = pin!(attempt(lock, patience));
        // Whoever does not wait has nothing to say about it.
        let talk =
            pin!(async { if patience == Patience::InLine { self.talk().await } else { pending().await } });
        let outcome = tokio::select! {
            biased;
            signal = signals.next() => return Ok(Attempt::Signalled(signal)),
            outcome = attempt => outcome?,
            never = talk => match never {},
        };
        Ok(outcome.map_or(Attempt::Busy, Attempt::Acquired))
    }

    /// Says for whom we wait, again and again.
    async fn talk(&self) -> std::convert::Infallible {
        // Without a timer there is nothing to say and the lock can still be had.
        let _ = self.try_to_talk().await;
        pending().await
    }

    async fn try_to_talk(&self) -> io::Result<()> {
        let clock = Clock::system();
        let began = clock.now();
        let first = match self.output.level() {
            _ if self.status.is_wanted() => AT_ONCE,
            Level::Quiet => return Ok(()),
            Level::Normal => SOON,
            Level::Verbose => AT_ONCE,
        };
        let speak_at = if self.output.level() == Level::Verbose { began } else { began + SOON };
        let (mut said, mut told) = (News::new(), News::new());
        let mut look_at = began + first;
        loop {
            clock.sleep_until(look_at).await?;
            let found = self.client.inspect(self.name).await;
            let now = clock.now();
            look_at = now + LOOK;
            match found {
                Ok(state) => {
                    let waited = now.since(began);
                    let ahead = words::place(&state, self.label, waited);
                    if told.is_news((tokens(&state), ahead), now) {
                        self.status.tell(Event::waiting(&state, ahead, waited));
                    }
                    if now < speak_at {
                        look_at = speak_at;
                    } else if said.is_news(tokens(&state), now) {
                        self.output.note(words::waiting(&state, self.label, waited));
                    }
                }
                Err(error) => {
                    self.output.warning(format_args!("waiting for {:?}: {error}", self.name));
                    look_at = now + REPEAT;
                }
            }
        }
    }
}

async fn attempt(lock: &Lock, patience: Patience) -> Result<Option<Guard>> {
    if patience == Patience::None {
        return lock.try_acquire().await;
    }
    match lock.acquire().await {
        Ok(guard) => Ok(Some(guard)),
        Err(error) if error.kind() == ErrorKind::WaitTimeout => Ok(None),
        Err(error) => Err(error),
    }
}

/// Who holds the lock.
fn tokens(state: &LockState) -> Vec<Option<FencingToken>> {
    state.holders.iter().map(|holder| holder.token).collect()
}
