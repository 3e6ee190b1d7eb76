//! The client's I/O thread. It moves data and decides nothing: commands of callers, replies and pushes of the backend and the
//! time go into the state machine; the requests of the machine go into flights, its outcomes to callers and guards. No other part
//! of the client calls the backend.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Fuse, FuturesUnordered, StreamExt};
use tokio::sync::oneshot;

use crate::backend::{Backend, Reply, Wakeup};
use crate::batch_waker::BatchWaker;
use crate::clock::{Clock, Moment, Timer};
use crate::error::{Error, ErrorKind};
use crate::flights::{Completed, Flights};
use crate::grant::LostReason;
use crate::guard::{Guard, GuardState};
use crate::handle::{Caller, Command, Mailbox};
use crate::layers::{Layers, Origin, Renewal};
use crate::machine::{AcquireOutcome, Input, Machine, Output, RenewalOutcome, Request, RequestKind};
use crate::options::Options;
use crate::response::Responder;
use crate::timers::Timers;
use crate::token::Owner;

/// How long a backend may take to close its connections when the client ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the thread of a low-latency client spins before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(200);

/// With more operations in one batch the thread has enough to do, and spinning only takes CPU time from the callers.
const SPIN_MAX_BATCH: usize = 16;

/// The receiver of a reply.
enum Tag {
    Machine(Request),
    Call(Responder<Reply>),
}

/// The state of the client's thread.
pub(crate) struct Engine {
    backend: Arc<dyn Backend>,
    layers: Layers,
    clock: Clock,
    low_latency: bool,
    mailbox: Arc<Mailbox>,
    timers: Arc<Timers>,
    machine: Machine<Caller, Responder<()>>,
    /// The grants of guards, to update.
    guard_states: HashMap<Owner, Arc<GuardState>>,
    flights: Flights<Tag>,
    waker: BatchWaker,
    queries: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Set when the client is closing: notified when it is done.
    closing: Option<Vec<oneshot::Sender<()>>>,
}

/// What the engine waits for, besides the timer.
enum Event {
    Completed(Completed<Tag>),
    Pushed(Wakeup),
    /// A command has arrived or a query has completed; the next iteration takes the commands.
    Other,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        layers: Layers,
        options: &Options,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        let timers = Arc::new(Timers::new(mailbox.clone()));
        let backend = layers.wrap(backend, timers.clone());
        Self {
            flights: Flights::new(backend.clone(), options.call_timeout),
            backend,
            layers,
            clock: options.clock.clone(),
            // With a clock that stands still it would never stop spinning.
            low_latency: options.low_latency && options.clock.is_real(),
            mailbox,
            timers,
            machine: Machine::default(),
            guard_states: HashMap::new(),
            waker: BatchWaker::default(),
            queries: FuturesUnordered::new(),
            closing: None,
        }
    }

    /// Logs the backend's warnings for the caller that has connected, if it has a subscriber.
    pub(crate) fn warn(&mut self, origin: Origin, scheme: &'static str) {
        if origin.records_warnings() {
            let backend = self.backend.clone();
            self.queries.push(Box::pin(async move { origin.warn(scheme, &backend.warnings().await) }));
        }
    }

    /// Runs until the client is closed or no handle is left.
    pub(crate) async fn run(mut self, mut timer: Timer) {
        let mut wakeups = self.backend.wakeups().fuse();
        let mailbox = self.mailbox.clone();
        self.waker.learn_task_vtable().await;
        loop {
            self.take_commands();
            self.tick();
            self.send();
            self.waker.wake(self.clock.now());
            if self.closing.is_some() && self.is_idle() {
                break;
            }
            timer.arm(self.next_due());
            let (clock, spin_until) = (self.clock.clone(), self.spin_until());
            let event = async {
                // Unbiased: a backend that replies at once must not starve pushes and queries.
                tokio::select! {
                    completed = self.flights.next_completed() => Event::Completed(completed),
                    wakeup = next_wakeup(&mut wakeups) => Event::Pushed(wakeup),
                    Some(()) = self.queries.next() => Event::Other,
                    () = mailbox.arrival(&clock, spin_until) => Event::Other,
                }
            };
            tokio::select! {
                // The timer last: a test that moves its clock relies on it to know that the engine is idle.
                biased;
                event = event => match event {
                    Event::Completed(completed) => self.on_completed(completed),
                    Event::Pushed(wakeup) => self.input(Input::Pushed(wakeup)),
                    Event::Other => {}
                },
                () = timer.fired() => {}
            }
        }
        self.end().await;
    }

    async fn end(&mut self) {
        self.mailbox.close();
        self.take_commands();
        self.waker.wake(self.clock.now());
        let give_up = self.clock.now() + CLOSE_TIMEOUT;
        tokio::select! {
            () = self.backend.close() => {}
            // A backend that hangs would block the caller of `close` for ever.
            _ = self.clock.sleep_until(give_up) => {}
        }
        for done in self.closing.take().into_iter().flatten() {
            let _ = done.send(());
        }
    }

    fn is_idle(&self) -> bool {
        self.machine.is_idle() && self.flights.is_empty() && self.queries.is_empty()
    }

    fn next_due(&mut self) -> Moment {
        self.machine
            .next_due()
            .min(self.flights.next_due())
            .min(self.timers.next_due())
            .min(self.waker.next_due())
    }

    fn spin_until(&self) -> Moment {
        let spins = self.low_latency && self.flights.last_batch() <= SPIN_MAX_BATCH;
        if spins { self.clock.now() + SPIN_TIME } else { Moment::START }
    }

    fn take_commands(&mut self) {
        let (commands, detached) = self.mailbox.take();
        for command in commands {
            self.execute(command);
        }
        if detached && self.closing.is_none() {
            self.begin_closing();
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Machine(input) => {
                if let Input::Release { owner, .. } = &input {
                    self.guard_states.remove(owner);
                }
                self.input(input);
            }
            Command::Close(done) => {
                self.begin_closing();
                self.closing.get_or_insert_default().push(done);
            }
            // Dropping the responder tells the caller that the client is closed.
            _ if self.closing.is_some() => {}
            Command::Call { op, responder } => self.flights.push(op, Tag::Call(responder)),
            Command::Query(query) => self.queries.push(query(self.backend.clone())),
            Command::Timer { at, notify } => {
                self.queries.push(Box::pin(self.timers.clone().notify_at(at, notify)));
            }
        }
    }

    /// Rejects new commands from now on, and releases what is held.
    fn begin_closing(&mut self) {
        self.closing.get_or_insert_default();
        self.queries.clear();
        self.input(Input::Close);
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        self.input(Input::Tick);
        self.timers.fire(now);
        self.waker.wake_overdue(now);
        for completed in self.flights.give_up_overdue(now) {
            self.on_completed(completed);
        }
    }

    fn on_completed(&mut self, completed: Completed<Tag>) {
        let sent = completed.sent;
        for (tag, reply) in completed.replies {
            match tag {
                Tag::Machine(request) => self.input(Input::Replied { request, sent, reply }),
                Tag::Call(responder) => self.waker.respond(responder, reply),
            }
        }
    }

    fn send(&mut self) {
        let Self { flights, machine, clock, .. } = self;
        let now = clock.now();
        flights.send(now, |tag| match tag {
            Tag::Machine(request) if request.kind == RequestKind::Acquire => {
                machine.on(Input::Sent(*request), now);
            }
            _ => {}
        });
    }

    fn input(&mut self, input: Input<Caller, Responder<()>>) {
        let now = self.clock.now();
        for output in self.machine.on(input, now) {
            match output {
                Output::Send(request, op) => self.flights.push(op, Tag::Machine(request)),
                Output::Outcome(caller, outcome) => self.on_outcome(caller, outcome),
                Output::Renewal(owner, outcome) => self.on_renewal(owner, &outcome, now),
                Output::Released(responder, outcome) => self.waker.respond(responder, outcome),
                Output::Lost(owner, reason) => {
                    if let Some(hold) = self.guard_states.get(&owner) {
                        hold.lose(reason);
                    }
                }
            }
        }
    }

    fn on_outcome(&mut self, caller: Caller, outcome: AcquireOutcome) {
        let outcome = match outcome {
            AcquireOutcome::Granted { grant, valid_until, hold_until } => {
                let owner = grant.attempt.owner;
                let holding = self.layers.holding(&grant, caller.origin);
                let hold = Arc::new(GuardState::new(grant, valid_until, hold_until, holding));
                let Some(handle) = caller.handle.upgrade() else {
                    // The caller and every handle have been dropped.
                    hold.lose(LostReason::Released);
                    return self.input(Input::Release { owner, lost: None, responder: None });
                };
                self.guard_states.insert(owner, hold.clone());
                Ok(Some(Guard::new(hold, handle)))
            }
            AcquireOutcome::Busy => Ok(None),
            AcquireOutcome::WaitTimeout => {
                Err(Error::new(ErrorKind::WaitTimeout, "the wait ended before the lock was acquired"))
            }
            AcquireOutcome::Failed(error) => Err(error),
        };
        // If the caller has been dropped, the guard is dropped here and so released.
        self.waker.respond(caller.responder, outcome);
    }

    fn on_renewal(&mut self, owner: Owner, outcome: &RenewalOutcome, now: Moment) {
        let Some(hold) = self.guard_states.get(&owner) else { return };
        match outcome {
            RenewalOutcome::Done(valid_until) if !hold.extend(*valid_until, now) => {
                self.input(Input::Forfeit(owner));
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
        for hold in self.guard_states.values() {
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
