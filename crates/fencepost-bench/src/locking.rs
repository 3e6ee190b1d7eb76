//! What the loops of the benches need from a lock: Fencepost's, a peer's, or two bare round trips.

use std::future::Future;

/// A lock, as one task uses it.
pub(crate) trait Locking: Send + Sync + 'static {
    /// What is held between the two calls.
    type Held: Send;

    /// Acquires the lock, waiting as long as necessary.
    fn take(&self) -> impl Future<Output = Self::Held> + Send;

    /// Releases the lock.
    fn release(&self, held: Self::Held) -> impl Future<Output = ()> + Send;
}

impl Locking for fencepost::Lock {
    type Held = fencepost::Guard;

    async fn take(&self) -> Self::Held {
        self.acquire().await.expect("it comes to its turn")
    }

    async fn release(&self, held: Self::Held) {
        held.release().await.expect("it is held");
    }
}
