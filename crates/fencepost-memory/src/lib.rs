//! Locks in the memory of one process: the reference implementation of a Fencepost storage, and a storage for tests.
//!
//! It keeps every promise of a real storage between the tasks and threads of a process, and can be told to misbehave:
//! replies that get lost, flights that are late, a storage that is away or forgets everything. With a
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
//! assert!(guard.is_valid(), "it was renewed all the while");
//!
//! memory.faults().cut();
//! clock.advance(Duration::from_secs(3600));
//! assert_eq!(guard.lost().await, LostReason::Expired);
//! # Ok::<(), fencepost_core::Error>(())
//! # }).unwrap();
//! ```

mod backend;
mod faults;
mod storage;

pub use backend::MemoryBackend;
pub use faults::Faults;
pub use storage::{Count, Memory};
