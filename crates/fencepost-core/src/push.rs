//! The channel of a backend's pushes: created with the backend, read by the engine once it runs.

use std::sync::{Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::backend::Wakeup;

/// Creates the push channel of one client.
pub fn channel() -> (Pusher, Pushes) {
    let (sender, receiver) = unbounded_channel();
    (Pusher(sender), Pushes(Mutex::new(Some(receiver))))
}

/// The sending half of a push channel.
#[derive(Clone, Debug)]
pub struct Pusher(UnboundedSender<Wakeup>);

impl Pusher {
    /// Sends a push. After the client has ended it does nothing.
    pub fn push(&self, wakeup: Wakeup) {
        let _ = self.0.send(wakeup);
    }

    /// Returns whether the client has ended.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// The receiving half of a push channel, kept until the engine takes it.
#[derive(Debug)]
pub struct Pushes(Mutex<Option<UnboundedReceiver<Wakeup>>>);

impl Pushes {
    /// Returns the pushes, for [`crate::Backend::wakeups`]. Every call after the first returns an empty stream.
    pub fn stream(&self) -> BoxStream<'static, Wakeup> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(pushes) => stream::unfold(pushes, receive).boxed(),
            None => stream::empty().boxed(),
        }
    }
}

async fn receive(mut pushes: UnboundedReceiver<Wakeup>) -> Option<(Wakeup, UnboundedReceiver<Wakeup>)> {
    Some((pushes.recv().await?, pushes))
}
