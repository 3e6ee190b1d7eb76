//! Looking where our own attempts stand. Every look is linearizable, and proves that our own keys are there.

use std::sync::Arc;

use fencepost_contenders::OwnEntry;
use fencepost_core::backend::Reply;
use fencepost_core::{Attempt, Mode, Result, Rule, Want, request_timeout};

use crate::client_state::{Entry, State};
use crate::enter::term;
use crate::error::Failure;
use crate::flight::Flight;
use crate::keys::is_own;
use crate::proto::{KeyValue, RangeRequest, RequestOp, ResponseOp, TxnResponse};
use crate::request::{all, all_gone, found, get, in_order, latest, mere, one};
use crate::standing::Before;
use crate::store::{MOST_PARTS, Store, batches};

/// What a look finds of an attempt.
pub(crate) enum Found {
    /// Its keys were created by `revision`; what is before it in each line, as of `seen`.
    There { revision: i64, seen: i64, lines: Vec<Before> },
    /// One of its keys is missing, or is not what it was. Others may be left.
    Gone { is_some_left: bool },
    /// The one key is gone whose end it waits for: another may be before it.
    Unsure,
}

/// How a look finds out what is before an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// By the one key whose end it waits for, if there is one: what that costs does not depend on the length of the line.
    AtTheKeyAwaited,
    /// By the line: the server reads all of it, although it returns only what is asked for.
    AtTheLine,
}

/// What is known of an attempt before a look.
struct Known<'a> {
    attempt: &'a Attempt,
    /// The wants that it has keys for, and these keys.
    wants: &'a [Want],
    seats: Vec<Vec<u8>>,
    lease: Option<i64>,
    revision: Option<i64>,
    awaited: Option<Vec<u8>>,
}

impl<'a> Known<'a> {
    fn new(state: &State, store: &Store, attempt: &'a Attempt, look: Look) -> Self {
        let owner = attempt.owner;
        let entry = state.places.get(owner).map(|place| &place.entry);
        let wants = entry.map_or(attempt.wants.as_slice(), |entry| entry.wants(attempt));
        let is_simple = |entry: &&Entry| {
            look == Look::AtTheKeyAwaited
                && wants.len() == 1
                && entry.held.is_none()
                && entry.revision.is_some()
        };
        let awaited = entry.filter(is_simple).and_then(|_| state.watches.awaited(owner));
        Self {
            attempt,
            wants,
            seats: wants.iter().map(|want| state.seat(store, want, owner)).collect(),
            lease: entry.map(|entry| entry.lease),
            revision: entry.and_then(|entry| entry.revision),
            awaited: awaited.map(<[u8]>::to_vec),
        }
    }

    /// Returns the questions: its own keys, and what is before each of them.
    fn parts(&self, store: &Store) -> Vec<RequestOp> {
        let own = self.seats.iter().cloned();
        let own = own.map(|seat| get(if self.revision.is_some() { mere(seat) } else { one(seat) }));
        let lines = self.wants.iter().map(|want| {
            if let Some(key) = &self.awaited {
                return get(mere(key.clone()));
            }
            let line = store.keys.ahead_of(want);
            get(match (want.mode, self.revision) {
                (Mode::Semaphore { .. }, Some(revision)) => {
                    RangeRequest { keys_only: true, max_create_revision: revision, ..in_order(line) }
                }
                (_, Some(revision)) => RangeRequest { max_create_revision: revision - 1, ..latest(line, 1) },
                (_, None) => RangeRequest { keys_only: true, ..in_order(line) },
            })
        });
        own.chain(lines).collect()
    }

    /// Reads the answers to these questions.
    fn read<'b>(&self, store: &Store, looks: &mut impl Iterator<Item = &'b ResponseOp>, seen: i64) -> Found {
        let keys: Vec<&[KeyValue]> = self.wants.iter().map(|_| next(looks)).collect();
        let lines: Vec<&[KeyValue]> = self.wants.iter().map(|_| next(looks)).collect();
        let first = keys.first().and_then(|keys| keys.first()).map(|key| key.create_revision);
        // What was created by an earlier request may hang on a lease that was given up.
        let is_ours = |key: &KeyValue| match self.revision {
            Some(revision) => key.create_revision == revision,
            None => is_own(key, self.attempt.owner) && Some(key.lease) == self.lease,
        };
        let is_whole = |keys: &&[KeyValue]| {
            keys.first().is_some_and(|key| Some(key.create_revision) == first && is_ours(key))
        };
        match first.filter(|_| keys.iter().all(is_whole)) {
            None => Found::Gone { is_some_left: keys.iter().any(|keys| !keys.is_empty()) },
            Some(revision) => {
                let lines =
                    self.wants.iter().zip(lines).map(|(want, line)| store.before(want, line, revision));
                let lines: Vec<Before> = lines.collect();
                let is_unsure = self.awaited.is_some() && lines.contains(&Before::Free);
                if is_unsure { Found::Unsure } else { Found::There { revision, seen, lines } }
            }
        }
    }
}

impl Flight<'_> {
    /// Looks where these attempts stand, with their leases kept alive. Answers nothing for those whose keys are not there: such
    /// an attempt ends, unless a request that it has sent may still create them.
    pub(crate) async fn check(self, attempts: &[Arc<Attempt>]) -> Vec<Result<Option<Reply>>> {
        let client = self.client;
        let (leases, old) = {
            let mut state = client.state();
            let mut lease = |it: &Arc<Attempt>| state.live(it.owner).map(|place| place.entry.lease);
            let leases: Vec<Option<i64>> = attempts.iter().map(&mut lease).collect();
            let old = leases.iter().flatten().copied().filter(|it| state.leases.is_stale(*it, self.asked));
            let old: Vec<i64> = old.collect();
            (leases, old)
        };
        let kept = client.keep_all_alive(old.into_iter()).await;
        let found = self.look(attempts).await;
        let mut answers = Vec::with_capacity(attempts.len());
        for ((attempt, lease), found) in attempts.iter().zip(leases).zip(found) {
            let promise = lease.and_then(|lease| kept.get(&lease)?.as_ref().ok().copied().flatten());
            if let (Ok((_, term)), Some(promise)) = (&found, promise) {
                client.state().leases.confirm(promise, *term);
            }
            answers.push(match found {
                Ok((found, _)) => self.answer(attempt, found).await,
                Err(failure) => Err(client.store.failed(failure)),
            });
        }
        answers
    }

    async fn answer(self, attempt: &Arc<Attempt>, found: Found) -> Result<Option<Reply>> {
        match found {
            Found::There { revision, seen, lines } => {
                match self.client.stands(attempt, &lines, revision, seen, self.asked) {
                    Some(reply) => self.settled(attempt, reply).await.map(Some),
                    None => Ok(None),
                }
            }
            Found::Gone { is_some_left } => {
                let was_seen = |place: &OwnEntry<Entry>| place.entry.revision.is_some();
                if is_some_left || self.client.state().places.get(attempt.owner).is_some_and(was_seen) {
                    self.client.ends(attempt.owner);
                }
                Ok(None)
            }
            Found::Unsure => Ok(Some(Reply::Waiting { check_after: attempt.ttl })),
        }
    }

    /// Looks where these stand. Returns with each the term of the answer.
    pub(crate) async fn look(self, attempts: &[Arc<Attempt>]) -> Vec<Result<(Found, u64), Failure>> {
        let mut found = self.look_by(attempts, Look::AtTheKeyAwaited).await;
        let is_unsure = |at: &usize| matches!(found[*at], Ok((Found::Unsure, _)));
        let unsure: Vec<usize> = (0..found.len()).filter(is_unsure).collect();
        let again: Vec<Arc<Attempt>> = unsure.iter().map(|at| attempts[*at].clone()).collect();
        let again = self.look_by(&again, Look::AtTheLine).await;
        unsure.into_iter().zip(again).for_each(|(at, again)| found[at] = again);
        found
    }

    async fn look_by(self, attempts: &[Arc<Attempt>], look: Look) -> Vec<Result<(Found, u64), Failure>> {
        let store = &self.client.store;
        let known: Vec<Known<'_>> = {
            let state = self.client.state();
            attempts.iter().map(|attempt| Known::new(&state, store, attempt, look)).collect()
        };
        let ask = |batch: &[Known<'_>]| {
            let shortest = batch.iter().map(|known| known.attempt.ttl).min().unwrap_or_default();
            let parts = batch.iter().flat_map(|known| known.parts(store)).collect();
            (all(parts), request_timeout(shortest))
        };
        let read = |batch: &[Known<'_>], answer: TxnResponse| {
            let seen = answer.header.map_or(0, |header| header.revision);
            let mut looks = answer.responses.iter();
            batch.iter().map(|known| (known.read(store, &mut looks, seen), term(&answer))).collect()
        };
        store.ask_all(batches(&known, MOST_PARTS, |known| known.wants.len() * 2), ask, read).await
    }

    /// Lets an attempt that got one of several leave the other lines before it is told.
    pub(crate) async fn settled(self, attempt: &Arc<Attempt>, reply: Reply) -> Result<Reply> {
        let Reply::Granted(award) = &reply else { return Ok(reply) };
        let (client, store) = (self.client, &self.client.store);
        if attempt.rule == Rule::Any && attempt.wants.len() > 1 {
            let made = i64::try_from(award.token.get()).unwrap_or(0);
            let others: Vec<(Vec<u8>, i64)> = {
                let state = client.state();
                let others = attempt.wants.iter().enumerate().filter(|(at, _)| *at != award.chosen);
                others.map(|(_, want)| (state.seat(store, want, attempt.owner), made)).collect()
            };
            let left = store.link.txn(all_gone(others), request_timeout(attempt.ttl)).await;
            left.map_err(|failure| store.half_done(failure))?;
        }
        client.let_others_in(attempt, award.chosen);
        Ok(reply)
    }
}

/// What the next look found.
pub(crate) fn next<'a>(looks: &mut impl Iterator<Item = &'a ResponseOp>) -> &'a [KeyValue] {
    looks.next().map_or(&[], found)
}
