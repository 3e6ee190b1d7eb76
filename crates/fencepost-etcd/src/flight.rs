//! One flight: operations of which none depends on another, so that all of them leave at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Error, ErrorKind, Grant, Mode, Result, Rule};
use futures_util::future::{BoxFuture, join, join_all, join4};

use crate::cell::{read_cell, write_cell};
use crate::client_state::ClientState;
use crate::enter::Step;
use crate::leases::{Leased, seconds};

/// What is answered to the operation with this number.
type Answered = (usize, Result<Reply>);
/// An attempt that comes, and whether it waits.
type Coming<'a> = (usize, &'a Arc<Attempt>, OnBusy);

/// A flight of one client.
#[derive(Clone, Copy)]
pub(crate) struct Flight<'a> {
    pub(crate) client: &'a ClientState,
    /// When it left. What is granted counts from then.
    pub(crate) asked: Moment,
}

impl<'a> Flight<'a> {
    pub(crate) fn new(client: &'a ClientState) -> Self {
        Self { client, asked: client.clock.now() }
    }

    /// Executes the operations, and removes what was abandoned.
    pub(crate) async fn execute(self, ops: &[Op]) -> Vec<Result<Reply>> {
        {
            // Before the sweep looks for what no operation cares for.
            let mut state = self.client.state();
            ops.iter().filter_map(Op::owner).for_each(|owner| state.care_for(owner, self.asked));
        }
        let (answers, ()) = join(Box::pin(self.carry(ops)), self.client.sweep(self.asked)).await;
        let mut replies: Vec<Option<Result<Reply>>> = ops.iter().map(|_| None).collect();
        for (at, reply) in answers {
            replies[at] = Some(reply);
        }
        let unanswered = || Err(Error::new(ErrorKind::OutcomeUnknown, "an operation was not answered"));
        let replies = replies.into_iter().map(|reply| reply.unwrap_or_else(unanswered));
        join_all(ops.iter().zip(replies).map(|(op, reply)| self.finish(op, reply))).await
    }

    async fn carry(self, ops: &[Op]) -> Vec<Answered> {
        let (mut coming, mut going) = (Vec::new(), Vec::new());
        let (mut checks, mut renewals, mut singles) = (Vec::new(), Vec::new(), Vec::new());
        for (at, op) in ops.iter().enumerate() {
            match op {
                Op::Acquire { attempt, on_busy } => coming.push((at, attempt, *on_busy)),
                Op::Release(grant) => going.push((at, grant)),
                Op::Check(attempt) => checks.push((at, attempt)),
                Op::Renew(grant) => renewals.push((at, grant)),
                _ => singles.push(async move { (at, self.single(op).await) }),
            }
        }
        let comings = Box::pin(self.come_and_go(coming, going, Again::Once));
        let (come, checked, renewed, singles) =
            join4(comings, self.check_all(checks), self.renew(&renewals), join_all(singles)).await;
        [come, checked, renewed, singles].into_iter().flatten().collect()
    }

    async fn single(self, op: &Op) -> Result<Reply> {
        match op {
            Op::Leave(attempt) => self.leave(attempt).await,
            Op::ReadCell(name) => read_cell(self.client, name).await,
            Op::WriteCell { grant, name, bytes, keep } => {
                write_cell(self.client, grant, name, bytes, *keep).await
            }
            Op::Break { name, token } => self.client.store.break_lock(name, *token).await,
            Op::Acquire { .. } | Op::Check(_) | Op::Renew(_) | Op::Release(_) => Ok(Reply::NoTicket),
        }
    }

    /// Removes what is left of an attempt that has ended. The engine then asks as another owner, or not at all: that nothing is
    /// left, and nothing can arrive, is a part of those answers.
    async fn finish(self, op: &Op, reply: Result<Reply>) -> Result<Reply> {
        let Some(attempt) = op.attempt().filter(|attempt| self.client.is_ending(attempt.owner)) else {
            return reply;
        };
        match self.client.clear_away(attempt).await {
            Err(error) if matches!(reply, Ok(Reply::NoTicket | Reply::Left)) => Err(error),
            // If it failed, the next operation of this owner does it, or the sweep.
            Ok(()) | Err(_) => reply,
        }
    }

    async fn check_all(self, checks: Vec<(usize, &Arc<Attempt>)>) -> Vec<Answered> {
        let mut answers = Vec::with_capacity(checks.len());
        let (mut inside, mut standing) = (Vec::new(), Vec::new());
        {
            let mut state = self.client.state();
            for (at, attempt) in checks {
                if state.places.keep_local_waiter(attempt.owner, self.asked) {
                    inside.push((at, attempt));
                } else if state.live(attempt.owner).is_some() {
                    standing.push((at, Arc::clone(attempt)));
                } else {
                    answers.push((at, Ok(Reply::NoTicket)));
                }
            }
        }
        let (numbers, standing): (Vec<usize>, Vec<Arc<Attempt>>) = standing.into_iter().unzip();
        let (inside, checked) = join(self.check_inside(inside), self.check(&standing)).await;
        answers.extend(inside);
        for ((at, attempt), reply) in numbers.into_iter().zip(standing).zip(checked) {
            if let Ok(None) = reply {
                self.client.ends(attempt.owner);
            }
            answers.push((at, reply.map(|reply| reply.unwrap_or(Reply::NoTicket))));
        }
        answers
    }

    /// Checks attempts that wait in this process: one after the other, as those for one lock may not come together.
    async fn check_inside(self, checks: Vec<(usize, &Arc<Attempt>)>) -> Vec<Answered> {
        let client = self.client;
        let mut answers = Vec::with_capacity(checks.len());
        for (at, attempt) in checks {
            {
                let state = client.state();
                if !state.places.may_enqueue(attempt) {
                    client.pass_on(&state, attempt);
                    answers.push((at, Ok(Reply::Waiting { check_after: attempt.ttl })));
                    continue;
                }
            }
            let coming = vec![(at, attempt, OnBusy::Wait)];
            let came = Box::pin(self.come_and_go(coming, Vec::new(), Again::Once)).await;
            let was_answered = came.iter().all(|(_, reply)| reply.is_ok());
            answers.extend(came);
            let mut state = client.state();
            if state.places.keep_local_waiter(attempt.owner, self.asked) {
                // It could not come after all, and is still the next.
                state.places.move_to_front(attempt.owner);
                // Or was the next until just now, and has not asked; an attempt that failed asks again by itself.
                if was_answered {
                    client.pass_on(&state, attempt);
                }
            } else {
                // Several may have left at once, and only the first was told.
                client.wake_next(&state, attempt);
            }
        }
        answers
    }

    /// Executes acquires and releases, in as few transactions as possible.
    async fn come_and_go(
        self,
        coming: Vec<Coming<'_>>,
        going: Vec<(usize, &Grant)>,
        again: Again,
    ) -> Vec<Answered> {
        let (mut answers, coming) = self.resume(coming).await;
        let given = self.leases_for(coming.iter().map(|(_, attempt, _)| attempt.ttl)).await;
        let mut steps: Vec<(usize, Step)> =
            going.into_iter().map(|(at, grant)| (at, Step::Go(grant.clone()))).collect();
        let mut rare = Vec::new();
        for (at, attempt, on_busy) in coming {
            let leased = match &given[&seconds(attempt.ttl)] {
                Err(error) => {
                    answers.push((at, Err(error.clone())));
                    continue;
                }
                Ok(leased) => *leased,
            };
            if self.waits_inside(attempt, on_busy) {
                answers.push((at, Ok(Reply::Waiting { check_after: attempt.ttl })));
            } else {
                let step = Step::Come { attempt: attempt.clone(), on_busy, leased };
                if is_rare(attempt, on_busy) { rare.push((at, step)) } else { steps.push((at, step)) }
            }
        }
        // In the order in which they were sent: a release makes room for an acquire that comes after it.
        steps.sort_unstable_by_key(|(at, _)| *at);
        let (numbers, steps): (Vec<usize>, Vec<Step>) = steps.into_iter().unzip();
        let common = async {
            let came = self.send_all(&steps).await;
            let replies =
                steps.iter().zip(came).map(async |(step, came)| self.after(step, came, again).await);
            numbers.into_iter().zip(join_all(replies).await).collect::<Vec<Answered>>()
        };
        let (numbers, rare): (Vec<usize>, Vec<Step>) = rare.into_iter().unzip();
        let read = join_all(rare.iter().map(|step| self.read_and_come(step, again)));
        let (common, read) = join(common, read).await;
        answers.extend(common.into_iter().chain(numbers.into_iter().zip(read)));
        answers
    }

    /// Executes one acquire from its beginning.
    pub(crate) fn come_again<'b>(
        self,
        attempt: &'b Arc<Attempt>,
        on_busy: OnBusy,
    ) -> BoxFuture<'b, Result<Reply>>
    where
        'a: 'b,
    {
        Box::pin(async move {
            let came = self.come_and_go(vec![(0, attempt, on_busy)], Vec::new(), Again::Never).await;
            came.into_iter().next().map_or_else(|| Err(self.client.store.undone(attempt)), |(_, reply)| reply)
        })
    }

    /// Answers those of these acquires that need no keys, or have come before. Returns the others.
    async fn resume(self, coming: Vec<Coming<'_>>) -> (Vec<Answered>, Vec<Coming<'_>>) {
        let (mut answers, mut open, mut known) = (Vec::new(), Vec::new(), Vec::new());
        for (at, attempt, on_busy) in coming {
            if let Err(error) = self.client.store.can_be_taken(attempt) {
                answers.push((at, Err(error)));
                continue;
            }
            let mut state = self.client.state();
            if state.has_departed(attempt.owner, self.asked) {
                answers.push((at, Ok(Reply::Busy)));
            } else if state.live(attempt.owner).is_some() {
                known.push((at, attempt, on_busy));
            } else {
                open.push((at, attempt, on_busy));
            }
        }
        let attempts: Vec<Arc<Attempt>> = known.iter().map(|(_, attempt, _)| Arc::clone(attempt)).collect();
        for (again, found) in known.into_iter().zip(self.check(&attempts).await) {
            match found.transpose() {
                Some(reply) => answers.push((again.0, reply)),
                // What was sent before has not arrived, or its lease has ended.
                None => open.push(again),
            }
        }
        let mut rest = Vec::with_capacity(open.len());
        for again in open {
            let is_ending = self.client.is_ending(again.1.owner);
            match if is_ending { self.client.clear_away(again.1).await } else { Ok(()) } {
                Ok(()) => rest.push(again),
                Err(error) => answers.push((again.0, Err(error))),
            }
        }
        (answers, rest)
    }

    /// Returns whether an attempt has to wait in this process, and lets it do so.
    fn waits_inside(self, attempt: &Arc<Attempt>, on_busy: OnBusy) -> bool {
        let mut state = self.client.state();
        let rests = attempt.wants.iter().any(|want| state.rests.rests(&want.name, self.asked));
        let may_come = !rests && state.places.may_enqueue(attempt);
        if on_busy == OnBusy::Return || may_come || state.places.get(attempt.owner).is_some() {
            return false;
        }
        if rests {
            // It will ask at the end of the rest, whatever happens until then.
            state.watches.asks(attempt);
        }
        state.places.wait_locally(attempt, self.asked);
        true
    }

    /// Returns a lease for each of these.
    async fn leases_for(self, ttls: impl Iterator<Item = Duration>) -> HashMap<i64, Result<Leased>> {
        let ttls: HashMap<i64, Duration> = ttls.map(|ttl| (seconds(ttl), ttl)).collect();
        let leases = ttls.into_iter().map(async |(seconds, ttl)| (seconds, self.client.lease_for(ttl).await));
        join_all(leases).await.into_iter().collect()
    }
}

/// Whether an acquire whose lease was gone is sent again, with another one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    Once,
    Never,
}

/// Returns whether an attempt has to read the lines before it enters.
fn is_rare(attempt: &Attempt, on_busy: OnBusy) -> bool {
    let is_any = attempt.rule == Rule::Any && attempt.wants.len() > 1;
    let is_slot = attempt.wants.iter().any(|want| matches!(want.mode, Mode::Semaphore { .. }));
    is_any || (is_slot && on_busy == OnBusy::Return)
}
