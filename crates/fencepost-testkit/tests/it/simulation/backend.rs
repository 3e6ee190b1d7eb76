//! A backend with one lock table.

use std::collections::BTreeSet;
use std::time::Duration;

use fencepost_core::backend::{Op, Reply, Wakeup};
use fencepost_core::clock::{Moment, StorageTime};
use fencepost_core::lock_table::{Context, LockTable};
use fencepost_core::record::ClientId;
use fencepost_core::{FencingToken, LockName, Owner, Result};

/// A holder or a ticket.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) owner: Owner,
    pub(super) client: usize,
    pub(super) until: Moment,
}

#[derive(Default)]
pub(super) struct SimulatedBackend {
    table: LockTable,
    last: u64,
    unreachable_clients: BTreeSet<ClientId>,
}

impl SimulatedBackend {
    /// Executes an operation; returns the pushes that it causes too.
    pub(super) fn execute(
        &mut self,
        client: usize,
        op: &Op,
        now: Moment,
    ) -> (Result<Reply>, Vec<(usize, Wakeup)>) {
        let reply = self.ask(client, now, |table, context| table.decide(op, context));
        let reply = reply.expect("everything is in the table");
        let pushes = self.table.take_pushes();
        (reply, pushes.into_iter().map(|(client, push)| (number(client), push)).collect())
    }

    /// Asks the lock table. The clock of the simulation is that of the backend.
    fn ask<T>(
        &mut self,
        client: usize,
        now: Moment,
        ask: impl FnOnce(&mut LockTable, &mut Context<'_>) -> T,
    ) -> T {
        let Self { table, last, unreachable_clients } = self;
        let mut numbers = std::iter::repeat_with(|| {
            *last += 1;
            *last
        });
        let mut context = Context {
            client: ClientId(client as u64),
            now: StorageTime::from_nanos(now.as_nanos()),
            wall: Duration::ZERO,
            numbers: &mut numbers,
            reachable: &|client| !unreachable_clients.contains(&client),
        };
        ask(table, &mut context)
    }

    pub(super) fn mark_unreachable(&mut self, client: usize) {
        self.unreachable_clients.insert(ClientId(client as u64));
    }

    /// Returns a holder of this lock, if there is one.
    pub(super) fn holder(&self, name: &LockName) -> Option<(Owner, FencingToken)> {
        let record = self.table.record(name)?;
        record
            .holders
            .iter()
            .map(|holder| (holder.token, holder.owner))
            .min()
            .map(|(token, owner)| (owner, token))
    }

    /// Returns all holders and tickets, expired or not.
    pub(super) fn leases(&self) -> impl Iterator<Item = Lease> {
        let lease = |owner, client, until: StorageTime| Lease {
            owner,
            client: number(client),
            until: Moment::from_nanos(until.as_nanos()),
        };
        let holders = self.table.records().flat_map(|(_, record)| record.holders.iter());
        let holders = holders.map(move |holder| lease(holder.owner, holder.client, holder.until));
        let tickets = self.table.tickets().values();
        holders.chain(tickets.map(move |ticket| lease(ticket.attempt.owner, ticket.client, ticket.until)))
    }

    /// Returns what is left after everything that has expired was removed.
    pub(super) fn remaining(&mut self, now: Moment) -> Vec<String> {
        self.ask(usize::MAX, now, LockTable::sweep_all).expect("everything is there");
        self.table.records().map(|(name, record)| format!("{name}: {record:?}")).collect()
    }

    /// Returns the number of tombstones of owners whose acquire has not arrived.
    pub(super) fn tombstones(&self) -> usize {
        self.table.tombstone_count()
    }
}

fn number(client: ClientId) -> usize {
    usize::try_from(client.0).expect("it is small")
}
