//! Coming and going: the transaction by which an attempt gets its keys and learns who is before it, and the one that takes
//! them away.

use std::sync::Arc;

use fencepost_core::backend::{Queue, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, ErrorKind, Grant, Mode, Result};

use crate::config::Layout;
use crate::error::Failure;
use crate::heir::Heir;
use crate::home::Home;
use crate::leases::{Lease, Promise};
use crate::proto::{ResponseOp, TxnRequest, TxnResponse};
use crate::question::most_parts;
use crate::request::{all, found, inner, nested};
use crate::standing::Before;

/// How many nested transactions one carries.
pub(crate) const TOGETHER: usize = 64;
/// How many locks are remembered at which somebody else was seen.
const MOST_CROWDED: usize = 4096;
/// How often somebody asks again because it could not come as it asked.
const AGAIN: usize = 3;
/// How many parts a transaction has at most, as servers are by default.
pub(crate) const MOST_PARTS: usize = 128;

/// One that comes or goes.
#[derive(Clone)]
pub(crate) enum Step {
    Come { attempt: Arc<Attempt>, queue: Queue, lease: Lease, promise: Option<Promise> },
    Go(Grant),
}

/// One that is on its way.
struct Sent<'a> {
    step: &'a Step,
    /// Who comes after one that goes.
    heir: Option<Heir<'a>>,
    /// Whether one that comes has asked the whole question.
    in_full: bool,
}

/// What a transaction made of one that comes.
pub(crate) enum Came {
    Answer(Result<Reply>),
    /// It had come before: look where it is.
    Before,
    /// It met its own tombstone: nothing of this owner takes effect on this lease any more.
    Buried,
    /// Its lease was gone, and so nothing was done: another one will do.
    WithoutLease,
    /// Somebody has what it wants, as of this revision, and it has not come.
    Taken(i64),
    /// It has not come as it asked, because somebody else is there: the whole question has to be asked.
    NotAlone,
}

impl Home {
    /// Sends those who come and go together, and answers in order. Whoever finds that it is not alone asks again, in full.
    pub(crate) async fn come_and_go(&self, steps: &[Step], asked: Moment) -> Vec<Came> {
        let mut answers = self.send(steps, false, asked).await;
        for _ in 0..AGAIN {
            let (places, again): (Vec<usize>, Vec<Step>) = steps
                .iter()
                .enumerate()
                .filter(|(at, _)| matches!(answers.get(*at), Some(Came::NotAlone)))
                .map(|(at, step)| (at, step.clone()))
                .unzip();
            if again.is_empty() {
                break;
            }
            for (at, answer) in places.into_iter().zip(self.send(&again, true, asked).await) {
                answers[at] = answer;
            }
        }
        answers
    }

    async fn send(&self, steps: &[Step], in_full: bool, asked: Moment) -> Vec<Came> {
        let (mut sent, mut refused) = (Vec::with_capacity(steps.len()), Vec::with_capacity(steps.len()));
        for step in steps {
            match self.prepare(step, in_full, asked) {
                Ok(prepared) => {
                    sent.push(prepared);
                    refused.push(None);
                }
                Err(why) => refused.push(Some(Came::Answer(why))),
            }
        }
        let mut answers = self.deliver(sent, asked).await.into_iter();
        refused.into_iter().filter_map(|why| why.or_else(|| answers.next())).collect()
    }

    async fn deliver(&self, mut sent: Vec<Sent<'_>>, asked: Moment) -> Vec<Came> {
        let Some(shortest) = sent.iter().map(|sent| sent.step.ttl()).min() else { return Vec::new() };
        let patience = Self::patience(shortest);
        if sent.len() == 1
            && let Some(sent) = sent.pop()
        {
            let answer = self.link.txn(self.transaction(&sent), patience).await;
            return vec![self.take(sent, answer, asked)];
        }
        let parts = sent.iter().map(|sent| nested(self.transaction(sent)));
        let answer = self.link.txn(all(parts.collect()), patience).await;
        let mut answers = Vec::with_capacity(sent.len());
        match answer {
            Ok(answer) => {
                let header = answer.header;
                for (sent, part) in sent.into_iter().zip(answer.responses) {
                    let answer = TxnResponse { header, ..inner(part).unwrap_or_default() };
                    answers.push(self.take(sent, Ok(answer), asked));
                }
            }
            // One lease that is gone fails them all, as does one name that is not ours or a storage that is full; and nothing
            // was done: one by one.
            Err(failure) if failure.is_definite() => {
                for sent in sent {
                    let answer = self.link.txn(self.transaction(&sent), patience).await;
                    answers.push(self.take(sent, answer, asked));
                }
            }
            Err(failure) => {
                let error = self.failed(failure);
                let failed = |sent| self.take(sent, Err(Failure::Failed(error.duplicate())), asked);
                answers.extend(sent.into_iter().map(failed));
            }
        }
        answers
    }

    fn transaction(&self, sent: &Sent<'_>) -> TxnRequest {
        match sent.step {
            Step::Come { attempt, queue, lease, .. } if sent.in_full => {
                self.coming_among_others(attempt, *queue, lease.id)
            }
            Step::Come { attempt, lease, .. } => self.coming_alone(attempt, lease.id),
            Step::Go(grant) => self.going(grant, sent.heir.as_ref()),
        }
    }

    /// Whoever comes is remembered before it is sent: its keys may be there although nobody answers. Whoever goes is watched
    /// no more: that its keys are gone is no news.
    fn prepare<'a>(
        &'a self,
        step: &'a Step,
        in_full: bool,
        asked: Moment,
    ) -> Result<Sent<'a>, Result<Reply>> {
        match step {
            Step::Come { attempt, lease, .. } => {
                let comes = {
                    let mut state = self.state();
                    state.watches.asks(attempt);
                    state.comes(attempt, lease.id, asked)
                };
                if !comes {
                    return Err(self.refused(attempt, asked));
                }
                let in_full = in_full || self.is_crowded(attempt);
                Ok(Sent { step, heir: None, in_full })
            }
            Step::Go(grant) => {
                self.state().watches.end(&self.link, grant.attempt.owner);
                Ok(Sent { step, heir: self.heir(grant), in_full })
            }
        }
    }

    /// Whether somebody else was seen at one of the locks when we last looked.
    fn is_crowded(&self, attempt: &Attempt) -> bool {
        let state = self.state();
        !state.crowded.is_empty() && attempt.wants.iter().any(|want| state.crowded.contains(&want.name))
    }

    /// Remembers whether anybody else was seen.
    fn saw(&self, attempt: &Attempt, others: bool) {
        let mut state = self.state();
        if state.crowded.len() > MOST_CROWDED {
            state.crowded.clear();
        }
        for want in &attempt.wants {
            if others {
                state.crowded.insert(want.name.clone());
            } else {
                state.crowded.remove(&want.name);
            }
        }
    }

    fn take(&self, sent: Sent<'_>, answer: Result<TxnResponse, Failure>, asked: Moment) -> Came {
        let Sent { step, heir, in_full } = sent;
        if let Step::Come { attempt, lease, .. } = step {
            self.arrived(attempt.owner, lease.id, is_known(&answer));
        }
        match step {
            Step::Come { attempt, queue, lease, promise } => match answer {
                Ok(answer) => {
                    if let Some(promise) = *promise {
                        self.state().leases.confirm(promise, term(&answer));
                    }
                    self.came(attempt, *queue, in_full, &answer, asked)
                }
                Err(Failure::NoLease) => {
                    self.forget(attempt.owner);
                    self.lease_is_gone(lease.id);
                    Came::WithoutLease
                }
                Err(Failure::Failed(error)) => {
                    if error.kind() != ErrorKind::OutcomeUnknown {
                        self.forget(attempt.owner);
                    }
                    Came::Answer(Err(error))
                }
            },
            Step::Go(grant) => Came::Answer(match answer {
                Ok(answer) => {
                    if let Some(heir) = heir {
                        heir.hear(&answer);
                    }
                    Ok(self.went(grant, answer))
                }
                Err(failure) => Err(self.failed(failure)),
            }),
        }
    }

    fn went(&self, grant: &Grant, answer: TxnResponse) -> Reply {
        grant.held().iter().for_each(|want| self.saw_release(&want.name));
        self.forget_grant(grant);
        let held = match grant.held().len() {
            1 => answer.succeeded,
            _ => answer.responses.into_iter().filter_map(inner).any(|part| part.succeeded),
        };
        if held { Reply::Released } else { Reply::NotHeld }
    }

    fn came(
        &self,
        attempt: &Arc<Attempt>,
        queue: Queue,
        in_full: bool,
        answer: &TxnResponse,
        asked: Moment,
    ) -> Came {
        let revision = answer.header.map_or(0, |header| header.revision);
        if !in_full && !answer.succeeded {
            self.forget(attempt.owner);
            self.saw(attempt, true);
            return Came::NotAlone;
        }
        if !answer.succeeded {
            return self.did_not_come(attempt, &answer.responses, revision);
        }
        attempt.wants.iter().for_each(|want| self.took(&want.name));
        let mut looks = answer.responses.iter().skip(attempt.wants.len());
        let mut is_alone = true;
        let lines = attempt.wants.iter().map(|want| {
            let is_told = !self.is_try(queue) || self.keys.in_the_way(want).is_none();
            let line = if in_full && is_told { looks.next().map_or(&[][..], found) } else { &[] };
            // Those who share it are not in the way of each other, and are there all the same.
            is_alone &= line.len() <= 1 && want.mode != Mode::Shared;
            self.before(want, line, revision)
        });
        let lines: Vec<Before> = lines.collect();
        if in_full && is_alone {
            self.saw(attempt, false);
        }
        Came::Answer(Ok(self.stands(attempt, &lines, revision, revision, asked)))
    }

    fn did_not_come(&self, attempt: &Arc<Attempt>, looks: &[ResponseOp], seen: i64) -> Came {
        let wants = &attempt.wants;
        let is_there = |at: usize| looks.get(at).is_some_and(|look| !found(look).is_empty());
        if is_there(0) {
            self.forget(attempt.owner);
            return Came::Buried;
        }
        let mut seats = looks.iter().skip(1).take(wants.len()).flat_map(found).peekable();
        let is_seated = seats.peek().is_some() && self.keys.layout != Layout::Single;
        if let (Layout::Single, Some(key)) = (self.keys.layout, seats.peek()) {
            self.saw_holder(&wants[0].name, &key.value);
        }
        if seats.any(|key| Self::is_own(key, attempt.owner)) {
            return Came::Before;
        }
        if is_seated {
            // Somebody of ours whose end is not known there yet, or nobody knows who.
            let is_another = self.state().take_another_seat(attempt.owner);
            self.forget(attempt.owner);
            return if is_another { Came::NotAlone } else { Came::Answer(Err(self.forgotten(attempt))) };
        }
        self.forget(attempt.owner);
        let others = looks.iter().skip(1 + wants.len()).flat_map(found);
        let modes: Vec<_> = others.filter_map(|key| self.keys.read(&key.key)).collect();
        for want in wants {
            let modes = modes.iter().filter(|seat| seat.name == want.name).map(|seat| seat.mode);
            if let Err(conflict) = want.agree(modes) {
                return Came::Answer(Err(conflict));
            }
        }
        Came::Taken(seen)
    }
}

impl Step {
    fn ttl(&self) -> std::time::Duration {
        match self {
            Self::Come { attempt, .. } => attempt.ttl,
            Self::Go(grant) => grant.award.ttl,
        }
    }

    /// How many parts its transaction has.
    pub(crate) fn parts(&self) -> usize {
        match self {
            Self::Come { attempt, .. } => most_parts(attempt),
            Self::Go(grant) => grant.held().len(),
        }
    }
}

/// Whether it is known what became of a transaction.
pub(crate) fn is_known(answer: &Result<TxnResponse, Failure>) -> bool {
    !matches!(answer, Err(Failure::Failed(error)) if error.kind() == ErrorKind::OutcomeUnknown)
}

pub(crate) fn term(answer: &TxnResponse) -> u64 {
    answer.header.map_or(0, |header| header.raft_term)
}

/// The revision that made the keys of a grant.
pub(crate) fn revision_of(grant: &Grant) -> i64 {
    i64::try_from(grant.award.token.get()).unwrap_or(0)
}
