//! The client's one thread: it takes what callers want, gathers it into flights, and drives the keeper, the waiting
//! line and the releases with what comes back. Nothing else in the client talks to the storage.

mod incoming;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;

use crate::alarms::Alarms;
use crate::answer::Answer;
use crate::backend::{Backend, Op, Reply, Wakeup};
use crate::clock::{Clock, Moment, Timer, valid_until};
use crate::error::{Error, ErrorKind, Result};
use crate::flights::{Flights, Landed};
use crate::grant::{Award, Grant, LostReason};
use crate::guard::{Guard, Hold};
use crate::handle::{Caller, Command, Examined, Mailbox, closed};
use crate::keeper::{self, Keeper, Kept};
use crate::layers::{Layers, Origin, Renewal};
use crate::options::Options;
use crate::relay::Relay;
use crate::releasing::Releasing;
use crate::token::Owner;
use crate::waiting::{self, Asked, AttemptId, Verdict, Waiting};

/// How long a storage may take to let go of its connections when the client ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long the thread of a low-latency client stays awake for the next news.
const VIGIL: Duration = Duration::from_micros(200);

/// With more operations travelling together there is enough to do; to stay awake only takes the callers' time.
const VIGIL_WAVE: usize = 16;

/// Whom an operation's answer belongs to.
enum Tag {
    Attempt(AttemptId, Owner, Asked),
    Renew(Owner),
    Release(Owner),
    Call(Answer<Reply>),
}

/// What the client's thread owns.
pub(crate) struct Engine {
    backend: Arc<dyn Backend>,
    layers: Layers,
    clock: Clock,
    low_latency: bool,
    mailbox: Arc<Mailbox>,
    alarms: Arc<Alarms>,
    keeper: Keeper,
    waiting: Waiting<Caller>,
    releasing: Releasing<Answer<()>>,
    held: HashMap<Owner, Arc<Hold>>,
    /// The grants whose renewal was sent and not answered yet.
    renewing: HashSet<Owner>,
    flights: Flights<Tag>,
    relay: Relay,
    questions: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Set when the client is closing: who wants to know when it is done.
    closing: Option<Vec<oneshot::Sender<()>>>,
}

/// What the engine waits for, the timer apart.
enum News {
    Landed(Landed<Tag>),
    Pushed(Wakeup),
    /// There is something in a place that is looked at anyway.
    Other,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        layers: Layers,
        options: &Options,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        let alarms = Arc::new(Alarms::new(mailbox.clone()));
        let backend = layers.wrap(backend, alarms.clone());
        Self {
            flights: Flights::new(backend.clone(), options.deadline),
            backend,
            layers,
            clock: options.clock.clone(),
            // A clock that stands still would keep it awake for ever.
            low_latency: options.low_latency && options.clock.is_real(),
            mailbox,
            alarms,
            keeper: Keeper::default(),
            waiting: Waiting::default(),
            releasing: Releasing::default(),
            held: HashMap::new(),
            renewing: HashSet::new(),
            relay: Relay::default(),
            questions: FuturesUnordered::new(),
            closing: None,
        }
    }

    /// Tells whoever has connected what it should know about the storage, if anybody listens.
    pub(crate) fn warn(&mut self, origin: Origin, scheme: &'static str) {
        if origin.listens() {
            let backend = self.backend.clone();
            self.questions.push(Box::pin(async move { origin.warn(scheme, &backend.warnings().await) }));
        }
    }

    /// Works until the client is closed or nobody is left.
    pub(crate) async fn run(mut self, mut timer: Timer) {
        let mut wakeups = self.backend.wakeups().fuse();
        let mailbox = self.mailbox.clone();
        self.relay.learn().await;
        loop {
            self.take_letters();
            self.tick();
            self.depart();
            self.relay.wake(self.clock.now());
            if self.closing.is_some() && self.is_idle() {
                break;
            }
            timer.arm(self.next_moment());
            let (clock, awake_until) = (self.clock.clone(), self.awake_until());
            let news = async {
                // In no order: a storage that answers at once must not keep pushes and questions waiting.
                tokio::select! {
                    landed = self.flights.landed() => News::Landed(landed),
                    wakeup = incoming::next_wakeup(&mut wakeups) => News::Pushed(wakeup),
                    Some(()) = self.questions.next() => News::Other,
                    () = mailbox.news(&clock, awake_until) => News::Other,
                }
            };
            tokio::select! {
                // The timer last: a test that moves its clock knows by it that there is nothing left to do.
                biased;
                news = news => match news {
                    News::Landed(landed) => self.land(landed),
                    News::Pushed(wakeup) => self.woken(&wakeup),
                    News::Other => {}
                },
                () = timer.fired() => {}
            }
        }
        self.end().await;
    }

    async fn end(&mut self) {
        self.mailbox.close();
        self.take_letters();
        self.relay.wake(self.clock.now());
        let patience = self.clock.now() + FAREWELL;
        tokio::select! {
            () = self.backend.close() => {}
            // A storage that hangs would keep the caller of `close` for ever.
            _ = self.clock.sleep_until(patience) => {}
        }
        for done in self.closing.take().into_iter().flatten() {
            let _ = done.send(());
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.releasing.is_empty()
            && self.flights.is_empty()
            && self.questions.is_empty()
    }

    fn next_moment(&mut self) -> Moment {
        let machines = self.keeper.next().min(self.waiting.next()).min(self.releasing.next());
        machines.min(self.flights.next()).min(self.alarms.next()).min(self.relay.next())
    }

    fn awake_until(&self) -> Moment {
        let vigil = self.low_latency && self.flights.last_wave() <= VIGIL_WAVE;
        if vigil { self.clock.now() + VIGIL } else { Moment::START }
    }

    fn take_letters(&mut self) {
        let (commands, orphaned) = self.mailbox.take();
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
                self.relay.tell(caller.answer, Err(closed()));
            }
            Command::Acquire { id, attempt, queue, until, caller } => {
                let ask = self.waiting.start(id, attempt, queue, until, caller, now);
                self.act([ask], now);
            }
            Command::Abandon(id) => {
                let actions = self.waiting.abandon(id, now);
                self.act(actions, now);
            }
            Command::Release { owner, told } => self.release(owner, told, now),
            // Whoever asks is told that the client is closed when the answer is dropped.
            Command::Call { .. }
            | Command::Inspect { .. }
            | Command::List { .. }
            | Command::Examine { .. }
            | Command::Alarm { .. }
                if self.closing.is_some() => {}
            Command::Call { op, answer } => self.flights.push(op, Tag::Call(answer)),
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
            Command::Examine { what, answer } => {
                let backend = self.backend.clone();
                self.questions.push(Box::pin(async move {
                    let _ = answer.send(match what {
                        Examined::Backend => backend.examine().await,
                        Examined::Lock(name) => backend.whereabouts(&name).await,
                        Examined::Remarks(name) => backend.remarks(&name),
                    });
                }));
            }
            Command::Alarm { at, ring } => {
                self.questions.push(Box::pin(self.alarms.clone().ring_at(at, ring)));
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
        self.questions.clear();
        for id in self.waiting.awaited() {
            let actions = self.waiting.refuse(id, Verdict::Failed(closed()), now);
            self.act(actions, now);
        }
        for owner in self.keeper.grants() {
            self.lose(owner, LostReason::Closed);
            self.release(owner, None, now);
        }
    }

    fn release(&mut self, owner: Owner, told: Option<Answer<()>>, now: Moment) {
        // The keeper stops first: a renewal after the release would revive nothing, but it could be taken for a loss.
        self.keeper.forget(owner);
        self.renewing.remove(&owner);
        let Some(hold) = self.held.remove(&owner) else {
            return self.tell(told, Err(closed()));
        };
        let lost = hold.lose(LostReason::Released);
        if lost == LostReason::Released {
            return self.give_back(hold.grant.clone(), told, now);
        }
        self.tell(told, Err(Error::lost(&hold.grant.attempt.describe(), lost)));
        // Unless the storage has said that there is nothing to give back.
        if matches!(lost, LostReason::NotHeld | LostReason::Broken) {
            self.grant_is_over(&hold.grant, now);
        } else {
            self.give_back(hold.grant.clone(), None, now);
        }
    }

    fn tell(&mut self, told: Option<Answer<()>>, outcome: Result<()>) {
        if let Some(told) = told {
            self.relay.tell(told, outcome);
        }
    }

    fn give_back(&mut self, grant: Grant, told: Option<Answer<()>>, now: Moment) {
        self.flights.push(Op::Release(grant.clone()), Tag::Release(grant.attempt.owner));
        self.releasing.start(grant, told, now);
    }

    fn grant_is_over(&mut self, grant: &Grant, now: Moment) {
        let undo = self.waiting.over(grant, now);
        self.act(undo, now);
    }

    fn lose(&mut self, owner: Owner, reason: LostReason) {
        self.keeper.forget(owner);
        self.renewing.remove(&owner);
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
                self.flights.push(Op::Release(grant.clone()), Tag::Release(owner));
            }
        }
        self.alarms.ring(now);
        self.relay.tend(now);
        for landed in self.flights.tend(now) {
            self.land(landed);
        }
    }

    fn keep(&mut self, action: keeper::Action, now: Moment) {
        match action {
            keeper::Action::Renew(owner) => {
                if let Some(hold) = self.held.get(&owner) {
                    if !self.renewing.insert(owner) {
                        hold.holding.renewal(Renewal::Unanswered);
                    }
                    self.flights.push(Op::Renew(hold.grant.clone()), Tag::Renew(owner));
                }
            }
            keeper::Action::Check(owner) => {
                if let Some((id, attempt)) = self.waiting.find(owner) {
                    self.flights.push(Op::Check(attempt.clone()), Tag::Attempt(id, owner, Asked::Check));
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

    fn act(&mut self, actions: impl IntoIterator<Item = waiting::Action<Caller>>, now: Moment) {
        for action in actions {
            match action {
                waiting::Action::Ask(id, attempt, queue) => {
                    let tag = Tag::Attempt(id, attempt.owner, Asked::Ask);
                    self.flights.push(Op::Acquire { attempt, queue }, tag);
                }
                waiting::Action::Leave(id, attempt) => {
                    let tag = Tag::Attempt(id, attempt.owner, Asked::Leave);
                    self.flights.push(Op::Leave(attempt), tag);
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
            Verdict::Granted { grant, counted_from } => {
                let Award { ttl, .. } = grant.award;
                let owner = grant.attempt.owner;
                let hold_until = caller.max_hold.map_or(Moment::NEVER, |max| now + max);
                let first = Keeper::first_renewal(counted_from, ttl);
                self.keeper.keep(owner, Kept::Grant, counted_from, ttl, first, hold_until);
                let holding = self.layers.holding(&grant, caller.origin);
                let hold = Arc::new(Hold::new(grant, valid_until(counted_from, ttl), hold_until, holding));
                self.held.insert(owner, hold.clone());
                let Some(handle) = caller.handle.upgrade() else {
                    // The caller has gone, and so has everybody else.
                    return self.release(owner, None, now);
                };
                Ok(Some(Guard::new(hold, handle)))
            }
            Verdict::Busy => Ok(None),
            Verdict::WaitedOut => {
                Err(Error::new(ErrorKind::WaitedOut, "the wait was over before the lock was free"))
            }
            Verdict::Failed(error) => Err(error),
        };
        // If the caller has gone, the guard is dropped here and so released.
        self.relay.tell(caller.answer, answer);
    }

    fn depart(&mut self) {
        let Self { flights, waiting, clock, .. } = self;
        let now = clock.now();
        flights.depart(now, |tag| {
            if let Tag::Attempt(id, _, Asked::Ask) = tag {
                waiting.sent(*id, now);
            }
        });
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for hold in self.held.values() {
            hold.lose(LostReason::Closed);
        }
    }
}
