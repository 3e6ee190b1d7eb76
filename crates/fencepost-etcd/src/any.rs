//! What cannot be said by where others are: one of several locks, and the slots of a semaphore for an attempt that does not
//! wait. The lines are read first, and then entered if none of them has changed.

use std::sync::Arc;

use fencepost_contenders::{EntryMeta, holder_count};
use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::{Attempt, Mode, Result, Rule, request_timeout};

use crate::client_state::held;
use crate::enter::Step;
use crate::error::Failure;
use crate::flight::{Again, Flight};
use crate::leases::Leased;
use crate::proto::{KeyValue, RangeRequest, ResponseOp, TxnRequest};
use crate::request::{absent, all, found, get, in_order, put, unchanged_since};
use crate::standing::Before;

/// How often lines are read again because they changed.
const READS: usize = 5;

impl Flight<'_> {
    /// Executes an acquire that has to read the lines before it enters.
    pub(crate) async fn read_and_come(self, step: &Step, again: Again) -> Result<Reply> {
        let Step::Come { attempt, on_busy, leased } = step else { return Ok(Reply::NotHeld) };
        match self.take_if_free(attempt, *leased).await {
            Ok(Reply::Busy) if *on_busy == OnBusy::Wait => {
                let came = self.send_all(std::slice::from_ref(step)).await.pop();
                match came {
                    Some(came) => self.after(step, came, again).await,
                    None => Err(self.client.store.undone(attempt)),
                }
            }
            Ok(reply) => {
                if reply == Reply::Busy {
                    self.client.forget(attempt.owner);
                }
                Ok(reply)
            }
            Err(Failure::NoLease) => self.without_lease(step, again).await,
            Err(Failure::Failed(error)) => {
                self.did_not_arrive(attempt);
                Err(error)
            }
        }
    }

    /// Takes one of the wanted locks, or all of them, if there is room now. Answers [`Reply::Busy`] if there is not.
    async fn take_if_free(self, attempt: &Arc<Attempt>, leased: Leased) -> Result<Reply, Failure> {
        let (client, keys) = (self.client, &self.client.store.keys);
        for _ in 0..READS {
            client.state().enters(attempt, leased.0.id, self.asked);
            let lines = attempt.wants.iter().map(|want| in_order(keys.line(&want.name)));
            let looks = lines.map(|line| get(RangeRequest { keys_only: true, ..line }));
            let answer = client.store.txn(all(looks.collect()), request_timeout(attempt.ttl)).await?;
            let seen = answer.header.map_or(0, |header| header.revision);
            if self.is_seated(attempt, answer.responses.iter().flat_map(found)) {
                if client.state().take_another_seat(attempt.owner) {
                    continue;
                }
                // What it has sent before may have arrived after all.
                client.ends(attempt.owner);
                return Err(self.client.store.undone(attempt).into());
            }
            let Some(chosen) = self.free(attempt, &answer.responses)? else { return Ok(Reply::Busy) };
            if let Some(reply) = self.take_unless_changed(attempt, chosen, leased, seen).await? {
                return Ok(reply);
            }
        }
        Ok(Reply::Busy)
    }

    /// Returns whether a key is in the seat that an attempt has.
    fn is_seated<'a>(self, attempt: &Attempt, mut line: impl Iterator<Item = &'a KeyValue>) -> bool {
        let (store, state) = (&self.client.store, self.client.state());
        let seats = attempt.wants.iter().map(|want| state.seat(store, want, attempt.owner));
        let seats: Vec<Vec<u8>> = seats.collect();
        line.any(|key| seats.contains(&key.key))
    }

    /// Returns which of the wants, or the first of all, can be had in lines like these.
    fn free(self, attempt: &Attempt, lines: &[ResponseOp]) -> Result<Option<usize>> {
        let mut free = Vec::new();
        for (at, (want, line)) in attempt.wants.iter().zip(lines).enumerate() {
            let modes = found(line).iter().map(|key| self.client.store.keys.mode_of(key));
            let modes: Vec<Mode> = modes.collect();
            want.agree(modes.iter().copied())?;
            let last = modes.len();
            if holder_count(modes.into_iter().chain([want.mode])) > last {
                free.push(at);
            }
        }
        Ok(match attempt.rule {
            Rule::All => (free.len() == attempt.wants.len()).then_some(0),
            Rule::Any => free.first().copied(),
        })
    }

    async fn take_unless_changed(
        self,
        attempt: &Arc<Attempt>,
        chosen: usize,
        leased: Leased,
        seen: i64,
    ) -> Result<Option<Reply>, Failure> {
        let (client, owner, lease) = (self.client, attempt.owner, leased.0.id);
        let (store, entry_meta) = (&client.store, EntryMeta::new(attempt));
        let mut request = TxnRequest::default();
        request.compare.push(absent(store.keys.left(owner, lease)));
        {
            let mut state = client.state();
            state.sends(owner, lease);
            if let Some(place) = state.live(owner) {
                // If this is not answered, these are the keys to look for.
                place.entry.held = Some(chosen);
            }
            for want in held(attempt, chosen) {
                request.compare.push(unchanged_since(store.keys.line(&want.name), seen));
                let seat = state.seat(store, want, owner);
                request.compare.push(absent(seat.clone()));
                request.success.push(put(seat, entry_meta.to_bytes(), lease));
            }
        }
        let answer = store.link.txn(request, request_timeout(attempt.ttl)).await;
        let answer = self.arrived(attempt, leased, answer)?;
        if !answer.succeeded {
            return Ok(None);
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        let is_taken = |at: usize| attempt.rule == Rule::All || at == chosen;
        let lines =
            (0..attempt.wants.len()).map(|at| if is_taken(at) { Before::Free } else { Before::Blocked });
        let lines: Vec<Before> = lines.collect();
        let stands = client.stands(attempt, &lines, revision, revision, self.asked);
        let reply = stands.ok_or_else(|| self.client.store.undone(attempt))?;
        client.let_others_in(attempt, chosen);
        Ok(Some(reply))
    }
}
