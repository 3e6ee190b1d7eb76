//! Coming and going: the transaction by which an attempt gets its keys and learns who is before it, and the one that takes
//! them away.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::{Attempt, ErrorKind, Grant, LostReason, Mode, Result, request_timeout};

use crate::client_state::State;
use crate::config::Layout;
use crate::error::Failure;
use crate::flight::{Again, Flight};
use crate::keys::is_own;
use crate::leases::Leased;
use crate::proto::{ResponseOp, TxnRequest, TxnResponse};
use crate::question::most_parts;
use crate::request::{all, found, inner, nested};
use crate::standing::Before;
use crate::store::{MOST_PARTS, TOGETHER, batches};
use crate::successor::Successor;

/// How many locks are remembered at which another attempt was seen.
const MOST_CROWDED: usize = 4096;
/// How often an attempt asks again because it could not come as it asked.
const AGAIN: usize = 3;

/// An attempt that comes, or a grant that goes.
pub(crate) enum Step {
    Come { attempt: Arc<Attempt>, on_busy: OnBusy, leased: Leased },
    Go(Grant),
}

/// One that is on its way.
struct Sent<'a> {
    step: &'a Step,
    /// Which waiter of this process comes after one that goes.
    successor: Option<Successor<'a>>,
    /// Whether one that comes asks the whole question.
    in_full: bool,
}

/// What a transaction made of a step.
pub(crate) enum Came {
    Answer(Result<Reply>),
    /// It had come before: look where it is.
    Before,
    /// Its lease was gone, and so nothing was done: another one will do.
    WithoutLease,
    /// It has not come as it asked, because another attempt is there: the whole question has to be asked.
    NotAlone,
}

impl State {
    /// Returns whether another attempt was seen at one of the locks when they were last looked at.
    fn is_crowded(&self, attempt: &Attempt) -> bool {
        !self.crowded.is_empty() && attempt.wants.iter().any(|want| self.crowded.contains(&want.name))
    }

    /// Records whether other attempts were seen.
    fn saw(&mut self, attempt: &Attempt, others: bool) {
        if self.crowded.len() > MOST_CROWDED {
            self.crowded.clear();
        }
        for want in &attempt.wants {
            if others {
                self.crowded.insert(want.name.clone());
            } else {
                self.crowded.remove(&want.name);
            }
        }
    }
}

impl<'a> Flight<'a> {
    /// Sends acquires and releases in as few transactions as possible, and answers in order. An attempt that finds that it is
    /// not alone asks again, in full.
    pub(crate) async fn send_all(self, steps: &[Step]) -> Vec<Came> {
        let mut answers = self.send(steps.iter(), false).await;
        for _ in 0..AGAIN {
            let is_open = |at: &usize| matches!(answers[*at], Came::NotAlone);
            let again: Vec<usize> = (0..answers.len()).filter(is_open).collect();
            if again.is_empty() {
                break;
            }
            let sent = self.send(again.iter().map(|at| &steps[*at]), true).await;
            again.into_iter().zip(sent).for_each(|(at, answer)| answers[at] = answer);
        }
        answers
    }

    async fn send<'b>(self, steps: impl Iterator<Item = &'b Step>, in_full: bool) -> Vec<Came>
    where
        'a: 'b,
    {
        let sent: Vec<Sent<'b>> = steps.map(|step| self.prepare(step, in_full)).collect();
        let batches = batches(&sent, TOGETHER, |sent| sent.step.weight());
        let answers = self.client.store.ask_all(batches, |batch| self.ask(batch), responses).await;
        sent.into_iter().zip(answers).map(|(sent, answer)| self.take(sent, answer)).collect()
    }

    /// Records an attempt before it is sent: its keys may be there although no answer comes. A grant that goes is watched no
    /// more: that its keys are gone is no news.
    fn prepare<'b>(self, step: &'b Step, in_full: bool) -> Sent<'b>
    where
        'a: 'b,
    {
        let mut state = self.client.state();
        match step {
            Step::Come { attempt, leased: (lease, _), .. } => {
                state.watches.asks(attempt);
                state.enters(attempt, lease.id, self.asked);
                state.sends(attempt.owner, lease.id);
                Sent { step, successor: None, in_full: in_full || state.is_crowded(attempt) }
            }
            Step::Go(grant) => {
                state.watches.end(&self.client.store.link, grant.attempt.owner);
                Sent { step, successor: Successor::of(self.client, &mut state, grant), in_full }
            }
        }
    }

    fn ask(self, batch: &[Sent<'_>]) -> (TxnRequest, Duration) {
        let shortest = batch.iter().map(|sent| sent.step.ttl()).min().unwrap_or_default();
        let request = match batch {
            [only] => self.transaction(only),
            several => all(several.iter().map(|sent| nested(self.transaction(sent))).collect()),
        };
        (request, request_timeout(shortest))
    }

    fn transaction(self, sent: &Sent<'_>) -> TxnRequest {
        let (store, state) = (&self.client.store, self.client.state());
        match sent.step {
            Step::Come { attempt, on_busy, leased: (lease, _) } => {
                let called = state.seats.called(attempt.owner);
                if sent.in_full {
                    store.coming_among_others(attempt, called, *on_busy, lease.id)
                } else {
                    store.coming_alone(attempt, called, lease.id)
                }
            }
            Step::Go(grant) => {
                store.going(grant, state.seats.called(grant.attempt.owner), sent.successor.as_ref())
            }
        }
    }

    fn take(self, sent: Sent<'_>, answer: Result<TxnResponse, Failure>) -> Came {
        let Sent { step, successor, in_full } = sent;
        match (step, answer) {
            (Step::Go(grant), Ok(answer)) => {
                if let Some(successor) = successor {
                    successor.on_response(&answer);
                }
                Came::Answer(Ok(self.went(grant, answer)))
            }
            (Step::Go(_), Err(failure)) => Came::Answer(Err(self.client.store.failed(failure))),
            (Step::Come { attempt, on_busy, leased }, answer) => match self.arrived(attempt, *leased, answer)
            {
                Ok(answer) => self.came(attempt, *on_busy, in_full, &answer),
                Err(Failure::NoLease) => Came::WithoutLease,
                Err(Failure::Failed(error)) => Came::Answer(Err(error)),
            },
        }
    }

    /// Records the answer to a request that creates keys.
    pub(crate) fn arrived(
        self,
        attempt: &Attempt,
        (lease, promise): Leased,
        answer: Result<TxnResponse, Failure>,
    ) -> Result<TxnResponse, Failure> {
        let client = self.client;
        let is_known =
            !matches!(&answer, Err(Failure::Failed(error)) if error.kind() == ErrorKind::OutcomeUnknown);
        if is_known {
            client.state().is_answered(attempt.owner, lease.id);
        }
        match (&answer, promise) {
            (Ok(answer), Some(promise)) => {
                client.state().leases.confirm(promise, term(answer));
            }
            (Ok(_), None) => {}
            (Err(failure), _) => {
                self.did_not_arrive(attempt);
                if matches!(failure, Failure::NoLease) {
                    client.lose_lease(lease.id, LostReason::NotHeld);
                }
            }
        }
        answer
    }

    /// Frees the place of an attempt that has sent nothing which may still arrive.
    pub(crate) fn did_not_arrive(self, attempt: &Attempt) {
        let is_open = |state: &State| {
            state.places.get(attempt.owner).is_some_and(|place| !place.entry.unanswered.is_empty())
        };
        if !is_open(&self.client.state()) {
            self.client.forget(attempt.owner);
        }
    }

    fn went(self, grant: &Grant, answer: TxnResponse) -> Reply {
        grant.held().iter().for_each(|want| self.client.saw_release(&want.name));
        self.client.forget_grant(grant);
        let held = match grant.held().len() {
            1 => answer.succeeded,
            _ => answer.responses.into_iter().filter_map(inner).any(|part| part.succeeded),
        };
        if held { Reply::Released } else { Reply::NotHeld }
    }

    fn came(self, attempt: &Arc<Attempt>, on_busy: OnBusy, in_full: bool, answer: &TxnResponse) -> Came {
        let (client, revision) = (self.client, answer.header.map_or(0, |header| header.revision));
        if !in_full && !answer.succeeded {
            client.state().saw(attempt, true);
            return Came::NotAlone;
        }
        if !answer.succeeded {
            return self.did_not_come(attempt, on_busy, &answer.responses, revision);
        }
        attempt.wants.iter().for_each(|want| client.took(&want.name));
        let store = &client.store;
        let mut looks = answer.responses.iter().skip(attempt.wants.len());
        let mut is_alone = true;
        let lines = attempt.wants.iter().map(|want| {
            let is_told = !store.is_try(on_busy) || store.keys.in_the_way(want).is_none();
            let line = if in_full && is_told { looks.next().map_or(&[][..], found) } else { &[] };
            // Those who share it are not in the way of each other, and are there all the same.
            is_alone &= line.len() <= 1 && want.mode != Mode::Shared;
            store.before(want, line, revision)
        });
        let lines: Vec<Before> = lines.collect();
        if in_full && is_alone {
            client.state().saw(attempt, false);
        }
        let stands = client.stands(attempt, &lines, revision, revision, self.asked);
        Came::Answer(stands.ok_or_else(|| self.client.store.undone(attempt)))
    }

    fn did_not_come(self, attempt: &Arc<Attempt>, on_busy: OnBusy, looks: &[ResponseOp], seen: i64) -> Came {
        let (client, owner) = (self.client, attempt.owner);
        let (wants, layout) = (&attempt.wants, client.store.keys.layout);
        let is_defeated = looks.first().is_some_and(|look| !found(look).is_empty());
        let mut seats = looks.iter().skip(1).take(wants.len()).flat_map(found).peekable();
        let is_seated = seats.peek().is_some() && layout != Layout::Single;
        if let (Layout::Single, Some(key)) = (layout, seats.peek()) {
            client.saw_holder(&wants[0].name, &key.value);
        }
        if !is_defeated && seats.any(|key| is_own(key, owner)) {
            return Came::Before;
        }
        // The seat is occupied by an attempt of this client whose end is not known there yet, or by something unknown.
        if !is_defeated && is_seated && client.state().take_another_seat(owner) {
            return Came::NotAlone;
        }
        client.forget(owner);
        if !is_defeated && is_seated {
            return Came::Answer(Err(self.client.store.undone(attempt)));
        }
        let others = looks.iter().skip(1 + wants.len()).flat_map(found);
        let modes: Vec<_> = others.filter_map(|key| client.store.keys.read(&key.key)).collect();
        for want in wants.iter().filter(|_| !is_defeated) {
            let modes = modes.iter().filter(|seat| seat.name == want.name).map(|seat| seat.mode);
            if let Err(conflict) = want.agree(modes) {
                return Came::Answer(Err(conflict));
            }
        }
        Came::Answer(Ok(match on_busy {
            OnBusy::Return => Reply::Busy,
            // Its next check finds no ticket, and it asks again as another owner.
            OnBusy::Wait if is_defeated => Reply::Waiting { check_after: Duration::ZERO },
            OnBusy::Wait => client.wait_for_the_key(attempt, seen, self.asked),
        }))
    }

    /// Returns the answer to a step. An attempt that had come before is looked for, and one whose lease was gone gets another.
    pub(crate) async fn after(self, step: &Step, came: Came, again: Again) -> Result<Reply> {
        let attempt = match (step, &came) {
            (Step::Come { attempt, .. }, _) => attempt,
            (Step::Go(_), _) => {
                return if let Came::Answer(reply) = came { reply } else { Ok(Reply::NotHeld) };
            }
        };
        match came {
            Came::Answer(reply) => self.settled(attempt, reply?).await,
            Came::Before => {
                let reply = self.check(std::slice::from_ref(attempt)).await.pop();
                // Its keys may be gone again, or not whole.
                reply.and_then(Result::transpose).unwrap_or_else(|| Err(self.client.store.undone(attempt)))
            }
            Came::WithoutLease => self.without_lease(step, again).await,
            Came::NotAlone => Err(self.client.store.undone(attempt)),
        }
    }

    /// Lets an attempt come again whose lease was gone.
    pub(crate) async fn without_lease(self, step: &Step, again: Again) -> Result<Reply> {
        match step {
            Step::Come { attempt, on_busy, .. } if again == Again::Once => {
                self.come_again(attempt, *on_busy).await
            }
            _ => Err(self.client.store.failed(Failure::NoLease)),
        }
    }
}

impl Step {
    fn ttl(&self) -> Duration {
        match self {
            Self::Come { attempt, .. } => attempt.ttl,
            Self::Go(grant) => grant.award.ttl,
        }
    }

    /// Returns how much of a transaction it takes up. A step with many names has one of its own, which may have more parts than
    /// one inside another.
    fn weight(&self) -> usize {
        let parts = match self {
            Self::Come { attempt, .. } => most_parts(attempt),
            Self::Go(grant) => grant.held().len(),
        };
        if parts > MOST_PARTS - TOGETHER { TOGETHER } else { 1 }
    }
}

/// Returns the answer to each of those that were sent in one transaction.
fn responses(batch: &[Sent<'_>], answer: TxnResponse) -> Vec<TxnResponse> {
    if batch.len() == 1 {
        return vec![answer];
    }
    let header = answer.header;
    let part = |part| TxnResponse { header, ..inner(part).unwrap_or_default() };
    answer.responses.into_iter().map(part).collect()
}

pub(crate) fn term(answer: &TxnResponse) -> u64 {
    answer.header.map_or(0, |header| header.raft_term)
}

/// Returns the revision that created the keys of a grant.
pub(crate) fn revision_of(grant: &Grant) -> i64 {
    i64::try_from(grant.award.token.get()).unwrap_or(0)
}
