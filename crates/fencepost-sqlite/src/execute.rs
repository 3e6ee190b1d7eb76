//! Executes one operation inside a transaction: the lock table decides, on records that are fetched when it needs them.

use fencepost_core::backend::{Op, Reply};
use fencepost_core::clock::{StorageTime, wall_time};
use fencepost_core::lock_table::{Context, Decision, FIRST_WAITERS, LockTable, Needs};
use fencepost_core::{Error, ErrorKind, LockName, Result, Want};

use crate::state::ClientState;
use crate::statements::fetching::{QueuePart, Sightings};
use crate::statements::leases::TicketKey;

impl ClientState {
    pub(crate) fn execute(&mut self, op: &Op, now: StorageTime) -> Result<Reply> {
        if let Some(reply) = self.extend_row(op, now)? {
            return Ok(reply);
        }
        self.decide(now, |table, context| table.decide(op, context))?
    }

    /// Fetches what a decision needs until it is made.
    pub(crate) fn decide<T>(
        &mut self,
        now: StorageTime,
        ask: impl Fn(&mut LockTable, &mut Context<'_>) -> Decision<T>,
    ) -> Result<T> {
        loop {
            let Self { table, counter, sockets, client, .. } = self;
            let mut context = Context {
                client: *client,
                now,
                wall: wall_time(),
                numbers: &mut std::iter::from_fn(|| counter.next_number()),
                reachable: &|client| sockets.is_alive(client),
            };
            match ask(table, &mut context) {
                Ok(out) => return Ok(out),
                Err(needs) => self.fetch(needs, now)?,
            }
        }
    }

    fn fetch(&mut self, needs: Needs, now: StorageTime) -> Result<()> {
        match needs {
            Needs::Records(names) => names.into_iter().try_for_each(|name| self.fetch_record(name, now)),
            Needs::Ticket(name, owner) => {
                let Some(seq) = self.waiter_poll.seq(owner) else {
                    // Without its position, finding out that the owner has no ticket costs as much as reading the whole queue.
                    return self.fetch_record(name, now);
                };
                self.save()?;
                let ticket = self.statements.ticket(TicketKey { name: &name, seq, owner }, now)?;
                if ticket.is_none() {
                    return self.fetch_record(name, now);
                }
                self.table.insert_ticket(owner, ticket);
                Ok(())
            }
            Needs::Numbers => {
                Err(Error::new(ErrorKind::Backend, "one operation used up all reserved tokens"))
            }
        }
    }

    /// Fetches a lock with its first waiters, or with all of them if the table has the first already.
    fn fetch_record(&mut self, name: LockName, now: StorageTime) -> Result<()> {
        let mut queue = QueuePart::First(FIRST_WAITERS);
        if self.table.record(&name).is_some() {
            self.save()?;
            queue = QueuePart::All;
        }
        let (record, tickets) = self.statements.fetch(&name, queue, now, Sightings::Insert)?;
        self.table.insert(name, record, tickets);
        Ok(())
    }

    /// Writes what has changed in the table. SQLite may have rolled the transaction back because the disk is full: a later write
    /// would then be kept although its operation is reported as failed.
    pub(crate) fn save(&mut self) -> Result<()> {
        self.statements.check_in_transaction()?;
        self.statements.save(&self.table)?;
        self.table.forget_changes();
        Ok(())
    }

    /// Extends a lease by updating its own row, if the table does not have the lock. Returns `None` if the table has to decide.
    fn extend_row(&self, op: &Op, now: StorageTime) -> Result<Option<Reply>> {
        match op {
            Op::Renew(grant) => {
                let Some(name) = self.only_uncached(grant.held()) else { return Ok(None) };
                let ttl = self.statements.renew(name, grant, now)?;
                Ok(ttl.map(|ttl| Reply::Renewed { ttl }))
            }
            Op::Check(attempt) => {
                let owner = attempt.owner;
                let uncached = self.only_uncached(&attempt.wants);
                let Some((name, seq)) = uncached.zip(self.waiter_poll.seq(owner)) else {
                    return Ok(None);
                };
                let earliest = self.statements.extend_ticket(TicketKey { name, seq, owner }, now)?;
                Ok(earliest.map(|earliest| Reply::Waiting { check_after: earliest.since(now) }))
            }
            _ => Ok(None),
        }
    }

    /// Returns the name if there is only one and the table does not have its lock.
    fn only_uncached<'a>(&self, wants: &'a [Want]) -> Option<&'a LockName> {
        let [want] = wants else { return None };
        self.table.record(&want.name).is_none().then_some(&want.name)
    }
}
