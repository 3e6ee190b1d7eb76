//! What the loops of the benches need of whoever takes locks: us, a peer, or two bare round trips.

use std::future::Future;

/// One task's way to one lock.
pub(crate) trait Locking: Send + Sync + 'static {
    /// What is held between the two calls.
    type Held: Send;

    /// Takes the lock, however long it takes.
    fn take(&self) -> impl Future<Output = Self::Held> + Send;

    /// Gives it back.
    fn give_back(&self, held: Self::Held) -> impl Future<Output = ()> + Send;
}

impl Locking for fencepost::Lock {
    type Held = fencepost::Guard;

    async fn take(&self) -> Self::Held {
        self.acquire().await.expect("it comes to its turn")
    }

    async fn give_back(&self, held: Self::Held) {
        held.release().await.expect("it is held");
    }
}
