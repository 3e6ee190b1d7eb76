//! Looking where our own attempts stand: the heartbeat of a ticket, the renewal of a grant, the leaving of a line. Every
//! look is linearizable, and proves that our own keys are there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Reply;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Grant, Mode, Owner, Result, Rule, Want};

use crate::enter::{Before, MOST_PARTS, revision_of, term};
use crate::error::Failure;
use crate::home::Home;
use crate::leases::{Promise, seconds};
use crate::proto::{KeyValue, RangeRequest, RequestOp, ResponseOp};
use crate::request::{absent, all, delete, found, get, in_order, latest, mere, put};
use crate::watching::held;

/// How often a leaving looks again because its keys came meanwhile.
const LOOKS: usize = 3;

/// Where an attempt stands.
enum Standing {
    /// None of its keys is there, or one is missing.
    Gone,
    /// Its keys were made by `revision`; what is before it in each line, as of `seen`.
    There { revision: i64, seen: i64, lines: Vec<Before> },
}

impl Home {
    /// The heartbeat of a ticket: where it stands.
    pub(crate) async fn check(&self, attempts: &[Arc<Attempt>], asked: Moment) -> Vec<Result<Reply>> {
        let mut promises = HashMap::new();
        for attempt in attempts {
            let lease = self.state().places.keep(attempt.owner, asked).map(|place| place.entry.lease);
            if let Some(lease) =
                lease.filter(|lease| self.is_stale(*lease, asked) && !promises.contains_key(lease))
            {
                promises.insert(lease, self.keep_alive(lease).await);
            }
        }
        let mut replies = Vec::with_capacity(attempts.len());
        for chunk in self.chunks(attempts) {
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
                Err(error) => replies.extend(chunk.iter().map(|_| Err(error.duplicate()))),
            }
        }
        replies
    }

    /// Whether a lease should be kept alive before anything is promised on it.
    fn is_stale(&self, lease: i64, now: Moment) -> bool {
        self.state().leases.get(lease).is_some_and(|lease| now.since(lease.confirmed) > lease.ttl / 4)
    }

    /// Attempts that are looked at together.
    fn chunks<'a>(&self, attempts: &'a [Arc<Attempt>]) -> Vec<&'a [Arc<Attempt>]> {
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

    /// Where these stand, and the term of whoever says so.
    async fn look(&self, attempts: &[Arc<Attempt>]) -> Result<(Vec<Standing>, u64)> {
        let shortest = attempts.iter().map(|attempt| attempt.ttl).min().unwrap_or_default();
        let patience = self.patience(shortest);
        let known: Vec<Option<i64>> = {
            let state = self.state();
            attempts.iter().map(|attempt| state.places.get(attempt.owner)?.entry.revision).collect()
        };
        let parts =
            attempts.iter().zip(&known).flat_map(|(attempt, revision)| self.parts(attempt, *revision));
        let answer = self.link.txn(all(parts.collect()), patience).await;
        let answer = answer.map_err(|failure| self.failed(failure))?;
        let seen = answer.header.map_or(0, |header| header.revision);
        let mut looks = answer.responses.iter();
        let mut standings = Vec::with_capacity(attempts.len());
        for (attempt, revision) in attempts.iter().zip(known) {
            let wants = self.in_line(attempt);
            let keys: Vec<&[KeyValue]> = (0..wants.len()).map(|_| next(&mut looks)).collect();
            let lines: Vec<&[KeyValue]> = (0..wants.len()).map(|_| next(&mut looks)).collect();
            let first = keys.first().and_then(|keys| keys.first()).map(|key| key.create_revision);
            let is_whole = |keys: &[KeyValue]| keys.first().map(|key| key.create_revision) == first;
            standings.push(match first {
                Some(made)
                    if keys.iter().all(|keys| is_whole(keys)) && revision.is_none_or(|it| it == made) =>
                {
                    let lines = wants.iter().zip(lines).map(|(want, line)| self.before(want, line, made));
                    Standing::There { revision: made, seen, lines: lines.collect() }
                }
                _ => Standing::Gone,
            });
        }
        Ok((standings, term(&answer)))
    }

    /// The wants that an attempt has keys for.
    fn in_line<'a>(&self, attempt: &'a Attempt) -> &'a [Want] {
        let held_one = self.state().places.get(attempt.owner).and_then(|place| place.entry.held);
        held_one.map_or(&attempt.wants, |chosen| held(attempt, chosen))
    }

    fn parts(&self, attempt: &Attempt, revision: Option<i64>) -> Vec<RequestOp> {
        let wants = self.in_line(attempt);
        let own = wants.iter().map(|want| get(mere(self.keys.seat(want, attempt.owner))));
        let lines = wants.iter().map(|want| {
            let line = self.keys.line(&want.name);
            get(match (want.mode, revision) {
                (Mode::Exclusive, Some(revision)) => {
                    RangeRequest { max_create_revision: revision - 1, ..latest(line, 1) }
                }
                (_, Some(revision)) => {
                    RangeRequest { keys_only: true, max_create_revision: revision, ..in_order(line) }
                }
                (_, None) => RangeRequest { keys_only: true, ..in_order(line) },
            })
        });
        own.chain(lines).collect()
    }

    async fn answer(&self, attempt: &Arc<Attempt>, standing: Standing, asked: Moment) -> Result<Reply> {
        match standing {
            Standing::Gone => {
                let was_there = self.forget(attempt.owner).is_some();
                if was_there && attempt.wants.len() > 1 {
                    self.clear(attempt).await?;
                }
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
            let others = others.map(|(_, want)| delete(self.keys.seat(want, attempt.owner)));
            let left = self.link.txn(all(others.collect()), self.patience(attempt.ttl)).await;
            left.map_err(|failure| self.failed(failure))?;
        }
        for want in held(attempt, award.chosen).iter().filter(|want| want.mode != Mode::Exclusive) {
            self.wake_line(&want.name);
        }
        Ok(reply)
    }

    /// Renews: the leases are kept alive, and then the keys are proven to be there in the same term.
    pub(crate) async fn renew(&self, grants: &[&Grant], asked: Moment) -> Vec<Result<Reply>> {
        let mut leases: HashMap<i64, Result<Option<Promise>>> = HashMap::new();
        let mut on: Vec<Option<i64>> = Vec::with_capacity(grants.len());
        for grant in grants {
            let place = self.state().places.keep(grant.attempt.owner, asked).map(|place| place.entry.lease);
            on.push(place);
            if let Some(lease) = place.filter(|lease| !leases.contains_key(lease)) {
                leases.insert(lease, self.keep_alive(lease).await);
            }
        }
        let mut replies: Vec<Option<Result<Reply>>> = Vec::new();
        let mut looked: Vec<(usize, &Grant, Promise)> = Vec::new();
        for (at, (grant, lease)) in grants.iter().zip(on).enumerate() {
            let kept = lease.map_or(&Ok(None), |lease| &leases[&lease]);
            replies.push(match kept {
                Ok(Some(promise)) => {
                    looked.push((at, grant, *promise));
                    None
                }
                Ok(None) => Some(Ok(Reply::NotHeld)),
                Err(error) => Some(Err(error.duplicate())),
            });
        }
        let mut rest = looked.as_slice();
        while let Some((_, first, _)) = rest.first() {
            let mut parts = first.held().len();
            let more = rest[1..].iter().take_while(|(_, grant, _)| {
                parts += grant.held().len();
                parts <= MOST_PARTS
            });
            let (chunk, later) = rest.split_at(1 + more.count());
            for ((at, ..), reply) in chunk.iter().zip(self.prove(chunk).await) {
                replies[*at] = Some(reply);
            }
            rest = later;
        }
        replies.into_iter().map(|reply| reply.unwrap_or(Ok(Reply::NotHeld))).collect()
    }

    /// Proves that the keys of these grants are there, in the term in which their leases were kept alive.
    async fn prove(&self, grants: &[(usize, &Grant, Promise)]) -> Vec<Result<Reply>> {
        let seats = |grant: &Grant| {
            let owner = grant.attempt.owner;
            grant.held().iter().map(move |want| (want.clone(), owner)).collect::<Vec<_>>()
        };
        let parts = grants.iter().flat_map(|(_, grant, _)| seats(grant));
        let parts = parts.map(|(want, owner)| get(mere(self.keys.seat(&want, owner))));
        let shortest = grants.iter().map(|(_, grant, _)| grant.award.ttl).min().unwrap_or_default();
        let answer = match self.link.txn(all(parts.collect()), self.patience(shortest)).await {
            Ok(answer) => answer,
            Err(failure) => {
                let error = self.failed(failure);
                return grants.iter().map(|_| Err(error.duplicate())).collect();
            }
        };
        let now = term(&answer);
        let mut looks = answer.responses.iter();
        let mut replies = Vec::with_capacity(grants.len());
        for (_, grant, promise) in grants {
            let made = revision_of(grant);
            let mut is_held = true;
            for _ in grant.held() {
                is_held &= next(&mut looks).first().is_some_and(|key| key.create_revision == made);
            }
            if !is_held {
                // Of several names some may be left.
                self.forget_grant(grant);
                let cleared = if grant.held().len() > 1 { self.clear(&grant.attempt).await } else { Ok(()) };
                replies.push(cleared.map(|()| Reply::NotHeld));
                continue;
            }
            let mut state = self.state();
            let is_kept = state.leases.confirm(*promise, now);
            let lease = state.leases.get(promise.lease);
            replies.push(match lease.filter(|_| is_kept) {
                Some(lease) => Ok(Reply::Renewed { ttl: lease.ttl }),
                None => Err(self.new_leader()),
            });
        }
        replies
    }

    fn new_leader(&self) -> fencepost_core::Error {
        let message = format!("{} has changed its leader while a lease was being renewed", self.location);
        fencepost_core::Error::new(fencepost_core::ErrorKind::Unreachable, message)
    }

    /// Leaves the line, or defeats an acquire that may still arrive.
    pub(crate) async fn leave(&self, attempt: &Arc<Attempt>, asked: Moment) -> Result<Reply> {
        let owner = attempt.owner;
        let is_known = {
            let mut state = self.state();
            if state.places.stop_waiting(owner) {
                self.wake_next(&state, attempt);
                return Ok(Reply::Left);
            }
            state.departed.insert(owner, asked + attempt.ttl);
            state.places.get(owner).map(|place| place.entry.revision.is_some())
        };
        let Some(is_sure) = is_known else {
            return Ok(Reply::Left);
        };
        for _ in 0..LOOKS {
            let (standings, _) = self.look(std::slice::from_ref(attempt)).await?;
            for standing in standings {
                match standing {
                    Standing::There { revision, seen, lines } => {
                        if let reply @ Reply::Granted(_) = self.stands(attempt, &lines, revision, seen, asked)
                        {
                            if let Reply::Granted(award) = self.settled(attempt, reply).await? {
                                self.state().departed.remove(&owner);
                                return Ok(Reply::HadBeenGranted(award));
                            }
                        }
                        self.clear(attempt).await?;
                        self.forget(owner);
                        return Ok(Reply::Left);
                    }
                    Standing::Gone if is_sure => {
                        self.clear(attempt).await?;
                        self.forget(owner);
                        return Ok(Reply::Left);
                    }
                    Standing::Gone => {
                        if self.defeat(attempt).await? {
                            self.forget(owner);
                            return Ok(Reply::Left);
                        }
                    }
                }
            }
        }
        let message = format!("the keys of an attempt that is to leave {} come and go", self.location);
        Err(fencepost_core::Error::new(fencepost_core::ErrorKind::OutcomeUnknown, message))
    }

    /// Remembers in the storage that an owner has left, so that what it has sent does nothing. Not if it has come meanwhile.
    async fn defeat(&self, attempt: &Attempt) -> Result<bool> {
        let patience = self.patience(attempt.ttl);
        let lasting = seconds(attempt.ttl * 2);
        let lease =
            self.link.lease_grant(lasting, 0, patience).await.map_err(|failure| self.failed(failure))?;
        let left = self.keys.left(attempt.owner);
        let mut request = all(vec![put(left, Vec::new(), lease.id)]);
        let seats = attempt.wants.iter().map(|want| absent(self.keys.seat(want, attempt.owner)));
        request.compare = seats.collect();
        let answer = self.link.txn(request, patience).await.map_err(|failure| self.failed(failure))?;
        Ok(answer.succeeded)
    }

    /// Takes away what nobody has cared for during a ttl. If that fails for another ttl although the lease lives, the lease is
    /// given up with everything on it.
    pub(crate) async fn sweep(&self, now: Moment) {
        let lapsed: Vec<(Owner, Arc<Attempt>, i64, Moment)> = {
            let mut state = self.state();
            if state.swept.is_some_and(|swept| now.since(swept) < SWEEP) {
                return;
            }
            state.swept = Some(now);
            state.departed.retain(|_, until| *until > now);
            let lapsed = state.places.lapsed(now);
            let places = lapsed.into_iter().filter_map(|owner| Some((owner, state.places.get(owner)?)));
            places
                .map(|(owner, place)| (owner, place.attempt.clone(), place.entry.lease, place.kept))
                .collect()
        };
        for (owner, attempt, lease, kept) in lapsed {
            match self.clear(&attempt).await {
                Ok(()) => drop(self.forget(owner)),
                Err(_) if kept + attempt.ttl * 2 < now => {
                    self.lose_lease(lease, fencepost_core::LostReason::Abandoned);
                }
                Err(_) => {}
            }
        }
    }

    /// Whether something is still there that nobody knows, for those who give up a lease.
    pub(crate) async fn revoke_all(&self) {
        let leases = self.state().leases.ids();
        for id in leases {
            match self.link.lease_revoke(id, Duration::from_secs(1)).await {
                Ok(_) | Err(Failure::NoLease) => {}
                // It ends by itself.
                Err(Failure::Failed(_)) => return,
            }
        }
    }
}

/// How often somebody looks for what nobody cares for.
const SWEEP: Duration = Duration::from_millis(100);

fn next<'a>(looks: &mut impl Iterator<Item = &'a ResponseOp>) -> &'a [KeyValue] {
    looks.next().map_or(&[], found)
}
