//! The test bench of the backend in memory.

use std::future::{Future, ready};
use std::sync::Arc;

use fencepost_core::clock::ManualClock;
use fencepost_core::{Backend, LockName, Result};
use fencepost_memory::Memory;
use fencepost_testkit::{StoredCounts, TestBench};

/// An empty backend in memory.
pub(crate) struct MemoryBench {
    memory: Memory,
    clock: Option<ManualClock>,
}

impl MemoryBench {
    /// On the system clock.
    pub(crate) fn new() -> Self {
        Self { memory: Memory::new(), clock: None }
    }

    /// On a clock that a test advances.
    pub(crate) fn with_manual_clock() -> Self {
        let clock = ManualClock::new();
        Self { memory: Memory::with_clock(clock.clone()), clock: Some(clock) }
    }
}

impl TestBench for MemoryBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        let backend: Arc<dyn Backend> = Arc::new(self.memory.backend());
        ready(Ok(backend))
    }

    fn peek(&self) -> impl Future<Output = StoredCounts> + Send {
        let count = self.memory.count();
        ready(StoredCounts {
            holders: count.holders,
            tickets: count.tickets,
            cells: count.cells,
            others: count.locks + count.tombstones,
        })
    }

    fn steal(&self, name: &LockName) -> impl Future<Output = ()> + Send {
        self.memory.forget_holders(name);
        ready(())
    }

    fn cut(&self) -> impl Future<Output = ()> + Send {
        self.memory.faults().cut();
        ready(())
    }

    fn heal(&self) -> impl Future<Output = ()> + Send {
        self.memory.faults().heal();
        ready(())
    }

    fn manual_clock(&self) -> Option<ManualClock> {
        self.clock.clone()
    }
}
