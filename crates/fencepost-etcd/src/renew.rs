//! Renewals: the leases are kept alive, and then the keys are proven to be there in the same term.

use fencepost_core::backend::Reply;
use fencepost_core::clock::Moment;
use fencepost_core::{Error, ErrorKind, Grant, Result};

use crate::enter::{MOST_PARTS, revision_of, term};
use crate::home::Home;
use crate::leases::Promise;
use crate::look::next;
use crate::request::{all, get, mere};

impl Home {
    /// Renews: the leases are kept alive, and then the keys are proven to be there in the same term.
    pub(crate) async fn renew(&self, grants: &[&Grant], asked: Moment) -> Vec<Result<Reply>> {
        let keep =
            |grant: &&Grant| self.state().keep(grant.attempt.owner, asked).map(|place| place.entry.lease);
        let on: Vec<Option<i64>> = grants.iter().map(keep).collect();
        let leases = self.keep_all_alive(on.iter().copied().flatten()).await;
        let mut replies: Vec<Option<Result<Reply>>> = Vec::new();
        let mut looked: Vec<(usize, &Grant, Promise)> = Vec::new();
        for (at, (grant, lease)) in grants.iter().zip(on).enumerate() {
            let kept = lease.map_or(&Ok(None), |lease| &leases[&lease]);
            replies.push(match kept {
                Ok(Some(promise)) => {
                    looked.push((at, grant, *promise));
                    None
                }
                Ok(None) if self.has_moved(grant, lease) => Some(Err(self.new_leader())),
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
        let parts = parts.map(|(want, owner)| get(mere(self.seat(&want, owner))));
        let shortest = grants.iter().map(|(_, grant, _)| grant.award.ttl).min().unwrap_or_default();
        let answer = match self.link.txn(all(parts.collect()), Self::patience(shortest)).await {
            Ok(answer) => answer,
            // What is not permitted for one name may be for another.
            Err(failure) if failure.is_definite() && grants.len() > 1 => {
                let mut replies = Vec::with_capacity(grants.len());
                for one in grants.chunks(1) {
                    replies.extend(Box::pin(self.prove(one)).await);
                }
                return replies;
            }
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
                let key = next(&mut looks).first();
                is_held &= key.is_some_and(|key| key.create_revision == made && key.lease == promise.lease);
            }
            if !is_held && self.has_moved(grant, Some(promise.lease)) {
                replies.push(Err(self.new_leader()));
                continue;
            }
            if !is_held {
                match grant.held() {
                    [_] => self.forget_grant(grant),
                    // Of several names some may be left.
                    _ if !self.has_come_again(grant) => self.end(&grant.attempt).await,
                    _ => {}
                }
                replies.push(Ok(Reply::NotHeld));
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

    /// Returns whether another flight has moved the keys of this grant from this lease to another meanwhile.
    fn has_moved(&self, grant: &Grant, lease: Option<i64>) -> bool {
        let state = self.state();
        let entry = state.places.get(grant.attempt.owner).map(|place| &place.entry);
        entry.is_some_and(|it| it.revision == Some(revision_of(grant)) && Some(it.lease) != lease)
    }

    fn new_leader(&self) -> Error {
        let message = format!("{} has changed its leader while a lease was being renewed", self.location);
        Error::new(ErrorKind::Unreachable, message)
    }
}
