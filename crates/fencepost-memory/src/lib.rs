//! Locks in the memory of one process: the reference implementation of a Fencepost backend, and a backend for tests.
//!
//! It gives all guarantees of a real backend between the tasks and threads of a process, and can inject faults: lost replies,
//! delayed flights, an unreachable backend, or one that loses all data. With a
//! [`ManualClock`](fencepost_core::clock::ManualClock) a test of a ten-minute lease takes no time.
//!
//! ```
//! use std::time::Duration;
//! use fencepost_core::clock::ManualClock;
//! use fencepost_core::LostReason;
//! use fencepost_memory::Memory;
//!
//! # futures_executor::block_on(async {
//! let clock = ManualClock::new();
//! let memory = Memory::with_clock(clock.clone());
//! let client = memory.client()?;
//!
//! let guard = client.lock("nightly").ttl(Duration::from_secs(600)).acquire().await?;
//! clock.advance(Duration::from_secs(3600));
//! assert!(guard.is_valid(), "it was renewed in the meantime");
//!
//! memory.faults().cut();
//! clock.advance(Duration::from_secs(3600));
//! assert_eq!(guard.lost().await, LostReason::Expired);
//! # Ok::<(), fencepost_core::Error>(())
//! # }).unwrap();
//! ```

mod backend;
mod faults;
mod memory;

pub use backend::MemoryBackend;
pub use faults::Faults;
pub use memory::{Count, Memory};
