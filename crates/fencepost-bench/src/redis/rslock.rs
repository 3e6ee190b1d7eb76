//! rslock, the fastest of the peers in Rust: unfenced, unfair, no renewal.

use std::process::ExitCode;
use std::time::Duration;

use ::rslock::{LockGuard, LockManager};

use crate::compare::subject::{Subject, TASKS, locked_version};
use crate::locking::Locking;
use crate::workers;

const TTL: Duration = Duration::from_secs(30);

pub(crate) fn subject() -> Subject {
    Subject {
        name: "rslock",
        version: locked_version("rslock"),
        program: workers::this_program("rslock"),
        tasks: TASKS,
    }
}

struct Lock {
    manager: LockManager,
    name: String,
}

impl Locking for Lock {
    type Held = LockGuard;

    async fn take(&self) -> LockGuard {
        self.manager.acquire(self.name.as_bytes(), TTL).await.expect("it comes to its turn")
    }

    async fn release(&self, held: LockGuard) {
        held.release().await;
    }
}

pub(crate) fn serve(words: &[String]) -> ExitCode {
    workers::serve(words, async |url: &str| {
        let client = redis::Client::open(url).map_err(|why| format!("rslock: {why}"))?;
        let manager = LockManager::from_clients(vec![client]);
        // It connects at the first lock, which is not measured.
        manager.acquire("warm", TTL).await.map_err(|why| format!("rslock: {why}"))?.release().await;
        Ok(move |name| Lock { manager: manager.clone(), name })
    })
}
