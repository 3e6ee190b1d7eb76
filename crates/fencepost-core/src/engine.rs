//! The client's one thread. It carries: what callers want, what the storage answers and pushes, and the time go into the
//! machine; what the machine wants sent goes into flights, and what it has to tell goes to callers and guards. Nothing else
//! in the client talks to the storage.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Fuse, FuturesUnordered, StreamExt};
use tokio::sync::oneshot;

use crate::alarms::Alarms;
use crate::answer::Answer;
use crate::backend::{Backend, Reply, Wakeup};
use crate::clock::{Clock, Moment, Timer};
use crate::error::{Error, ErrorKind};
use crate::flights::{Flights, Landed};
use crate::grant::LostReason;
use crate::guard::{Guard, Hold};
use crate::handle::{Caller, Command, Mailbox};
use crate::layers::{Layers, Origin, Renewal};
use crate::machine::{Asked, Input, Machine, Output, RenewalOutcome, Request, Verdict};
use crate::options::Options;
use crate::relay::Relay;
use crate::token::Owner;

/// How long a storage may take to let go of its connections when the client ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long the thread of a low-latency client stays awake for the next news.
const VIGIL: Duration = Duration::from_micros(200);

/// With more operations travelling together there is enough to do; to stay awake only takes the callers' time.
const VIGIL_WAVE: usize = 16;

/// What an operation's answer belongs to.
enum Tag {
    Machine(Request),
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
    machine: Machine<Caller, Answer<()>>,
    /// What guards are told.
    held: HashMap<Owner, Arc<Hold>>,
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
            machine: Machine::default(),
            held: HashMap::new(),
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
                    wakeup = next_wakeup(&mut wakeups) => News::Pushed(wakeup),
                    Some(()) = self.questions.next() => News::Other,
                    () = mailbox.news(&clock, awake_until) => News::Other,
                }
            };
            tokio::select! {
                // The timer last: a test that moves its clock knows by it that there is nothing left to do.
                biased;
                news = news => match news {
                    News::Landed(landed) => self.land(landed),
                    News::Pushed(wakeup) => self.feed(Input::Pushed(wakeup)),
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
        self.machine.is_idle() && self.flights.is_empty() && self.questions.is_empty()
    }

    fn next_moment(&mut self) -> Moment {
        self.machine.next().min(self.flights.next()).min(self.alarms.next()).min(self.relay.next())
    }

    fn awake_until(&self) -> Moment {
        let vigil = self.low_latency && self.flights.last_wave() <= VIGIL_WAVE;
        if vigil { self.clock.now() + VIGIL } else { Moment::START }
    }

    fn take_letters(&mut self) {
        let (commands, orphaned) = self.mailbox.take();
        for command in commands {
            self.obey(command);
        }
        if orphaned && self.closing.is_none() {
            self.begin_closing();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Machine(input) => {
                if let Input::Release { owner, .. } = &input {
                    self.held.remove(owner);
                }
                self.feed(input);
            }
            Command::Close(done) => {
                self.begin_closing();
                self.closing.get_or_insert_default().push(done);
            }
            // Its caller is told that the client is closed when the answer is dropped.
            _ if self.closing.is_some() => {}
            Command::Call { op, answer } => self.flights.push(op, Tag::Call(answer)),
            Command::Question(question) => self.questions.push(question(self.backend.clone())),
            Command::Alarm { at, ring } => {
                self.questions.push(Box::pin(self.alarms.clone().ring_at(at, ring)));
            }
        }
    }

    /// From here on nothing new is taken; what is held is given back.
    fn begin_closing(&mut self) {
        self.closing.get_or_insert_default();
        self.questions.clear();
        self.feed(Input::Close);
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        self.feed(Input::Tick);
        self.alarms.ring(now);
        self.relay.tend(now);
        for landed in self.flights.tend(now) {
            self.land(landed);
        }
    }

    fn land(&mut self, landed: Landed<Tag>) {
        let sent = landed.sent;
        for (tag, reply) in landed.replies {
            match tag {
                Tag::Machine(request) => self.feed(Input::Answered { request, sent, reply }),
                Tag::Call(answer) => self.relay.tell(answer, reply),
            }
        }
    }

    fn depart(&mut self) {
        let Self { flights, machine, clock, .. } = self;
        let now = clock.now();
        flights.depart(now, |tag| match tag {
            Tag::Machine(request) if request.asked == Asked::Acquire => {
                machine.on(Input::Sent(*request), now);
            }
            _ => {}
        });
    }

    fn feed(&mut self, input: Input<Caller, Answer<()>>) {
        let now = self.clock.now();
        for output in self.machine.on(input, now) {
            match output {
                Output::Send(request, op) => self.flights.push(op, Tag::Machine(request)),
                Output::Verdict(caller, verdict) => self.conclude(caller, verdict),
                Output::Renewal(owner, outcome) => self.tell_of_renewal(owner, &outcome, now),
                Output::Released(told, outcome) => self.relay.tell(told, outcome),
                Output::Lost(owner, reason) => {
                    if let Some(hold) = self.held.get(&owner) {
                        hold.lose(reason);
                    }
                }
            }
        }
    }

    fn conclude(&mut self, caller: Caller, verdict: Verdict) {
        let answer = match verdict {
            Verdict::Granted { grant, valid_until, hold_until } => {
                let owner = grant.attempt.owner;
                let holding = self.layers.holding(&grant, caller.origin);
                let hold = Arc::new(Hold::new(grant, valid_until, hold_until, holding));
                let Some(handle) = caller.handle.upgrade() else {
                    // The caller has gone, and so has every handle.
                    hold.lose(LostReason::Released);
                    return self.feed(Input::Release { owner, lost: None, told: None });
                };
                self.held.insert(owner, hold.clone());
                Ok(Some(Guard::new(hold, handle)))
            }
            Verdict::Busy => Ok(None),
            Verdict::WaitTimeout => {
                Err(Error::new(ErrorKind::WaitTimeout, "the wait was over before the lock was free"))
            }
            Verdict::Failed(error) => Err(error),
        };
        // If the caller has gone, the guard is dropped here and so released.
        self.relay.tell(caller.answer, answer);
    }

    fn tell_of_renewal(&mut self, owner: Owner, outcome: &RenewalOutcome, now: Moment) {
        let Some(hold) = self.held.get(&owner) else { return };
        match outcome {
            RenewalOutcome::Done(valid_until) if !hold.extend(*valid_until, now) => {
                self.feed(Input::Forfeit(owner));
            }
            RenewalOutcome::Done(_) => {}
            RenewalOutcome::NotHeld => hold.holding.renewal(Renewal::NotHeld),
            RenewalOutcome::Failed(error) => hold.holding.renewal(Renewal::Failed(error)),
            RenewalOutcome::Unanswered => hold.holding.renewal(Renewal::Unanswered),
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

/// Returns the next push; a stream that has ended pushes no more.
async fn next_wakeup(wakeups: &mut Fuse<BoxStream<'static, Wakeup>>) -> Wakeup {
    match wakeups.next().await {
        Some(wakeup) => wakeup,
        None => std::future::pending().await,
    }
}
