//! The one thread that writes. Whatever has gathered while it was busy goes into one transaction: a group commit.
//!
//! It keeps the lines it has read in a [`Book`]. As long as no other process has written, which SQLite tells, they are
//! what the file says, and an operation costs one row to write and none to read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{ListPage, LockState, Op, Page, Reply, Wakeup};
use fencepost_core::book::{Book, Shelf, Touched};
use fencepost_core::clock::{Clock, Moment, wall_time};
use fencepost_core::line::{ClientId, Line, Ticket};
use fencepost_core::{Error, ErrorKind, Finding, LockName, Result, Want};
use tokio::sync::{mpsc, oneshot};

use crate::identity::FileIdentity;
use crate::inbox::{CloseOnDrop, Flight, Inbox, Job};
use crate::lookout::Lookout;
use crate::replaced::Replaced;
use crate::statements::leases::Place;
use crate::statements::{Counter, Sight, Statements};
use crate::surroundings::surroundings_of;
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
    pub(crate) own: mpsc::UnboundedSender<Wakeup>,
    pub(crate) boot_id: i64,
    pub(crate) book: Book,
    pub(crate) counter: Counter,
    /// The version of the file that the book is true for.
    pub(crate) version: Option<i64>,
    /// The tickets of this client.
    pub(crate) lookout: Lookout,
    /// The files that are open, to tell whether they are still the ones at their paths.
    pub(crate) file: FileIdentity,
}

/// What the book sees of the writer.
struct Desk<'a> {
    statements: &'a mut Statements,
    counter: &'a mut Counter,
    sockets: &'a Sockets,
    now: Moment,
}

impl Shelf for Desk<'_> {
    fn load(&mut self, name: &LockName) -> Result<Option<(Line, Vec<Ticket>)>> {
        self.statements.load(name, self.now, Sight::Note)
    }

    fn mint(&mut self) -> Result<u64> {
        if self.counter.last >= self.counter.reserved {
            return Err(Error::new(ErrorKind::Storage, "one operation used up all reserved tokens"));
        }
        self.counter.last += 1;
        Ok(u64::try_from(self.counter.last).unwrap_or_default())
    }

    fn reachable(&mut self, client: ClientId) -> bool {
        self.sockets.is_alive(client)
    }
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
                self.look_for_lost_wakeups(now);
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
                    let _ = answer.send(self.examine());
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
                    self.lookout.note(&ops, &replies, self.book.tickets(), now);
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
        if self.file.is_in_place() { Err(error.duplicate()) } else { self.file.answer(op) }
    }

    fn execute(&mut self, op: &Op, now: Moment) -> Result<Reply> {
        if let Some(reply) = self.extend_row(op, now)? {
            return Ok(reply);
        }
        let Self { statements, counter, sockets, book, client, .. } = self;
        book.execute(&mut Desk { statements, counter, sockets, now }, *client, op, now)
    }

    /// Extends a lease by its own row, if the rest of its line has not been read. Nothing if there is more to it.
    fn extend_row(&self, op: &Op, now: Moment) -> Result<Option<Reply>> {
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
                Ok(turn.map(|turn| Reply::Waiting { turn_in: turn.since(now) }))
            }
            _ => Ok(None),
        }
    }

    /// The only name of these, if its line is not in the book.
    fn unread<'a>(&self, wants: &'a [Want]) -> Option<&'a LockName> {
        let [want] = wants else { return None };
        self.book.line(&want.name).is_none().then_some(&want.name)
    }

    /// One write transaction. If it fails the book is forgotten, because the file did not follow it.
    pub(crate) fn transact<T>(
        &mut self,
        clock: &Clock,
        act: impl FnOnce(&mut Self, Moment) -> Result<T>,
    ) -> Result<T> {
        let committed = self.counter;
        let outcome = self.try_transact(clock, act);
        if outcome.is_err() {
            self.statements.rollback();
            self.version = None;
            self.counter = committed;
            self.book.touched = Touched::default();
            self.book.pushes.clear();
        }
        outcome
    }

    fn try_transact<T>(
        &mut self,
        clock: &Clock,
        act: impl FnOnce(&mut Self, Moment) -> Result<T>,
    ) -> Result<T> {
        let turn = self.turnstile.enter(clock)?;
        self.file.check()?;
        self.statements.begin()?;
        self.read_up()?;
        if self.counter.reserved - self.counter.last < HEADROOM || self.counter.boot != self.boot_id {
            self.reserve()?;
        }
        let now = clock.now();
        let before = self.counter;
        let out = act(self, now)?;
        self.statements.check_in_transaction()?;
        let swept = self.counter.swept;
        if now >= swept + SWEEP_EVERY || swept > now {
            self.sweep(now)?;
        }
        let touched = std::mem::take(&mut self.book.touched);
        self.statements.save(&self.book, &touched)?;
        if self.counter != before {
            self.statements.set_counter(self.counter)?;
        }
        self.statements.commit()?;
        // What was committed into files that had been removed by then is seen by no other process: it does not count.
        self.file.check()?;
        self.push();
        drop(turn);
        if self.book.len() > REMEMBERED {
            self.book.tidy(now);
        }
        Ok(out)
    }

    /// If another process has written, what we know is old.
    fn read_up(&mut self) -> Result<()> {
        let version = self.statements.data_version()?;
        if self.version != Some(version) {
            self.book.forget_lines();
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

    fn sweep(&mut self, now: Moment) -> Result<()> {
        let Self { statements, counter, sockets, book, .. } = self;
        for name in statements.overdue(now, SWEPT)? {
            book.sweep(&mut Desk { statements, counter, sockets, now }, &name, now)?;
        }
        book.tidy(now);
        counter.swept = now;
        statements.forget_sightings().map(drop)
    }

    /// Tells what the commit has decided: this client directly, every other with one datagram.
    fn push(&mut self) {
        let mut others: HashMap<ClientId, Vec<Wakeup>> = HashMap::new();
        for (client, wakeup) in self.book.pushes.drain(..) {
            if client == self.client {
                // The engine has gone if nothing listens.
                let _ = self.own.send(wakeup);
            } else {
                others.entry(client).or_default().push(wakeup);
            }
        }
        for (client, wakeups) in others {
            self.sockets.send(client, &wakeups);
        }
    }

    /// Wakes waiters whose turn it may be although no wake-up came.
    fn look_for_lost_wakeups(&mut self, now: Moment) {
        let version = self.statements.data_version().ok();
        let Self { lookout, statements, own, .. } = self;
        for attempt in lookout.page(version, now) {
            let owner = attempt.owner;
            let its_turn = |want: &Want| statements.may_be_granted(&want.name, owner, now).unwrap_or(true);
            if attempt.wants.iter().any(its_turn) {
                // The engine has gone if nothing listens.
                let _ = own.send(Wakeup::Turn { owner });
            }
        }
    }

    fn inspect(&mut self, name: &LockName, clock: &Clock) -> Result<LockState> {
        self.file.check()?;
        self.statements.begin_read()?;
        let state = self.state(name, clock);
        self.statements.rollback();
        state
    }

    fn list(&mut self, prefix: &str, page: &Page, clock: &Clock) -> Result<ListPage> {
        self.file.check()?;
        self.statements.begin_read()?;
        let listed = self.page(prefix, page, clock);
        self.statements.rollback();
        listed
    }

    fn examine(&mut self) -> Vec<Finding> {
        let replaced = self.file.check().err().map(|error| Finding::failed("identity", &error));
        let mut findings = surroundings_of(self.file.path());
        findings.extend(replaced);
        findings.extend(self.statements.examine());
        findings
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
        let now = clock.now();
        let (line, tickets) = self.statements.load(name, now, Sight::Look)?.unwrap_or_default();
        let tickets = tickets.into_iter().map(|ticket| (ticket.attempt.owner, ticket)).collect();
        Ok(line.state(name, &tickets, now, wall_time()))
    }
}
