//! The one thread that writes. Whatever has gathered while it was busy goes into one transaction: a group commit.
//!
//! It keeps the lines it has read in a [`LockTable`]. As long as no other process has written, which SQLite tells, they
//! are what the file says, and an operation costs one row to write and none to read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Op, Reply, Wakeup};
use fencepost_core::clock::{Clock, StorageTime, wall_time};
use fencepost_core::lock_table::{Context, Decision, FIRST_WAITERS, LockTable, Needs};
use fencepost_core::push::Pusher;
use fencepost_core::record::ClientId;
use fencepost_core::{Error, ErrorKind, Finding, LockName, Result, Want};
use tokio::sync::oneshot;

use crate::identity::FileIdentity;
use crate::inbox::{CloseOnDrop, Flight, Inbox, Job};
use crate::lookout::Lookout;
use crate::preflight::preflight_of;
use crate::replaced::Replaced;
use crate::statements::fetching::{Sight, Waiters};
use crate::statements::leases::Place;
use crate::statements::{Counter, Statements};
use crate::turnstile::Turnstile;
use crate::wake::Sockets;

/// Tokens are reserved on disk in blocks of this size, so that none is repeated after a power cut.
pub(crate) const RESERVE: i64 = 1 << 20;
/// A transaction begins with at least this many tokens reserved.
const HEADROOM: i64 = 1 << 17;
/// How often what has ended is swept from lines that nobody uses.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// How many lines one sweep looks at.
const SWEPT: i64 = 256;
/// How many empty lines are remembered.
const REMEMBERED: usize = 16_384;

/// What the writer's thread owns.
pub(crate) struct Writer {
    pub(crate) client: ClientId,
    pub(crate) statements: Statements,
    pub(crate) turnstile: Turnstile,
    pub(crate) sockets: Arc<Sockets>,
    /// Pushes to this very client need no socket.
    pub(crate) own: Pusher,
    pub(crate) boot_id: i64,
    pub(crate) table: LockTable,
    pub(crate) counter: Counter,
    /// The version of the file that the table is true for.
    pub(crate) version: Option<i64>,
    /// The tickets of this client.
    pub(crate) lookout: Lookout,
    /// The files that are open, to tell whether they are still the ones at their paths.
    pub(crate) file: FileIdentity,
}

impl Writer {
    /// Works until it is stopped.
    pub(crate) fn run(mut self, inbox: &Inbox) {
        let clock = Clock::system();
        let _closed = CloseOnDrop(inbox);
        loop {
            let jobs = inbox.take(self.lookout.patience(clock.now()));
            let stop = self.work(jobs, &clock);
            if let Some(stopped) = stop {
                // The connection is closed before the caller is told.
                drop(self);
                let _ = stopped.send(());
                return;
            }
            if !self.file.is_in_place() {
                return self.leave().run(inbox);
            }
            let now = clock.now();
            if self.lookout.is_due(now) {
                self.look_for_lost_wakeups(&clock);
            }
        }
    }

    /// Closes the connection to files that are no longer those of the database.
    fn leave(self) -> Replaced {
        let Self { file, client, sockets, own, .. } = self;
        Replaced { file, client, sockets, own }
    }

    fn work(&mut self, jobs: Vec<Job>, clock: &Clock) -> Option<oneshot::Sender<()>> {
        let mut flights = Vec::new();
        let mut stop = None;
        for job in jobs {
            match job {
                Job::Execute(flight) => flights.push(flight),
                Job::Inspect { name, answer } => {
                    let _ = answer.send(self.inspect(&name, clock));
                }
                Job::List { prefix, page, answer } => {
                    let _ = answer.send(self.list(&prefix, &page, clock));
                }
                Job::Examine { answer } => {
                    let _ = answer.send(self.diagnose());
                }
                Job::Look => {
                    self.file.look();
                    self.lookout.hurry(clock.now());
                }
                Job::Stop { answer } => stop = Some(answer),
            }
        }
        if !flights.is_empty() {
            self.fly(flights, clock);
        }
        stop
    }

    /// All flights in one transaction; answers and pushes leave when it is committed.
    fn fly(&mut self, flights: Vec<Flight>, clock: &Clock) {
        let outcome = self.transact(clock, |writer, now| {
            let run = |(ops, _): &Flight| ops.iter().map(|op| writer.execute(op, now)).collect::<Vec<_>>();
            Ok(flights.iter().map(run).collect::<Vec<_>>())
        });
        match outcome {
            Ok(replies) => {
                let now = clock.now();
                for ((ops, answer), replies) in flights.into_iter().zip(replies) {
                    self.lookout.note(&ops, &replies, self.table.tickets(), now);
                    // An engine that gave up on the flight does not want to know.
                    let _ = answer.send(replies);
                }
            }
            Err(error) => {
                for (ops, answer) in flights {
                    let _ = answer.send(ops.iter().map(|op| self.failed(op, &error)).collect());
                }
            }
        }
    }

    /// The answer to an operation of a transaction that failed.
    fn failed(&self, op: &Op, error: &Error) -> Result<Reply> {
        if self.file.is_in_place() { Err(error.clone()) } else { self.file.answer(op) }
    }

    fn execute(&mut self, op: &Op, now: StorageTime) -> Result<Reply> {
        if let Some(reply) = self.extend_row(op, now)? {
            return Ok(reply);
        }
        self.decide(now, |table, context| table.decide(op, context))?
    }

    /// Fetches what a decision needs until it is made.
    fn decide<T>(
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
            Needs::Records(names) => names.into_iter().try_for_each(|name| self.fetch_line(name, now)),
            Needs::Ticket(name, owner) => {
                let Some(seq) = self.lookout.seq(owner) else {
                    // Without its place, finding out that it has none costs as much as the rest of the line.
                    return self.fetch_line(name, now);
                };
                self.save()?;
                let ticket = self.statements.ticket(Place { name: &name, seq, owner }, now)?;
                if ticket.is_none() {
                    return self.fetch_line(name, now);
                }
                self.table.insert_ticket(owner, ticket);
                Ok(())
            }
            Needs::Numbers => {
                Err(Error::new(ErrorKind::Backend, "one operation used up all reserved tokens"))
            }
        }
    }

    /// Fetches the first waiters of a line; the whole line if that is known already.
    fn fetch_line(&mut self, name: LockName, now: StorageTime) -> Result<()> {
        let mut waiters = Waiters::First(FIRST_WAITERS);
        if self.table.record(&name).is_some() {
            self.save()?;
            waiters = Waiters::All;
        }
        let (line, tickets) = self.statements.fetch(&name, waiters, now, Sight::Note)?;
        self.table.insert(name, line, tickets);
        Ok(())
    }

    /// Writes what has changed. SQLite may have taken the transaction back by itself, for lack of room: what is written then
    /// would stay although its operation is told that it failed.
    fn save(&mut self) -> Result<()> {
        self.statements.check_in_transaction()?;
        self.statements.save(&self.table)?;
        self.table.forget_changes();
        Ok(())
    }

    /// Extends a lease by its own row, if the rest of its line has not been read. Nothing if there is more to it.
    fn extend_row(&self, op: &Op, now: StorageTime) -> Result<Option<Reply>> {
        match op {
            Op::Renew(grant) => {
                let Some(name) = self.unread(grant.held()) else { return Ok(None) };
                let ttl = self.statements.renew(name, grant, now)?;
                Ok(ttl.map(|ttl| Reply::Renewed { ttl }))
            }
            Op::Check(attempt) => {
                let owner = attempt.owner;
                let Some((name, seq)) = self.unread(&attempt.wants).zip(self.lookout.seq(owner)) else {
                    return Ok(None);
                };
                let turn = self.statements.keep_ticket(Place { name, seq, owner }, now)?;
                Ok(turn.map(|turn| Reply::Waiting { check_after: turn.since(now) }))
            }
            _ => Ok(None),
        }
    }

    /// The only name of these, if its line is not in the table.
    fn unread<'a>(&self, wants: &'a [Want]) -> Option<&'a LockName> {
        let [want] = wants else { return None };
        self.table.record(&want.name).is_none().then_some(&want.name)
    }

    /// One write transaction. If it fails the table is forgotten, because the file did not follow it.
    pub(crate) fn transact<T>(
        &mut self,
        clock: &Clock,
        act: impl FnOnce(&mut Self, StorageTime) -> Result<T>,
    ) -> Result<T> {
        let committed = self.counter;
        let outcome = self.try_transact(clock, act);
        if outcome.is_err() {
            self.statements.rollback();
            self.version = None;
            self.counter = committed;
            self.table.forget_records();
        }
        outcome
    }

    fn try_transact<T>(
        &mut self,
        clock: &Clock,
        act: impl FnOnce(&mut Self, StorageTime) -> Result<T>,
    ) -> Result<T> {
        let turn = self.turnstile.enter(clock)?;
        self.file.check()?;
        self.statements.begin()?;
        self.read_up()?;
        if self.counter.reserved - self.counter.last < HEADROOM || self.counter.boot != self.boot_id {
            self.reserve()?;
        }
        let now = StorageTime::read(clock);
        let before = self.counter;
        let out = act(self, now)?;
        self.statements.check_in_transaction()?;
        let swept = self.counter.swept;
        if now >= swept + SWEEP_EVERY || swept > now {
            self.sweep(now)?;
        }
        self.save()?;
        if self.counter != before {
            self.statements.set_counter(self.counter)?;
        }
        self.statements.commit()?;
        // What was committed into files that had been removed by then is seen by no other process: it does not count.
        self.file.check()?;
        self.push();
        drop(turn);
        if self.table.records().len() > REMEMBERED {
            self.table.tidy(now);
        }
        Ok(out)
    }

    /// If another process has written, what we know is old.
    fn read_up(&mut self) -> Result<()> {
        let version = self.statements.data_version()?;
        if self.version != Some(version) {
            self.table.forget_records();
            let counter = self.statements.counter()?;
            if counter.last < self.counter.last {
                return Err(self.file.was_put_back());
            }
            self.counter = counter;
            self.version = Some(version);
        }
        Ok(())
    }

    /// Raises the bound of the tokens on disk. After a power cut the last commits may be missing, so an unknown boot goes
    /// on above everything that can have been handed out.
    fn reserve(&mut self) -> Result<()> {
        let (statements, boot_id) = (&self.statements, self.boot_id);
        // How durable a commit is cannot be changed inside a transaction. Whoever writes in between is heeded.
        statements.rollback();
        self.counter = statements.durably(|| {
            statements.begin()?;
            let mut counter = statements.counter()?;
            if counter.boot != boot_id {
                let micros = i64::try_from(wall_time().as_micros()).unwrap_or(0);
                counter.last = counter.reserved.max(micros);
                counter.boot = boot_id;
            }
            counter.reserved = counter.last + RESERVE;
            statements.set_counter(counter)?;
            statements.commit().map(|()| counter)
        })?;
        self.statements.begin()?;
        self.read_up()
    }

    fn sweep(&mut self, now: StorageTime) -> Result<()> {
        for name in self.statements.overdue(now, SWEPT)? {
            self.decide(now, |table, context| table.sweep(&name, context))?;
        }
        self.table.tidy(now);
        self.counter.swept = now;
        self.statements.forget_sightings().map(drop)
    }

    /// Tells what the commit has decided: this client directly, every other with one datagram.
    fn push(&mut self) {
        let mut others: HashMap<ClientId, Vec<Wakeup>> = HashMap::new();
        for (client, wakeup) in self.table.take_pushes() {
            if client == self.client {
                self.own.push(wakeup);
            } else {
                others.entry(client).or_default().push(wakeup);
            }
        }
        for (client, wakeups) in others {
            self.sockets.send(client, &wakeups);
        }
    }

    /// Wakes waiters whose turn it may be although no wake-up came.
    fn look_for_lost_wakeups(&mut self, clock: &Clock) {
        let now = StorageTime::read(clock);
        let version = self.statements.data_version().ok();
        let Self { lookout, statements, own, .. } = self;
        for attempt in lookout.page(version, clock.now()) {
            let owner = attempt.owner;
            let its_turn = |want: &Want| statements.may_be_granted(&want.name, owner, now).unwrap_or(true);
            if attempt.wants.iter().any(its_turn) {
                own.push(Wakeup::Check { owner });
            }
        }
    }

    fn diagnose(&mut self) -> Vec<Finding> {
        let replaced = self.file.check().err().map(|error| Finding::failed("identity", &error));
        let mut findings = preflight_of(self.file.path());
        findings.extend(replaced);
        findings.extend(self.statements.diagnose());
        findings
    }
}
