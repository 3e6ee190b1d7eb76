//! The machine, one situation each.

mod acquiring;
mod held;
mod leaving;
mod releasing;

use std::sync::Arc;
use std::time::Duration;

use super::{AcquireOutcome, Input, Machine, Output, RenewalOutcome, Request, RequestKind};
use crate::backend::{OnBusy, Reply, Wakeup};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Attempt, Award, LostReason, Mode, Rule, Want};
use crate::name::LockName;
use crate::token::{FencingToken, Owner};

const TTL: Duration = Duration::from_secs(12);

fn at(seconds: u64) -> Moment {
    Moment::START + Duration::from_secs(1000 + seconds)
}

fn award(token: u64) -> Award {
    Award { token: FencingToken::new(token), ttl: TTL, chosen: 0, elapsed: Duration::ZERO }
}

fn granted(token: u64) -> Reply {
    Reply::Granted(award(token))
}

fn still_waiting() -> Reply {
    Reply::Waiting { check_after: TTL }
}

fn failure(kind: ErrorKind) -> Result<Reply> {
    Err(Error::new(kind, "responder to fail"))
}

fn attempt() -> Arc<Attempt> {
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }],
        rule: Rule::All,
        ttl: TTL,
        label: "test".into(),
        meta: [].into(),
    })
}

/// A reply of the backend.
struct ReplyText(Result<Reply>);

impl From<Reply> for ReplyText {
    fn from(reply: Reply) -> Self {
        Self(Ok(reply))
    }
}

impl From<Result<Reply>> for ReplyText {
    fn from(reply: Result<Reply>) -> Self {
        Self(reply)
    }
}

/// A machine and the attempt under test. Its outputs are written as text.
struct Stage {
    machine: Machine<&'static str, &'static str>,
    attempt: Arc<Attempt>,
    /// The owner of the latest acquire.
    owner: Owner,
}

impl Stage {
    fn new() -> Self {
        let attempt = attempt();
        Self { machine: Machine::default(), owner: attempt.owner, attempt }
    }

    /// An attempt that was sent at second 0.
    fn asking(on_busy: OnBusy, until: Moment) -> Self {
        let mut stage = Self::new();
        assert_eq!(stage.ask(on_busy, until, None), "acquire");
        stage
    }

    /// One in the queue since second 0.
    fn queued() -> Self {
        let mut stage = Self::asking(OnBusy::Wait, Moment::NEVER);
        assert_eq!(stage.answer(RequestKind::Acquire, at(0), still_waiting(), at(0)), "");
        stage
    }

    /// One that holds the lock since second 0, with token 1.
    fn holding(max_hold: Option<Duration>) -> Self {
        let mut stage = Self::new();
        stage.ask(OnBusy::Return, Moment::NEVER, max_hold);
        assert_eq!(stage.answer(RequestKind::Acquire, at(0), granted(1), at(0)), "granted");
        stage
    }

    /// One whose first acquire, sent at second 0, has an unknown outcome.
    fn outcome_unknown(on_busy: OnBusy, since: Moment) -> Self {
        let mut stage = Self::asking(on_busy, Moment::NEVER);
        assert_eq!(stage.answer(RequestKind::Acquire, at(0), failure(ErrorKind::OutcomeUnknown), since), "");
        stage
    }

    fn on(&mut self, input: Input<&'static str, &'static str>, now: Moment) -> String {
        let outputs = self.machine.on(input, now);
        for output in &outputs {
            if let Output::Send(Request { owner, kind: RequestKind::Acquire }, _) = output {
                self.owner = *owner;
            }
        }
        outputs.iter().map(in_words).collect::<Vec<String>>().join(", ")
    }

    fn ask(&mut self, on_busy: OnBusy, until: Moment, max_hold: Option<Duration>) -> String {
        let attempt = self.attempt.clone();
        self.on(Input::Acquire { attempt, on_busy, until, max_hold, caller: "caller" }, at(0))
    }

    fn answer(
        &mut self,
        kind: RequestKind,
        sent: Moment,
        reply: impl Into<ReplyText>,
        now: Moment,
    ) -> String {
        let request = Request { owner: self.owner, kind };
        self.on(Input::Replied { request, sent, reply: reply.into().0 }, now)
    }

    fn abandon(&mut self, now: Moment) -> String {
        self.on(Input::Abandon(self.attempt.owner), now)
    }

    fn release(&mut self, lost: Option<LostReason>, now: Moment) -> String {
        self.on(Input::Release { owner: self.owner, lost, responder: Some("releaser") }, now)
    }

    fn tick(&mut self, now: Moment) -> String {
        self.on(Input::Tick, now)
    }

    fn push_grant(&mut self, token: u64, now: Moment) -> String {
        let attempt = self.attempt.clone();
        self.on(Input::Pushed(Wakeup::Granted { attempt, award: award(token) }), now)
    }

    fn push_turn(&mut self, now: Moment) -> String {
        self.on(Input::Pushed(Wakeup::Check { owner: self.owner }), now)
    }

    fn push_gone(&mut self, why: LostReason, now: Moment) -> String {
        self.on(Input::Pushed(Wakeup::Lost { owner: self.owner, reason: why }), now)
    }

    fn is_over(&self) -> bool {
        self.machine.is_idle() && self.machine.next_due() == Moment::NEVER
    }
}

fn in_words(output: &Output<&'static str, &'static str>) -> String {
    match output {
        Output::Send(Request { kind, .. }, _) => format!("{kind:?}").to_lowercase(),
        Output::Outcome(_, AcquireOutcome::Granted { .. }) => "granted".into(),
        Output::Outcome(_, AcquireOutcome::Busy) => "busy".into(),
        Output::Outcome(_, AcquireOutcome::WaitTimeout) => "waited out".into(),
        Output::Outcome(_, AcquireOutcome::Failed(error)) => format!("failed {:?}", error.kind()),
        Output::Renewal(_, RenewalOutcome::Done(until)) => {
            format!("renewed until {}", until.since(at(0)).as_secs_f32())
        }
        Output::Renewal(_, RenewalOutcome::NotHeld) => "renewal finds nothing".into(),
        Output::Renewal(_, RenewalOutcome::Failed(_)) => "renewal failed".into(),
        Output::Renewal(_, RenewalOutcome::Unanswered) => "renewal unanswered".into(),
        Output::Lost(_, why) => format!("lost {why:?}"),
        Output::Released(_, Ok(())) => "released".into(),
        Output::Released(_, Err(error)) => format!("release failed {:?}", error.kind()),
    }
}
