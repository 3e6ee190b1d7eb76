//! One flight is one transaction: the rows of its locks are locked, the lock table decides, the changes are saved.

use std::collections::HashSet;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply, Wakeup};
use fencepost_core::lock_table::{Context, LockTable, Needs};
use fencepost_core::record::{ClientId, LockRecord};
use fencepost_core::{Award, Error, ErrorKind, FencingToken, LockName, Result, request_timeout};

use crate::error::Failure;
use crate::lease::fetch::{Counter, Fetch, Fetched, Wanted};
use crate::lease::plain::has_holder_only;
use crate::lease::save::{Decided, Save};
use crate::lease::state::ClientState;
use crate::literal::UNMINTED;
use crate::sessions::Lent;

/// How often a transaction is repeated because of deadlocks, or a flight because it needs more.
pub(crate) const MAX_ROUNDS: usize = 20;
/// How often a flight is repeated because its connection was lost before the commit: nothing of it was applied.
const MAX_DISCONNECTS: usize = 2;
/// How long to wait for replies that no lease depends on.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The operations of a flight, or locks to sweep.
pub(crate) struct Flight<'a> {
    pub(crate) client: &'a ClientState,
    pub(crate) ops: &'a [Op],
    sweeps: &'a [LockName],
    pub(crate) timeout: Duration,
    pub(crate) wanted: Wanted,
    /// Locks whose row another transaction has locked for long.
    blocked: HashSet<LockName>,
}

/// Why a round of a flight ended without replies.
#[derive(Debug)]
pub(crate) enum Retry {
    /// It needs something else first, and has changed nothing: the connection is in a transaction.
    Again,
    /// A row is locked for too long.
    Locked,
    /// The connection was lost before anything was committed.
    Disconnected(Error),
    Failed(Error),
}

pub(crate) type Round<T> = std::result::Result<T, Retry>;
pub(crate) type Replies = Vec<Result<Reply>>;

impl<'a> Flight<'a> {
    pub(crate) fn new(client: &'a ClientState, ops: &'a [Op], sweeps: &'a [LockName]) -> Self {
        let timeout = ops.iter().filter_map(Op::ttl).min().map_or(READ_TIMEOUT, request_timeout);
        let wanted = Wanted::of(ops, sweeps, |owner| client.sent.contains(owner));
        let blocked = HashSet::new();
        Self { client, ops, sweeps, timeout, wanted, blocked }
    }

    pub(crate) async fn run(mut self) -> Replies {
        match self.try_run().await {
            Ok(replies) => replies,
            Err(error) => self.ops.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    pub(crate) async fn try_run(&mut self) -> Result<Replies> {
        let mut lent = self.client.sessions.take().await?;
        let suspects = self.client.blocked.among(&self.wanted.names);
        if !suspects.is_empty() {
            self.find_blocked(&mut lent, &suspects).await.or_else(ignore_retry)?;
        }
        let mut plain = self.plain(&lent).filter(|_| suspects.is_empty());
        let mut disconnects = 0;
        for _ in 0..MAX_ROUNDS {
            let replies = match plain.take() {
                Some(plain) => self.execute_plain(&mut lent, &plain).await,
                None => self.round(&mut lent).await,
            };
            match replies {
                Ok(replies) => {
                    self.client.sessions.put(lent);
                    return Ok(replies);
                }
                Err(Retry::Again) => self.roll_back(&mut lent).await?,
                Err(Retry::Locked) => {
                    self.roll_back(&mut lent).await?;
                    let names: Vec<LockName> = self.wanted.names.iter().cloned().collect();
                    self.find_blocked(&mut lent, &names).await.or_else(ignore_retry)?;
                }
                Err(Retry::Disconnected(error)) => {
                    disconnects += 1;
                    if disconnects > MAX_DISCONNECTS {
                        self.client.sessions.mark_failed();
                        return Err(error);
                    }
                    drop(lent);
                    self.client.sessions.forget_idle();
                    lent = self.client.sessions.take().await?;
                }
                Err(Retry::Failed(error)) => {
                    if self.roll_back(&mut lent).await.is_ok() {
                        self.client.sessions.put(lent);
                    }
                    return Err(error);
                }
            }
        }
        let text = format!(
            "{} has interrupted the transaction too often, by deadlocks or otherwise",
            self.client.location()
        );
        Err(Error::new(ErrorKind::Unreachable, text).transient())
    }

    pub(super) async fn round(&mut self, lent: &mut Lent<'_>) -> Round<Replies> {
        let Self { wanted, blocked, .. } = self;
        wanted.names.retain(|name| !blocked.contains(name));
        if self.wanted.names.is_empty() {
            return Ok(self.ops.iter().map(|op| self.blocked_reply(op)).collect());
        }
        let fetched = self.fetch(lent).await?;
        let mut table = LockTable::of_rows();
        let (replies, decided) = self.decide(&mut table, fetched)?;
        let is_joining = self.ops.iter().zip(&replies).any(|(op, reply)| joins(op, reply));
        if is_joining && !self.client.poller.is_ready() {
            // Others pass over the tickets of a client that does not poll.
            self.roll_back(lent).await.map_err(Retry::Disconnected)?;
            self.client.poller.get_ready().await;
            return Err(Retry::Again);
        }
        let own = self.save(lent, &mut table, decided).await?;
        self.note_busy(&table);
        let minted = own.first_minted;
        self.client.on_committed(own.pushes.into_iter().map(|push| minted_push(push, minted)).collect());
        Ok(replies.into_iter().map(|reply| reply.map(|reply| minted_reply(reply, minted))).collect())
    }

    async fn fetch(&self, lent: &mut Lent<'_>) -> Round<Fetched> {
        let counter = Counter::of(&mut lent.session);
        let fetch = Fetch::locking(&self.client.tables, &self.wanted, self.client.is_galera, counter);
        let sets = lent.session.run(fetch.sql.as_str(), self.timeout).await;
        let sets = sets.map_err(|failure| self.before_commit(failure))?;
        lent.session.has_raised = true;
        let decoded = Fetched::decode(&fetch, sets, &self.wanted, &mut self.client.labels());
        decoded.map_err(Retry::Failed)
    }

    pub(crate) fn before_commit(&self, failure: Failure) -> Retry {
        if failure.is_deadlock() || failure.is_interrupted() {
            return Retry::Again;
        }
        if failure.is_locked() {
            return Retry::Locked;
        }
        let is_lost = failure.is_connection_lost();
        let error = failure.into_error(self.client.location());
        if is_lost { Retry::Disconnected(error) } else { Retry::Failed(error) }
    }

    /// Returns what to do after the failure of a request in which the statement with this index is the commit.
    pub(crate) fn at_commit(&self, failure: Failure, commit: usize) -> Retry {
        if failure.is_before(commit) || failure.is_deadlock() {
            self.before_commit(failure)
        } else {
            Retry::Failed(failure.into_commit_error(self.client.location(), commit))
        }
    }

    /// Decides all operations on what was fetched.
    fn decide(&mut self, table: &mut LockTable, mut fetched: Fetched) -> Round<(Replies, Decided)> {
        if fetched.is_cut_off {
            self.wanted.by_name = true;
            return Err(Retry::Again);
        }
        let now = fetched.now;
        for (name, (record, tickets)) in std::mem::take(&mut fetched.records) {
            table.insert(name, record, tickets);
        }
        let mut decided = Decided::at(now);
        decided.set_back = std::mem::take(&mut fetched.set_back);
        let mut replies = Vec::with_capacity(self.ops.len());
        for op in self.ops {
            if let Some(reply) = fetched.reply_of_tombstone(op) {
                replies.push(Ok(reply));
                continue;
            }
            let tombstones = table.tombstone_count();
            let reply = self.ask(&mut decided.numbers, &mut fetched, |context, fetched| {
                loop {
                    match table.decide(op, context) {
                        Err(Needs::Ticket(_, owner)) => {
                            table.insert_ticket(owner, fetched.behind.remove(&owner));
                        }
                        decision => return decision,
                    }
                }
            })?;
            replies.push(reply.unwrap_or_else(|| self.blocked_reply(op)));
            if let Some(attempt) = op.attempt().filter(|_| table.tombstone_count() > tombstones) {
                decided.tombstones.push((attempt.owner, now + attempt.ttl));
            }
        }
        for name in self.sweeps {
            self.ask(&mut decided.numbers, &mut fetched, |context, _| table.sweep(name, context))?;
        }
        let is_unused = |name: &&LockName| table.record(name).is_some_and(LockRecord::is_empty);
        decided.unused = self.wanted.names.iter().filter(is_unused).cloned().collect();
        let is_plain = |name: &&LockName| table.record(name).is_some_and(has_holder_only);
        decided.plain = self.wanted.names.iter().filter(is_plain).cloned().collect();
        decided.notices = table.take_pushes();
        Ok((replies, decided))
    }

    /// Returns the answer to a question; `None` if it depends on a lock whose row is blocked.
    fn ask<T>(
        &mut self,
        numbers: &mut u64,
        fetched: &mut Fetched,
        ask: impl FnOnce(&mut Context<'_>, &mut Fetched) -> std::result::Result<T, Needs>,
    ) -> Round<Option<T>> {
        let connected = fetched.connected.clone();
        let are_all_reachable = self.client.is_galera || self.client.sessions.has_failed_lately();
        let mut context = Context {
            client: self.client.id,
            now: fetched.now,
            wall: Duration::from_nanos(fetched.now.as_nanos()),
            numbers: &mut std::iter::from_fn(|| {
                *numbers += 1;
                Some(UNMINTED + *numbers - 1)
            }),
            reachable: &|client| are_all_reachable || connected.get(&client).copied().unwrap_or(true),
        };
        match ask(&mut context, fetched) {
            Ok(answer) => Ok(Some(answer)),
            Err(Needs::Records(names)) if names.iter().any(|name| self.blocked.contains(name)) => Ok(None),
            Err(Needs::Records(names)) => {
                // What was fetched in part is needed as a whole.
                self.wanted
                    .whole
                    .extend(names.iter().filter(|name| self.wanted.names.contains(*name)).cloned());
                self.wanted.by_name |= !self.wanted.whole.is_empty();
                self.wanted.names.extend(names);
                Err(Retry::Again)
            }
            Err(Needs::Ticket(..) | Needs::Numbers) => Err(Retry::Again),
        }
    }

    /// Saves what was decided and returns the pushes to this client.
    async fn save(&self, lent: &mut Lent<'_>, table: &mut LockTable, mut decided: Decided) -> Round<Saved> {
        let mut saved = Saved { pushes: Vec::new(), first_minted: 0 };
        let own = self.client.id;
        let (pushes, notices) = decided.notices.into_iter().partition(|(client, _)| *client == own);
        decided.notices = notices;
        let pushes: Vec<(ClientId, Wakeup)> = pushes;
        saved.pushes.extend(pushes.into_iter().map(|(_, push)| push));
        let is_changed =
            !table.changed().is_empty() || !decided.tombstones.is_empty() || !decided.set_back.is_empty();
        if !is_changed && self.sweeps.is_empty() {
            self.roll_back(lent).await.map_err(Retry::Disconnected)?;
            return Ok(saved);
        }
        let save = Save::new(&self.client.tables, table, &decided);
        let last = save.requests.len() - 1;
        for (at, request) in save.requests.iter().enumerate() {
            match lent.session.run(request.sql.as_str(), self.timeout).await {
                Ok(_) => {}
                Err(failure) if at < last => return Err(self.before_commit(failure)),
                Err(failure) => return Err(self.at_commit(failure, request.count - 1)),
            }
            if at == 0 {
                saved.first_minted = lent.session.minted;
            }
        }
        Ok(saved)
    }

    async fn roll_back(&self, lent: &mut Lent<'_>) -> Result<()> {
        let done = lent.session.run("ROLLBACK", self.timeout).await;
        done.map(drop).map_err(|failure| failure.into_error(self.client.location()))
    }

    /// Finds out which of these locks have a row that another transaction has locked.
    async fn find_blocked(&mut self, lent: &mut Lent<'_>, names: &[LockName]) -> Round<()> {
        for name in names {
            let sql = self.client.tables.probe(name);
            match lent.session.run(&sql, self.timeout).await {
                Ok(_) => {
                    self.client.blocked.remove(name);
                }
                Err(failure) if failure.is_locked() => {
                    self.client.blocked.insert(name.clone());
                    self.blocked.insert(name.clone());
                }
                Err(failure) => return Err(self.before_commit(failure)),
            }
        }
        Ok(())
    }

    /// Returns the reply to an operation on a lock whose row is locked by a transaction that goes on: for a try it is a holder.
    fn blocked_reply(&self, op: &Op) -> Result<Reply> {
        if let Op::Acquire { on_busy: OnBusy::Return, .. } = op {
            return Ok(Reply::Busy);
        }
        let location = self.client.location();
        let text = format!("{location}: a transaction of another program has locked the row of the lock");
        Err(Error::new(ErrorKind::Unreachable, text)
            .with_hint("`fencepost doctor` names the transaction")
            .transient())
    }
}

/// What was saved.
struct Saved {
    pushes: Vec<Wakeup>,
    /// The first minted number.
    first_minted: u64,
}

fn ignore_retry(retry: Retry) -> Result<()> {
    match retry {
        Retry::Again | Retry::Locked => Ok(()),
        Retry::Disconnected(error) | Retry::Failed(error) => Err(error),
    }
}

fn joins(op: &Op, reply: &Result<Reply>) -> bool {
    matches!((op, reply), (Op::Acquire { .. }, Ok(Reply::Waiting { .. })))
}

fn minted(award: Award, first: u64) -> Award {
    match award.token.get().checked_sub(UNMINTED) {
        Some(offset) => Award { token: FencingToken::new(first + offset), ..award },
        None => award,
    }
}

fn minted_reply(reply: Reply, first: u64) -> Reply {
    match reply {
        Reply::Granted(award) => Reply::Granted(minted(award, first)),
        Reply::AlreadyGranted(award) => Reply::AlreadyGranted(minted(award, first)),
        other => other,
    }
}

fn minted_push(push: Wakeup, first: u64) -> Wakeup {
    match push {
        Wakeup::Granted { attempt, award } => Wakeup::Granted { attempt, award: minted(award, first) },
        other => other,
    }
}
