//! One client's connection to a storage in memory.

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::record::ClientId;
use fencepost_core::{Error, ErrorKind, LockName, Result, push};
use futures_util::stream::BoxStream;

use crate::faults::Fault;
use crate::storage::Memory;

/// One client's connection to a [`Memory`].
#[derive(Debug)]
pub struct MemoryBackend {
    memory: Memory,
    client: ClientId,
}

impl MemoryBackend {
    pub(crate) fn new(memory: Memory, client: ClientId) -> Self {
        Self { memory, client }
    }

    fn reached(&self) -> Result<()> {
        if self.memory.faults().is_away() {
            return Err(Error::new(ErrorKind::Unreachable, "the storage in memory was told to be away"));
        }
        Ok(())
    }
}

fn no_answer(ops: &[Op]) -> Vec<Result<Reply>> {
    let error = || Error::new(ErrorKind::OutcomeUnknown, "the answer was told to get lost");
    ops.iter().map(|_| Err(error())).collect()
}

#[async_trait]
impl Backend for MemoryBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("memory", "memory:", Scope::Process, self.memory.id);
        info.min_ttl = Memory::MIN_TTL;
        info.max_ttl = Memory::MAX_TTL;
        info.flights = 4;
        info.batch = 1024;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let fault = self.memory.faults().take();
        match fault {
            Some(Fault::LoseRequest) => return no_answer(&ops),
            Some(Fault::Delay(by)) => {
                let clock = &self.memory.clock;
                if clock.sleep_until(clock.now() + by).await.is_err() {
                    return no_answer(&ops);
                }
            }
            Some(Fault::LoseReply) | None => {}
        }
        if let Err(error) = self.reached() {
            return ops.iter().map(|_| Err(error.clone())).collect();
        }
        let replies = self.memory.execute(self.client, &ops);
        if fault == Some(Fault::LoseReply) { no_answer(&ops) } else { replies }
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        let (sender, pushes) = push::channel();
        self.memory.listen(self.client, sender);
        pushes.stream()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.reached()?;
        Ok(self.memory.inspect(name))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.reached()?;
        Ok(self.memory.list(prefix, &page))
    }

    async fn close(&self) {
        self.memory.hang_up(self.client);
    }
}
