//! The backend of one client.

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::record::ClientId;
use fencepost_core::{Error, ErrorKind, LockName, Result, push};
use futures_util::stream::BoxStream;

use crate::faults::Fault;
use crate::memory::Memory;

/// The backend of one client of a [`Memory`].
#[derive(Debug)]
pub struct MemoryBackend {
    memory: Memory,
    client: ClientId,
}

impl MemoryBackend {
    pub(crate) fn new(memory: Memory, client: ClientId) -> Self {
        Self { memory, client }
    }

    fn check_reachable(&self) -> Result<()> {
        if self.memory.faults().is_cut() {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "injected fault: the backend in memory is unreachable",
            ));
        }
        Ok(())
    }
}

fn no_reply(ops: &[Op]) -> Vec<Result<Reply>> {
    let error = || Error::new(ErrorKind::OutcomeUnknown, "injected fault: the reply was lost");
    ops.iter().map(|_| Err(error())).collect()
}

#[async_trait]
impl Backend for MemoryBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("memory", "memory:", Scope::Process, self.memory.id);
        info.min_ttl = Memory::MIN_TTL;
        info.max_ttl = Memory::MAX_TTL;
        info.max_flights = 4;
        info.max_batch = 1024;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let fault = self.memory.faults().take();
        match fault {
            Some(Fault::LoseRequest) => return no_reply(&ops),
            Some(Fault::Delay(by)) => {
                let clock = &self.memory.clock;
                if clock.sleep_until(clock.now() + by).await.is_err() {
                    return no_reply(&ops);
                }
            }
            Some(Fault::LoseReply) | None => {}
        }
        if let Err(error) = self.check_reachable() {
            return ops.iter().map(|_| Err(error.clone())).collect();
        }
        let replies = self.memory.execute(self.client, &ops);
        if fault == Some(Fault::LoseReply) { no_reply(&ops) } else { replies }
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        let (sender, pushes) = push::channel();
        self.memory.subscribe(self.client, sender);
        pushes.stream()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.check_reachable()?;
        Ok(self.memory.inspect(name))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.check_reachable()?;
        Ok(self.memory.list(prefix, &page))
    }

    async fn close(&self) {
        self.memory.unsubscribe(self.client);
    }
}
