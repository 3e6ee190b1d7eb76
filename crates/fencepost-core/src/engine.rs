//! The client's one thread: it takes what callers want, gathers it into flights, and drives the keeper, the waiting
//! line and the releases with what comes back. Nothing else in the client talks to the storage.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::{BoxStream, FuturesUnordered, StreamExt};
use tokio::sync::{Notify, oneshot};

use crate::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Queue, Reply, Wakeup};
use crate::clock::{Clock, Moment, Timer, valid_until};
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Attempt, Award, Grant, LostReason};
use crate::guard::{Guard, Hold};
use crate::keeper::{self, Keeper, Kept};
use crate::name::LockName;
use crate::releasing::{Releasing, Told};
use crate::token::Owner;
use crate::waiting::{self, Asked, AttemptId, GrantedBy, Verdict, Waiting};

/// How long the last handle of a client waits for queued releases when it is dropped.
const FAREWELL: Duration = Duration::from_millis(250);
/// How long an operation without a lease of its own may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What callers ask of the engine.
pub(crate) enum Command {
    Acquire { id: AttemptId, attempt: Arc<Attempt>, queue: Queue, until: Moment, caller: Caller },
    Abandon(AttemptId),
    Release { owner: Owner, told: Option<Answer> },
    Call { op: Op, answer: oneshot::Sender<Result<Reply>> },
    Inspect { name: LockName, answer: oneshot::Sender<Result<LockState>> },
    List { prefix: String, page: Page, answer: oneshot::Sender<Result<ListPage>> },
    Close(oneshot::Sender<()>),
}

/// Who waits for a lock.
pub(crate) struct Caller {
    pub(crate) answer: oneshot::Sender<Result<Option<Guard>>>,
    pub(crate) handle: Arc<Handle>,
    pub(crate) max_hold: Option<Duration>,
}

/// Who waits for a release.
pub(crate) struct Answer(pub(crate) oneshot::Sender<Result<()>>);

impl Told for Answer {
    fn tell(self, outcome: Result<()>) {
        // A caller that has gone does not want to know.
        let _ = self.0.send(outcome);
    }
}

/// The callers' end of the engine. When the last one goes, the engine finishes what is queued and ends.
pub(crate) struct Handle {
    mailbox: Arc<Mailbox>,
    next_id: AtomicU64,
    thread: ThreadId,
    pub(crate) info: BackendInfo,
    pub(crate) clock: Clock,
    pub(crate) label: Arc<str>,
}

/// What lies between the callers' threads and the engine's.
struct Mailbox {
    letters: Mutex<Letters>,
    arrived: Notify,
    /// Signalled when the engine has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Letters {
    commands: Vec<Command>,
    /// No handle is left.
    orphaned: bool,
    /// Nothing is taken any more.
    closed: bool,
    ended: bool,
}

impl Mailbox {
    fn orphan(&self) {
        self.letters().orphaned = true;
        self.arrived.notify_one();
    }

    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the client's thread gets its backend.
pub(crate) type Connector = BoxFuture<'static, Result<Arc<dyn Backend>>>;

impl Handle {
    /// Starts the engine of a backend that is there already.
    pub(crate) fn start(backend: Arc<dyn Backend>, clock: Clock, label: Arc<str>) -> Result<Arc<Self>> {
        let info = backend.info();
        let started = Started::spawn(Box::pin(std::future::ready(Ok(backend))), clock.clone())?;
        Ok(started.handle(info, clock, label))
    }

    /// Starts the engine and lets it make its backend on its own thread.
    pub(crate) async fn connect(connector: Connector, clock: Clock, label: Arc<str>) -> Result<Arc<Self>> {
        let mut started = Started::spawn(connector, clock.clone())?;
        let mut unwanted = Unwanted(Some(started.mailbox.clone()));
        let info = (&mut started.info).await.unwrap_or_else(|_| Err(closed()))?;
        unwanted.0 = None;
        Ok(started.handle(info, clock, label))
    }

    pub(crate) fn next_id(&self) -> AttemptId {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Hands a command to the engine.
    pub(crate) fn submit(&self, command: Command) -> Result<()> {
        let mut letters = self.mailbox.letters();
        if letters.closed {
            return Err(closed());
        }
        letters.commands.push(command);
        let first = letters.commands.len() == 1;
        drop(letters);
        if first {
            self.mailbox.arrived.notify_one();
        }
        Ok(())
    }
}

/// Ends an engine whose caller has gone before it had connected.
struct Unwanted(Option<Arc<Mailbox>>);

impl Drop for Unwanted {
    fn drop(&mut self) {
        if let Some(mailbox) = self.0.take() {
            mailbox.orphan();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.mailbox.orphan();
        if std::thread::current().id() != self.thread {
            let letters = self.mailbox.letters();
            let wait = self.mailbox.ended.wait_timeout_while(letters, FAREWELL, |letters| !letters.ended);
            drop(wait);
        }
    }
}

/// The error of everything that is asked of a closed client.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed")
}

/// An engine whose thread runs.
struct Started {
    mailbox: Arc<Mailbox>,
    thread: ThreadId,
    info: oneshot::Receiver<Result<BackendInfo>>,
}

impl Started {
    fn spawn(connector: Connector, clock: Clock) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Storage, "could not start the client's thread").with_source(error)
        };
        let mailbox =
            Arc::new(Mailbox { letters: Mutex::default(), arrived: Notify::new(), ended: Condvar::new() });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let timer = {
            let _inside = runtime.enter();
            clock.timer().map_err(failed)?
        };
        let (tell, info) = oneshot::channel();
        let end = AnnounceEnd(mailbox.clone());
        let life = async move {
            match connector.await {
                Ok(backend) => {
                    let info = backend.info();
                    // Nobody waits for it if the backend was there before.
                    let _ = tell.send(Ok(info.clone()));
                    Engine::new(backend, clock, end.0.clone(), info).run(timer).await;
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            }
            drop(end);
        };
        let thread = std::thread::Builder::new().name("fencepost-io".into());
        let thread = thread.spawn(move || runtime.block_on(life)).map_err(failed)?;
        Ok(Self { mailbox, thread: thread.thread().id(), info })
    }

    fn handle(self, info: BackendInfo, clock: Clock, label: Arc<str>) -> Arc<Handle> {
        let Self { mailbox, thread, .. } = self;
        Arc::new(Handle { mailbox, next_id: AtomicU64::new(0), thread, info, clock, label })
    }
}

struct AnnounceEnd(Arc<Mailbox>);

impl Drop for AnnounceEnd {
    fn drop(&mut self) {
        let mut letters = self.0.letters();
        letters.closed = true;
        letters.ended = true;
        let left = std::mem::take(&mut letters.commands);
        drop(letters);
        self.0.ended.notify_all();
        drop(left);
    }
}

/// Whom an operation's answer belongs to.
enum Tag {
    Attempt(AttemptId, Owner, Asked),
    Renew(Owner),
    Release(Owner),
    Call(oneshot::Sender<Result<Reply>>),
}

struct Flight {
    tags: Vec<Tag>,
    sent: Moment,
    /// After this it no longer keeps others from leaving.
    overdue: Moment,
    /// After this its answer is of no use.
    give_up: Moment,
    abort: AbortHandle,
}

type Landed = (u64, Option<Vec<Result<Reply>>>);

struct Engine {
    backend: Arc<dyn Backend>,
    info: BackendInfo,
    clock: Clock,
    mailbox: Arc<Mailbox>,
    keeper: Keeper,
    waiting: Waiting<Caller>,
    releasing: Releasing<Answer>,
    held: HashMap<Owner, Arc<Hold>>,
    outbox: VecDeque<(Op, Tag)>,
    flights: HashMap<u64, Flight>,
    next_flight: u64,
    in_the_air: FuturesUnordered<BoxFuture<'static, Landed>>,
    questions: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Set when the client is closing: who wants to know when it is done.
    closing: Option<Vec<oneshot::Sender<()>>>,
}

impl Engine {
    fn new(backend: Arc<dyn Backend>, clock: Clock, mailbox: Arc<Mailbox>, info: BackendInfo) -> Self {
        Self {
            backend,
            info,
            clock,
            mailbox,
            keeper: Keeper::default(),
            waiting: Waiting::default(),
            releasing: Releasing::default(),
            held: HashMap::new(),
            outbox: VecDeque::new(),
            flights: HashMap::new(),
            next_flight: 0,
            in_the_air: FuturesUnordered::new(),
            questions: FuturesUnordered::new(),
            closing: None,
        }
    }

    async fn run(mut self, mut timer: Timer) {
        let mut wakeups = self.backend.wakeups();
        let mailbox = self.mailbox.clone();
        loop {
            self.take_letters();
            self.tick();
            self.depart();
            if self.closing.is_some() && self.is_idle() {
                break;
            }
            timer.arm(self.next_moment());
            tokio::select! {
                biased;
                () = mailbox.arrived.notified() => {}
                Some(landed) = self.in_the_air.next() => self.land(landed),
                wakeup = next_wakeup(&mut wakeups) => self.woken(wakeup),
                () = timer.fired() => {}
                Some(()) = self.questions.next() => {}
            }
        }
        self.end().await;
    }

    async fn end(&mut self) {
        self.mailbox.letters().closed = true;
        self.take_letters();
        self.backend.close().await;
        for done in self.closing.take().into_iter().flatten() {
            let _ = done.send(());
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.releasing.is_empty()
            && self.outbox.is_empty()
            && self.in_the_air.is_empty()
            && self.questions.is_empty()
    }

    fn next_moment(&self) -> Moment {
        let flights = self.flights.values().map(|flight| {
            if flight.overdue == Moment::NEVER { flight.give_up } else { flight.overdue.min(flight.give_up) }
        });
        flights.chain([self.keeper.next(), self.waiting.next(), self.releasing.next()]).min().unwrap_or(Moment::NEVER)
    }

    fn take_letters(&mut self) {
        let (commands, orphaned) = {
            let mut letters = self.mailbox.letters();
            (std::mem::take(&mut letters.commands), letters.orphaned)
        };
        let now = self.clock.now();
        for command in commands {
            self.obey(command, now);
        }
        if orphaned && self.closing.is_none() {
            self.begin_closing(now);
        }
    }

    fn obey(&mut self, command: Command, now: Moment) {
        match command {
            Command::Acquire { caller, .. } if self.closing.is_some() => {
                let _ = caller.answer.send(Err(closed()));
            }
            Command::Acquire { id, attempt, queue, until, caller } => {
                let ask = self.waiting.start(id, attempt, queue, until, caller, now);
                self.act(vec![ask], now);
            }
            Command::Abandon(id) => {
                let actions = self.waiting.abandon(id, now);
                self.act(actions, now);
            }
            Command::Release { owner, told } => self.release(owner, told, now),
            Command::Call { op, answer } => self.outbox.push_back((op, Tag::Call(answer))),
            Command::Inspect { name, answer } => {
                let backend = self.backend.clone();
                self.questions.push(Box::pin(async move {
                    let _ = answer.send(backend.inspect(&name).await);
                }));
            }
            Command::List { prefix, page, answer } => {
                let backend = self.backend.clone();
                self.questions.push(Box::pin(async move {
                    let _ = answer.send(backend.list(&prefix, page).await);
                }));
            }
            Command::Close(done) => {
                self.begin_closing(now);
                self.closing.get_or_insert_default().push(done);
            }
        }
    }

    /// From here on nothing new is taken; what is held is given back.
    fn begin_closing(&mut self, now: Moment) {
        self.closing.get_or_insert_default();
        for id in self.waiting.awaited() {
            let actions = self.waiting.refuse(id, Verdict::Failed(closed()), now);
            self.act(actions, now);
        }
        for owner in self.keeper.grants() {
            self.lose(owner, LostReason::Closed);
            self.release(owner, None, now);
        }
    }

    fn release(&mut self, owner: Owner, told: Option<Answer>, now: Moment) {
        // The keeper stops first: a renewal after the release would revive nothing, but it could be taken for a loss.
        self.keeper.forget(owner);
        let Some(hold) = self.held.remove(&owner) else {
            if let Some(told) = told {
                told.tell(Err(closed()));
            }
            return;
        };
        let lost = hold.lose(LostReason::Released);
        if lost == LostReason::Released {
            return self.give_back(hold.grant.clone(), told, now);
        }
        if let Some(told) = told {
            told.tell(Err(Error::lost(&hold.grant.attempt.describe(), lost)));
        }
        // Unless the storage has said that there is nothing to give back.
        if !matches!(lost, LostReason::NotHeld | LostReason::Broken) {
            self.give_back(hold.grant.clone(), None, now);
        }
    }

    fn give_back(&mut self, grant: Grant, told: Option<Answer>, now: Moment) {
        self.outbox.push_back((Op::Release(grant.clone()), Tag::Release(grant.attempt.owner)));
        self.releasing.start(grant, told, now);
    }

    fn lose(&mut self, owner: Owner, reason: LostReason) {
        self.keeper.forget(owner);
        if let Some(hold) = self.held.get(&owner) {
            hold.lose(reason);
        }
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        for action in self.keeper.tick(now) {
            self.keep(action, now);
        }
        let actions = self.waiting.tick(now);
        self.act(actions, now);
        for owner in self.releasing.tick(now) {
            if let Some(grant) = self.releasing.grant(owner) {
                self.outbox.push_back((Op::Release(grant.clone()), Tag::Release(owner)));
            }
        }
        self.look_after_flights(now);
    }

    fn look_after_flights(&mut self, now: Moment) {
        for flight in self.flights.values_mut() {
            if flight.overdue <= now {
                flight.overdue = Moment::NEVER;
            }
            if flight.give_up <= now {
                flight.give_up = Moment::NEVER;
                flight.abort.abort();
            }
        }
    }

    fn keep(&mut self, action: keeper::Action, now: Moment) {
        match action {
            keeper::Action::Renew(owner) => {
                if let Some(hold) = self.held.get(&owner) {
                    self.outbox.push_back((Op::Renew(hold.grant.clone()), Tag::Renew(owner)));
                }
            }
            keeper::Action::Check(owner) => {
                if let Some((id, attempt)) = self.waiting.find(owner) {
                    self.outbox.push_back((Op::Check(attempt.clone()), Tag::Attempt(id, owner, Asked::Check)));
                }
            }
            keeper::Action::Lose(owner, reason) => {
                self.lose(owner, reason);
                if reason == LostReason::MaxHold
                    && let Some(hold) = self.held.remove(&owner)
                {
                    self.give_back(hold.grant.clone(), None, now);
                }
            }
        }
    }

    fn act(&mut self, actions: Vec<waiting::Action<Caller>>, now: Moment) {
        for action in actions {
            match action {
                waiting::Action::Ask(id, attempt, queue) => {
                    let tag = Tag::Attempt(id, attempt.owner, Asked::Ask);
                    self.outbox.push_back((Op::Acquire { attempt, queue }, tag));
                }
                waiting::Action::Leave(id, attempt) => {
                    let tag = Tag::Attempt(id, attempt.owner, Asked::Leave);
                    self.outbox.push_back((Op::Leave(attempt), tag));
                }
                waiting::Action::GiveBack(grant) => self.give_back(grant, None, now),
                waiting::Action::KeepTicket(attempt, sent, turn_in) => {
                    let first = Keeper::first_renewal(sent, attempt.ttl).min(now + turn_in);
                    self.keeper.keep(attempt.owner, Kept::Ticket, sent, attempt.ttl, first, Moment::NEVER);
                }
                waiting::Action::DropTicket(owner) => self.keeper.forget(owner),
                waiting::Action::Finish(caller, verdict) => self.finish(caller, verdict, now),
            }
        }
    }

    fn finish(&mut self, caller: Caller, verdict: Verdict, now: Moment) {
        let answer = match verdict {
            Verdict::Granted { grant, counted_from, by } => {
                let Award { ttl, .. } = grant.award;
                let owner = grant.attempt.owner;
                let hold_until = caller.max_hold.map_or(Moment::NEVER, |max| now + max);
                let first = match by {
                    GrantedBy::Answer => Keeper::first_renewal(counted_from, ttl),
                    GrantedBy::HandOver => now,
                };
                self.keeper.keep(owner, Kept::Grant, counted_from, ttl, first, hold_until);
                let hold = Arc::new(Hold::new(grant, valid_until(counted_from, ttl).min(hold_until)));
                self.held.insert(owner, hold.clone());
                Ok(Some(Guard::new(hold, caller.handle)))
            }
            Verdict::Busy => Ok(None),
            Verdict::WaitedOut => {
                Err(Error::new(ErrorKind::WaitedOut, "the wait was over before the lock was free"))
            }
            Verdict::Failed(error) => Err(error),
        };
        // If the caller has gone, the guard is dropped here and so released.
        let _ = caller.answer.send(answer);
    }

    fn depart(&mut self) {
        while !self.outbox.is_empty() && self.active_flights() < self.info.flights {
            let now = self.clock.now();
            let count = self.outbox.len().min(self.info.batch);
            let (ops, tags): (Vec<Op>, Vec<Tag>) = self.outbox.drain(..count).unzip();
            for tag in &tags {
                if let Tag::Attempt(id, _, Asked::Ask) = tag {
                    self.waiting.sent(*id, now);
                }
            }
            let (shortest, longest) = ops.iter().map(patience).fold((PATIENCE, Duration::ZERO), |(low, high), ttl| {
                (low.min(ttl), high.max(ttl))
            });
            let (abort, registration) = AbortHandle::new_pair();
            let number = self.next_flight;
            self.next_flight += 1;
            let flight = Flight { tags, sent: now, overdue: now + shortest / 6, give_up: now + longest, abort };
            self.flights.insert(number, flight);
            let backend = self.backend.clone();
            let journey = Abortable::new(async move { backend.execute(ops).await }, registration);
            self.in_the_air.push(Box::pin(async move { (number, journey.await.ok()) }));
        }
    }

    fn active_flights(&self) -> usize {
        self.flights.values().filter(|flight| flight.overdue != Moment::NEVER).count()
    }

    fn land(&mut self, (number, replies): Landed) {
        let Some(flight) = self.flights.remove(&number) else { return };
        let now = self.clock.now();
        let mut replies = replies.unwrap_or_default().into_iter();
        for tag in flight.tags {
            let reply = replies.next().unwrap_or_else(|| {
                Err(Error::new(ErrorKind::OutcomeUnknown, "the storage did not answer in time"))
            });
            self.deliver(tag, flight.sent, reply, now);
        }
    }

    fn deliver(&mut self, tag: Tag, sent: Moment, reply: Result<Reply>, now: Moment) {
        match tag {
            Tag::Attempt(id, owner, asked) => {
                if asked == Asked::Check {
                    self.ticket_checked(owner, sent, &reply, now);
                }
                let actions = self.waiting.replied(id, owner, asked, sent, reply, now);
                self.act(actions, now);
            }
            Tag::Renew(owner) => self.renewed(owner, sent, reply, now),
            Tag::Release(owner) => self.releasing.replied(owner, reply, now),
            Tag::Call(answer) => {
                let _ = answer.send(reply);
            }
        }
    }

    fn ticket_checked(&mut self, owner: Owner, sent: Moment, reply: &Result<Reply>, now: Moment) {
        match reply {
            Ok(Reply::Waiting { turn_in, .. }) => {
                if let Some((_, attempt)) = self.waiting.find(owner) {
                    self.keeper.renewed(owner, sent, attempt.ttl);
                    self.keeper.no_later_than(owner, now + *turn_in);
                }
            }
            Ok(_) => {}
            Err(_) => self.keeper.failed(owner, now),
        }
    }

    fn renewed(&mut self, owner: Owner, sent: Moment, reply: Result<Reply>, now: Moment) {
        match reply {
            Ok(Reply::Renewed { ttl }) => {
                let until = self.keeper.renewed(owner, sent, ttl);
                if let (Some(until), Some(hold)) = (until, self.held.get(&owner))
                    && !hold.extend(until)
                {
                    self.keeper.forget(owner);
                }
            }
            // A renewal that was overtaken by a release finds nothing, rightly.
            Ok(_) if self.keeper.holds(owner) => self.lose(owner, LostReason::NotHeld),
            Ok(_) => {}
            Err(_) => self.keeper.failed(owner, now),
        }
    }

    fn woken(&mut self, wakeup: Wakeup) {
        let now = self.clock.now();
        match wakeup {
            Wakeup::Granted { owner, award } => {
                let actions = self.waiting.handed_over(owner, award, now);
                self.act(actions, now);
            }
            Wakeup::Turn { owner } => self.keeper.no_later_than(owner, now),
            Wakeup::Gone { owner, why } => {
                if self.keeper.holds(owner) {
                    self.lose(owner, why);
                }
            }
            Wakeup::Recheck => self.keeper.hurry(now),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for hold in self.held.values() {
            hold.lose(LostReason::Closed);
        }
    }
}

fn patience(op: &Op) -> Duration {
    match op {
        Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt) => attempt.ttl,
        Op::Renew(grant) | Op::Release(grant) => grant.award.ttl,
        Op::ReadCell(_) | Op::WriteCell { .. } | Op::Break { .. } => PATIENCE,
    }
}

/// The next push; a stream that has ended pushes no more.
async fn next_wakeup(wakeups: &mut BoxStream<'static, Wakeup>) -> Wakeup {
    match wakeups.next().await {
        Some(wakeup) => wakeup,
        None => std::future::pending().await,
    }
}
