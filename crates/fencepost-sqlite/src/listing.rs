//! Reads the state of one lock, or of a page of locks. Reading takes no turn and writes nothing.

use fencepost_core::backend::{ListPage, LockState, Page};
use fencepost_core::clock::{Clock, StorageTime, wall_time};
use fencepost_core::{LockName, Result};

use crate::state::ClientState;
use crate::statements::fetching::{QueuePart, Sightings};

impl ClientState {
    pub(crate) fn inspect(&mut self, name: &LockName, clock: &Clock) -> Result<LockState> {
        self.file.check()?;
        self.statements.begin_read()?;
        let state = self.state(name, clock);
        self.statements.rollback();
        state
    }

    pub(crate) fn list(&mut self, prefix: &str, page: &Page, clock: &Clock) -> Result<ListPage> {
        self.file.check()?;
        self.statements.begin_read()?;
        let listed = self.page(prefix, page, clock);
        self.statements.rollback();
        listed
    }

    fn page(&mut self, prefix: &str, page: &Page, clock: &Clock) -> Result<ListPage> {
        let mut after = page.after.as_ref().map_or("", LockName::as_str).to_owned();
        let wanted = i64::try_from(page.limit + 1).unwrap_or(i64::MAX);
        let mut locks = Vec::new();
        loop {
            let names = self.statements.list(prefix, &after, wanted)?;
            let Some(last) = names.last() else { break };
            last.as_str().clone_into(&mut after);
            for name in names {
                let state = self.state(&name, clock)?;
                if !state.is_idle() {
                    locks.push(state);
                }
                if locks.len() > page.limit {
                    locks.truncate(page.limit);
                    let next = locks.last().map(|lock| lock.name.clone());
                    return Ok(ListPage { locks, next });
                }
            }
        }
        Ok(ListPage { locks, next: None })
    }

    fn state(&mut self, name: &LockName, clock: &Clock) -> Result<LockState> {
        let now = StorageTime::read(clock);
        let (record, tickets) = self.statements.fetch(name, QueuePart::All, now, Sightings::ReadOnly)?;
        let tickets = tickets.into_iter().map(|ticket| (ticket.attempt.owner, ticket)).collect();
        Ok(record.state(name, &tickets, now, wall_time()))
    }
}
