//! A storage of one book.

use std::collections::BTreeSet;

use fencepost_core::backend::{Op, Reply, Wakeup};
use fencepost_core::book::{Book, Shelf};
use fencepost_core::clock::Moment;
use fencepost_core::line::{ClientId, Line, Ticket};
use fencepost_core::{FencingToken, LockName, Owner, Result};

/// A holder or a ticket.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) owner: Owner,
    pub(super) client: usize,
    pub(super) until: Moment,
}

#[derive(Default)]
pub(super) struct Storage {
    book: Book,
    desk: Desk,
}

#[derive(Default)]
struct Desk {
    last: u64,
    out_of_reach: BTreeSet<ClientId>,
}

impl Shelf for Desk {
    fn load(&mut self, _name: &LockName) -> Result<Option<(Line, Vec<Ticket>)>> {
        Ok(None)
    }

    fn mint(&mut self) -> Result<u64> {
        self.last += 1;
        Ok(self.last)
    }

    fn reachable(&mut self, client: ClientId) -> bool {
        !self.out_of_reach.contains(&client)
    }
}

impl Storage {
    /// Executes an operation; the pushes that it causes are told too.
    pub(super) fn execute(
        &mut self,
        client: usize,
        op: &Op,
        now: Moment,
    ) -> (Result<Reply>, Vec<(usize, Wakeup)>) {
        let reply = self.book.execute(&mut self.desk, ClientId(client as u64), op, now);
        (reply, self.pushes())
    }

    pub(super) fn lose_sight_of(&mut self, client: usize) {
        self.desk.out_of_reach.insert(ClientId(client as u64));
    }

    /// A holder of this lock, if there is one.
    pub(super) fn holder(&self, name: &LockName) -> Option<(Owner, FencingToken)> {
        let (_, line) = self.book.lines().find(|(there, _)| *there == name)?;
        line.holders
            .iter()
            .map(|holder| (holder.token, holder.owner))
            .min()
            .map(|(token, owner)| (owner, token))
    }

    /// All holders and tickets, ended or not.
    pub(super) fn leases(&self) -> impl Iterator<Item = Lease> {
        let lease = |owner, client, until| Lease { owner, client: number(client), until };
        let holders = self.book.lines().flat_map(|(_, line)| line.holders.iter());
        let holders = holders.map(move |holder| lease(holder.owner, holder.client, holder.until));
        let tickets = self.book.tickets().values();
        holders.chain(tickets.map(move |ticket| lease(ticket.attempt.owner, ticket.client, ticket.until)))
    }

    /// What is left after everything that has ended by now was swept.
    pub(super) fn leftovers(&mut self, now: Moment) -> Vec<String> {
        let names: Vec<LockName> = self.book.lines().map(|(name, _)| name.clone()).collect();
        for name in &names {
            self.book.sweep(&mut self.desk, name, now).expect("nothing is loaded");
        }
        self.book.tidy(now);
        self.book.lines().map(|(name, line)| format!("{name}: {line:?}")).collect()
    }

    /// How many owners are remembered that have left before they came.
    pub(super) fn departures(&self) -> usize {
        self.book.departures()
    }

    fn pushes(&mut self) -> Vec<(usize, Wakeup)> {
        let pushes = std::mem::take(&mut self.book.pushes);
        pushes.into_iter().map(|(client, push)| (number(client), push)).collect()
    }
}

fn number(client: ClientId) -> usize {
    usize::try_from(client.0).expect("it is small")
}
