//! Looking where our own attempts stand. Every look is linearizable, and proves that our own keys are there.

use std::collections::VecDeque;
use std::sync::Arc;

use fencepost_contenders::Place;
use fencepost_core::backend::Reply;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Mode, Owner, Result, Rule, Want};

use crate::enter::{MOST_PARTS, term};
use crate::error::Failure;
use crate::home::{Home, State};
use crate::proto::{KeyValue, RangeRequest, RequestOp, ResponseOp};
use crate::request::{all, all_gone, found, get, in_order, latest, mere, one};
use crate::standing::Before;
use crate::watching::held;

/// Where an attempt stands.
pub(crate) enum Standing {
    /// One of its keys is missing, of so many that were looked for, or is not what it was. Others may be left.
    Gone { is_some_left: bool, seen: i64, looked: usize },
    /// Its keys were made by `revision`; what is before it in each line, as of `seen`.
    There { revision: i64, seen: i64, lines: Vec<Before> },
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
#[derive(Default)]
struct Known {
    /// The leases that its keys may hang on.
    leases: Option<[i64; 2]>,
    revision: Option<i64>,
    awaited: Option<Vec<u8>>,
}

impl Known {
    fn of(state: &State, owner: Owner, look: Look) -> Self {
        let Some(Place { attempt, entry, .. }) = state.places.get(owner) else { return Self::default() };
        let is_simple = look == Look::AtTheKeyAwaited && attempt.wants.len() == 1 && entry.held.is_none();
        let awaited = state.watches.awaited(owner).filter(|_| is_simple && entry.revision.is_some());
        Self {
            leases: Some([entry.lease, entry.proven_lease()]),
            revision: entry.revision,
            awaited: awaited.map(<[u8]>::to_vec),
        }
    }
}

impl Home {
    /// The heartbeat of a ticket: where it stands.
    pub(crate) async fn check(&self, attempts: &[Arc<Attempt>], asked: Moment) -> Vec<Result<Reply>> {
        let keep =
            |attempt: &Arc<Attempt>| self.state().keep(attempt.owner, asked).map(|place| place.entry.lease);
        let leases: Vec<i64> = attempts.iter().filter_map(keep).collect();
        let promises =
            self.keep_all_alive(leases.into_iter().filter(|lease| self.is_stale(*lease, asked))).await;
        let mut replies = Vec::with_capacity(attempts.len());
        let mut rest = VecDeque::from(chunks(attempts));
        while let Some(chunk) = rest.pop_front() {
            match self.look(chunk).await {
                Ok((standings, now)) => {
                    for promise in promises.values().filter_map(|kept| kept.as_ref().ok().copied().flatten())
                    {
                        self.state().leases.confirm(promise, now);
                    }
                    for (attempt, standing) in chunk.iter().zip(standings) {
                        replies.push(self.answer(attempt, standing, asked).await);
                    }
                }
                // What is not permitted for one name may be for another.
                Err(failure) if failure.is_definite() && chunk.len() > 1 => {
                    chunk.chunks(1).rev().for_each(|one| rest.push_front(one));
                }
                Err(failure) => {
                    let error = self.failed(failure);
                    replies.extend(chunk.iter().map(|_| Err(error.duplicate())));
                }
            }
        }
        replies
    }

    /// Whether an attempt has come after this revision, may be coming now, or has found no room and waits in this process.
    fn has_come_since(&self, owner: Owner, seen: i64, now: Moment) -> bool {
        let mut state = self.state();
        state.places.is_waiting(owner, now)
            || state.places.get(owner).is_some_and(|place| match place.entry.revision {
                Some(revision) => revision > seen,
                None => place.entry.coming > Some(now),
            })
    }

    /// Whether a lease should be kept alive before anything is promised on it.
    fn is_stale(&self, lease: i64, now: Moment) -> bool {
        self.state().leases.get(lease).is_some_and(|lease| now.since(lease.confirmed) > lease.ttl / 4)
    }

    /// Where these stand, and the term of the answer.
    pub(crate) async fn look(&self, attempts: &[Arc<Attempt>]) -> Result<(Vec<Standing>, u64), Failure> {
        let (found, mut term) = self.look_at(attempts, Look::AtTheKeyAwaited).await?;
        let unsure = attempts.iter().zip(&found).filter(|(_, standing)| standing.is_none());
        let unsure: Vec<Arc<Attempt>> = unsure.map(|(attempt, _)| attempt.clone()).collect();
        let mut again = Vec::new();
        if !unsure.is_empty() {
            (again, term) = self.look_at(&unsure, Look::AtTheLine).await?;
        }
        let mut again = again.into_iter().flatten();
        Ok((found.into_iter().filter_map(|standing| standing.or_else(|| again.next())).collect(), term))
    }

    /// Where these stand, as far as this look can tell, and the term of the answer.
    async fn look_at(
        &self,
        attempts: &[Arc<Attempt>],
        look: Look,
    ) -> Result<(Vec<Option<Standing>>, u64), Failure> {
        let shortest = attempts.iter().map(|attempt| attempt.ttl).min().unwrap_or_default();
        let patience = Self::patience(shortest);
        let known: Vec<Known> = {
            let state = self.state();
            attempts.iter().map(|attempt| Known::of(&state, attempt.owner, look)).collect()
        };
        // Once: it may hold one of several by the time of the answer.
        let wants: Vec<&[Want]> = attempts.iter().map(|attempt| self.in_line(attempt)).collect();
        let parts = attempts
            .iter()
            .zip(&wants)
            .zip(&known)
            .flat_map(|((attempt, wants), known)| self.parts(attempt.owner, wants, known));
        let answer = self.link.txn(all(parts.collect()), patience).await?;
        let seen = answer.header.map_or(0, |header| header.revision);
        let mut looks = answer.responses.iter();
        let mut standings = Vec::with_capacity(attempts.len());
        let state = self.state();
        for ((attempt, wants), Known { leases, revision, awaited }) in attempts.iter().zip(wants).zip(known) {
            let keys: Vec<&[KeyValue]> = (0..wants.len()).map(|_| next(&mut looks)).collect();
            let lines: Vec<&[KeyValue]> = (0..wants.len()).map(|_| next(&mut looks)).collect();
            let first = keys.first().and_then(|keys| keys.first()).map(|key| key.create_revision);
            // On a lease that was given up nothing is ours any more, although it may still be there.
            // Its keys may have been moved while the look was under way.
            let since = Known::of(&state, attempt.owner, look).leases;
            let is_ours = |key: &KeyValue| {
                let hangs_on = |leases: [i64; 2]| leases.contains(&key.lease);
                (leases.is_none_or(hangs_on) || since.is_some_and(hangs_on))
                    && (revision.is_some() || Self::is_own(key, attempt.owner))
            };
            let is_whole = |keys: &&[KeyValue]| {
                keys.first().is_some_and(|key| Some(key.create_revision) == first && is_ours(key))
            };
            standings.push(match first {
                Some(made) if keys.iter().all(is_whole) && revision.is_none_or(|it| it == made) => {
                    let lines = wants.iter().zip(lines).map(|(want, line)| self.before(want, line, made));
                    let lines: Vec<Before> = lines.collect();
                    // If the key is gone, another may be before it.
                    let is_unsure = awaited.is_some() && lines.contains(&Before::Nobody);
                    (!is_unsure).then_some(Standing::There { revision: made, seen, lines })
                }
                _ => {
                    let is_some_left = keys.iter().any(|keys| !keys.is_empty());
                    Some(Standing::Gone { is_some_left, seen, looked: wants.len() })
                }
            });
        }
        Ok((standings, term(&answer)))
    }

    /// The wants that an attempt has keys for.
    fn in_line<'a>(&self, attempt: &'a Attempt) -> &'a [Want] {
        let held_one = self.state().places.get(attempt.owner).and_then(|place| place.entry.held);
        held_one.map_or(&attempt.wants, |chosen| held(attempt, chosen))
    }

    fn parts(&self, owner: Owner, wants: &[Want], known: &Known) -> Vec<RequestOp> {
        let revision = known.revision;
        let own = wants.iter().map(|want| {
            let seat = self.seat(want, owner);
            get(if revision.is_some() { mere(seat) } else { one(seat) })
        });
        let lines = wants.iter().map(|want| {
            if let Some(key) = &known.awaited {
                return get(mere(key.clone()));
            }
            let line = self.keys.ahead_of(want);
            get(match (want.mode, revision) {
                (Mode::Slots { .. }, Some(revision)) => {
                    RangeRequest { keys_only: true, max_create_revision: revision, ..in_order(line) }
                }
                (_, Some(revision)) => RangeRequest { max_create_revision: revision - 1, ..latest(line, 1) },
                (_, None) => RangeRequest { keys_only: true, ..in_order(line) },
            })
        });
        own.chain(lines).collect()
    }

    async fn answer(&self, attempt: &Arc<Attempt>, standing: Standing, asked: Moment) -> Result<Reply> {
        match standing {
            // Another flight brings it just now, or has brought it after this look, or has made its choice meanwhile.
            Standing::Gone { seen, looked, .. }
                if self.has_come_since(attempt.owner, seen, asked)
                    || self.in_line(attempt).len() < looked =>
            {
                Ok(Reply::Waiting { turn_in: attempt.ttl })
            }
            Standing::Gone { is_some_left, .. } => {
                let was_there = self.state().places.get(attempt.owner).is_some();
                if is_some_left || (was_there && attempt.wants.len() > 1) {
                    // Only then: whatever is forgotten nobody would ever take away.
                    self.clear(attempt).await?;
                }
                self.forget(attempt.owner);
                Ok(Reply::NoTicket)
            }
            Standing::There { revision, seen, lines } => {
                let reply = self.stands(attempt, &lines, revision, seen, asked);
                self.settled(attempt, reply).await
            }
        }
    }

    /// Whoever got one of several leaves the other lines before it is told; and lets those in who may share.
    pub(crate) async fn settled(&self, attempt: &Arc<Attempt>, reply: Reply) -> Result<Reply> {
        let Reply::Granted(award) = &reply else { return Ok(reply) };
        if attempt.rule == Rule::Any && attempt.wants.len() > 1 {
            let others = attempt.wants.iter().enumerate().filter(|(at, _)| *at != award.chosen);
            let made = i64::try_from(award.token.get()).unwrap_or(0);
            let others = all_gone(others.map(|(_, want)| (self.seat(want, attempt.owner), made)));
            let left = self.link.txn(others, Self::patience(attempt.ttl)).await;
            left.map_err(|failure| self.half_done(failure))?;
        }
        for want in held(attempt, award.chosen).iter().filter(|want| want.mode != Mode::Exclusive) {
            self.wake_line(&want.name);
        }
        Ok(reply)
    }
}

/// What the next look found.
pub(crate) fn next<'a>(looks: &mut impl Iterator<Item = &'a ResponseOp>) -> &'a [KeyValue] {
    looks.next().map_or(&[], found)
}

/// Attempts that are looked at together.
fn chunks(attempts: &[Arc<Attempt>]) -> Vec<&[Arc<Attempt>]> {
    let mut chunks = Vec::new();
    let (mut from, mut parts) = (0, 0);
    for (at, attempt) in attempts.iter().enumerate() {
        let needs = attempt.wants.len() * 2;
        if at > from && parts + needs > MOST_PARTS {
            chunks.push(&attempts[from..at]);
            (from, parts) = (at, 0);
        }
        parts += needs;
    }
    if from < attempts.len() {
        chunks.push(&attempts[from..]);
    }
    chunks
}
