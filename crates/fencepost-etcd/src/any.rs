//! What cannot be said by where others are: one of several locks, and the slots of a semaphore for whoever does not wait.
//! The lines are read first, and then entered if nobody has come meanwhile.

use std::sync::Arc;

use fencepost_contenders::{Card, holding};
use fencepost_core::backend::Reply;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Mode, Result, Rule, Want};

use crate::enter::{is_known, term};
use crate::error::Failure;
use crate::home::Home;
use crate::leases::{Lease, Promise};
use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::{Compare, KeyValue, RangeRequest, TxnRequest};
use crate::request::{absent, all, found, get, in_order, put};

/// How often lines are read again because somebody came.
const READS: usize = 5;

impl Home {
    /// Takes one of the wanted locks, or all of them, if there is room now. Answers [`Reply::Busy`] if there is not, and
    /// nothing if the lease is gone.
    pub(crate) async fn take_if_free(
        &self,
        attempt: &Arc<Attempt>,
        lease: Lease,
        promise: Option<Promise>,
        asked: Moment,
    ) -> Result<Option<Reply>> {
        for _ in 0..READS {
            let looks = attempt
                .wants
                .iter()
                .map(|want| get(RangeRequest { keys_only: true, ..in_order(self.keys.line(&want.name)) }));
            let request = all(looks.collect());
            let answer = self.link.txn(request, Self::patience(attempt.ttl)).await;
            let answer = answer.map_err(|failure| self.failed(failure))?;
            let seen = answer.header.map_or(0, |header| header.revision);
            if self.state().places.get(attempt.owner).is_some() {
                // Another flight was faster.
                return self.refused(attempt, asked).map(Some);
            }
            if self.is_seated(attempt, answer.responses.iter().flat_map(found)) {
                // What it has sent before, and nobody answered, has arrived after all; or else somebody is in its seat.
                self.clear(attempt).await?;
                self.state().take_another_seat(attempt.owner);
                continue;
            }
            let mut free = Vec::new();
            for (at, (want, line)) in attempt.wants.iter().zip(&answer.responses).enumerate() {
                let modes = found(line).iter().map(|key| self.keys.read(&key.key));
                let modes: Vec<Mode> = modes.map(|it| it.map_or(Mode::Exclusive, |it| it.mode)).collect();
                want.agree(modes.iter().copied())?;
                let last = modes.len();
                if holding(modes.into_iter().chain([want.mode])) > last {
                    free.push(at);
                }
            }
            let chosen = match attempt.rule {
                Rule::All if free.len() < attempt.wants.len() => return Ok(Some(Reply::Busy)),
                Rule::All => 0,
                Rule::Any => match free.first() {
                    Some(first) => *first,
                    None => return Ok(Some(Reply::Busy)),
                },
            };
            match self.take_unless_changed(attempt, chosen, (lease, promise), seen, asked).await {
                Ok(Some(reply)) => return Ok(Some(reply)),
                Ok(None) => {}
                Err(Failure::NoLease) => {
                    self.lease_is_gone(lease.id);
                    return Ok(None);
                }
                Err(Failure::Failed(error)) => return Err(error),
            }
        }
        Ok(Some(Reply::Busy))
    }

    /// Whether somebody is in the seat that an attempt has or would get.
    fn is_seated<'a>(&self, attempt: &Attempt, mut line: impl Iterator<Item = &'a KeyValue>) -> bool {
        self.state().seats.take(attempt);
        let seats: Vec<Vec<u8>> = attempt.wants.iter().map(|want| self.seat(want, attempt.owner)).collect();
        line.any(|key| seats.contains(&key.key))
    }

    async fn take_unless_changed(
        &self,
        attempt: &Arc<Attempt>,
        chosen: usize,
        (lease, promise): (Lease, Option<Promise>),
        seen: i64,
        asked: Moment,
    ) -> Result<Option<Reply>, Failure> {
        let owner = attempt.owner;
        let wants: &[Want] = crate::watching::held(attempt, chosen);
        let card = Card::new(attempt);
        if !self.state().comes(attempt, lease.id, asked) {
            return self.refused(attempt, asked).map(Some).map_err(Failure::Failed);
        }
        let mut request = TxnRequest::default();
        request.compare.push(absent(self.keys.left(owner, lease.id)));
        for want in wants {
            let line = self.keys.line(&want.name);
            request.compare.push(Compare {
                result: CompareResult::Less.into(),
                target: CompareTarget::Mod.into(),
                key: line.from,
                range_end: line.to,
                target_union: Some(TargetUnion::ModRevision(seen + 1)),
            });
            let seat = self.seat(want, owner);
            request.compare.push(absent(seat.clone()));
            request.success.push(put(seat, card.to_bytes(), lease.id));
        }
        let answer = self.link.txn(request, Self::patience(attempt.ttl)).await;
        let is_known = is_known(&answer);
        self.arrived(owner, lease.id, is_known);
        if is_known && answer.is_err() {
            self.forget(owner);
        }
        let answer = answer?;
        if let Some(promise) = promise {
            self.state().leases.confirm(promise, term(&answer));
        }
        if !answer.succeeded {
            self.forget(owner);
            return Ok(None);
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        let mut state = self.state();
        let state = &mut *state;
        let Some(place) = state.keep(owner, asked) else {
            return Ok(Some(Reply::NoTicket));
        };
        place.entry.revision = Some(revision);
        place.entry.held = Some(chosen);
        state.watches.later(owner, asked);
        self.granted.notify_one();
        let award = Self::award(state.leases.get(lease.id), attempt.ttl, revision, chosen, asked);
        Ok(Some(Reply::Granted(award)))
    }
}
