//! Keeping what is held and what waits: renewals and checks, those of one session together.

use std::sync::Arc;

use fencepost_core::backend::{Queue, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Award, Error, Grant, Result};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, MultiWriteError};

use crate::acquire::{acquire, settle};
use crate::nodes::{lines, portions};
use crate::queue::{Verdict, verdict};
use crate::session::Session;
use crate::shared::Shared;
use crate::tender;
use crate::watching;

/// A session that was proven within this part of a lease need not be proven again for whoever has come to its turn.
const RECENT: u32 = 4;

/// What is to be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beat<'a> {
    Renew(&'a Grant),
    Check(&'a Arc<Attempt>),
}

impl Beat<'_> {
    fn attempt(&self) -> &Arc<Attempt> {
        match self {
            Self::Renew(grant) => &grant.attempt,
            Self::Check(attempt) => attempt,
        }
    }
}

/// What there is to do for one of them.
enum Plan {
    Answer(Reply),
    /// Its nodes must be proven.
    Prove(Arc<Session>, Vec<String>),
    /// The session was proven at this moment, which is recent enough to go by what is read.
    Look(Arc<Session>, Vec<String>, Moment),
    /// It has no nodes yet, or it is not known whether it has.
    Acquire,
    /// It has none; whether it could have some is to be found out before it is told.
    NoTicket,
}

/// The heartbeat of one ticket.
pub(crate) async fn check(shared: &Arc<Shared>, attempt: &Arc<Attempt>) -> Result<Reply> {
    let mut replies = beat(shared, &[Beat::Check(attempt)]).await;
    replies.pop().unwrap_or_else(|| Err(shared.vanished()))
}

/// Keeps all of these; answers come in their order.
pub(crate) async fn beat(shared: &Arc<Shared>, beats: &[Beat<'_>]) -> Vec<Result<Reply>> {
    let plans: Vec<Plan> = beats.iter().map(|beat| plan(shared, *beat)).collect();
    let mut groups: Vec<(Arc<Session>, Vec<usize>)> = Vec::new();
    for (at, plan) in plans.iter().enumerate() {
        if let Plan::Prove(session, _) = plan {
            match groups.iter_mut().find(|(there, _)| Arc::ptr_eq(there, session)) {
                Some((_, members)) => members.push(at),
                None => groups.push((session.clone(), vec![at])),
            }
        }
    }
    let proofs = groups.iter().map(|(session, members)| {
        let nodes: Vec<&[String]> = members
            .iter()
            .map(|at| match &plans[*at] {
                Plan::Prove(_, nodes) => nodes.as_slice(),
                _ => &[],
            })
            .collect();
        let members: Vec<(usize, Beat<'_>)> = members.iter().map(|at| (*at, beats[*at])).collect();
        keep_together(shared, session, members, nodes)
    });
    let alone = plans.iter().zip(beats).enumerate().filter(|(_, (plan, _))| !matches!(plan, Plan::Prove(..)));
    let alone = alone.map(async |(at, (plan, beat))| {
        let attempt = beat.attempt();
        let reply = match plan {
            Plan::Answer(reply) => Ok(reply.clone()),
            // Whoever is told asks anew at once, and that should not fail.
            Plan::Look(session, nodes, proven) => look(shared, session, attempt, nodes, *proven).await,
            Plan::NoTicket => shared.session(attempt.ttl).await.map(|_| Reply::NoTicket),
            // A box, because an acquire that finds a place checks it.
            Plan::Acquire | Plan::Prove(..) => Box::pin(acquire(shared, attempt, Queue::Join)).await,
        };
        (at, reply)
    });
    let (proven, alone) = futures_util::join!(join_all(proofs), join_all(alone));
    let mut replies: Vec<(usize, Result<Reply>)> = proven.into_iter().flatten().chain(alone).collect();
    replies.sort_by_key(|(at, _)| *at);
    replies.into_iter().map(|(_, reply)| reply).collect()
}

fn plan(shared: &Shared, beat: Beat<'_>) -> Plan {
    let now = shared.clock.now();
    let owner = beat.attempt().owner;
    let mut book = shared.book();
    // It is kept when it is asked for and not when that has succeeded: what is under way must not lapse.
    if let Some(entry) = book.keep(owner, now) {
        let (session, nodes) = (entry.session.clone(), entry.nodes.clone());
        let proven = session.proven();
        return match beat {
            Beat::Renew(grant) if entry.token != Some(grant.award.token.get()) => {
                Plan::Answer(Reply::NotHeld)
            }
            Beat::Check(_) if nodes.is_empty() => Plan::Acquire,
            Beat::Check(attempt) if entry.award.is_none() && proven + attempt.ttl / RECENT > now => {
                Plan::Look(session, nodes, proven)
            }
            Beat::Renew(_) | Beat::Check(_) => Plan::Prove(session, nodes),
        };
    }
    match beat {
        Beat::Renew(_) => Plan::Answer(Reply::NotHeld),
        Beat::Check(attempt) if book.places.is_waiting(owner, now) => {
            if book.places.has_room(attempt) {
                Plan::Acquire
            } else {
                Plan::Answer(Reply::Waiting { turn_in: attempt.ttl })
            }
        }
        Beat::Check(_) => Plan::NoTicket,
    }
}

/// Sees whether it is an attempt's turn, without a write: whoever is seen to be first stays it for as long as its node is
/// there, and that is for as long as its session was proven to live. The lease counts from that proof.
async fn look(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    nodes: &[String],
    proven: Moment,
) -> Result<Reply> {
    session.connected(&shared.setup, &shared.clock).await?;
    let now = shared.clock.now();
    if watching::still_waits(shared, session, attempt, nodes).await {
        return Ok(Reply::Waiting { turn_in: attempt.ttl });
    }
    let lines = lines(shared, session, attempt).await?;
    if verdict(attempt, nodes, &lines) == Verdict::Gone {
        let mut proof = keep_together(shared, session, vec![(0, Beat::Check(attempt))], vec![nodes]).await;
        return proof.pop().map_or_else(|| Err(shared.vanished()), |(_, reply)| reply);
    }
    Ok(match settle(shared, session, attempt, Queue::Join, &lines).await? {
        Reply::Granted(award) => Reply::Granted(Award { spent: now.since(proven), ..award }),
        reply => reply,
    })
}

async fn keep_together(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    members: Vec<(usize, Beat<'_>)>,
    nodes: Vec<&[String]>,
) -> Vec<(usize, Result<Reply>)> {
    if let Err(away) = session.connected(&shared.setup, &shared.clock).await {
        return members.into_iter().map(|(at, _)| (at, Err(away.duplicate()))).collect();
    }
    let request = session.send();
    let proof = prove(session, &nodes);
    // Their lines are read behind the proof, in the same flight.
    let lines = join_all(members.iter().map(async |(_, beat)| match beat {
        Beat::Renew(grant) if is_granted(shared, &grant.attempt) => None,
        Beat::Check(attempt) if watching::still_waits(shared, session, attempt, &[]).await => None,
        beat => Some(lines(shared, session, beat.attempt()).await),
    }));
    let (proof, lines) = futures_util::join!(proof, lines);
    if proof.iter().any(Result::is_ok) {
        session.prove(request);
    }
    let passed = request.sent.since(session.proven());
    let members = members.into_iter().zip(nodes).zip(proof.into_iter().zip(lines));
    let replies = members.map(async |(((at, beat), nodes), (proof, lines))| {
        let attempt = beat.attempt();
        let reply = match (proof, lines) {
            (Err(error), _) => Err(lost(shared, session, attempt, &error)),
            (Ok(false), _) => match (beat, gone(shared, attempt, nodes).await) {
                (Beat::Renew(_), true) => Ok(Reply::NotHeld),
                (Beat::Renew(_), false) => Err(shared.vanished()),
                (Beat::Check(_), true) => Ok(Reply::NoTicket),
                (Beat::Check(_), false) => Ok(Reply::Waiting { turn_in: attempt.ttl }),
            },
            (Ok(true), None) => Ok(match beat {
                Beat::Renew(_) => Reply::Renewed { ttl: attempt.ttl.saturating_sub(passed) },
                Beat::Check(_) => Reply::Waiting { turn_in: attempt.ttl },
            }),
            (Ok(true), Some(Err(error))) => Err(error),
            (Ok(true), Some(Ok(lines))) => {
                let settled = settle(shared, session, attempt, Queue::Join, &lines).await;
                match (beat, settled) {
                    // It was its turn before anybody told it.
                    (Beat::Renew(_), Ok(Reply::Granted(award))) => {
                        Ok(Reply::Renewed { ttl: award.ttl.saturating_sub(passed) })
                    }
                    (Beat::Renew(_), Ok(_)) => Ok(Reply::NotHeld),
                    (_, Ok(Reply::Granted(award))) => Ok(Reply::Granted(Award { spent: passed, ..award })),
                    (_, settled) => settled,
                }
            }
        };
        (at, reply)
    });
    join_all(replies).await
}

pub(crate) fn is_granted(shared: &Shared, attempt: &Attempt) -> bool {
    shared.book().places.get(attempt.owner).is_some_and(|place| place.entry.award.is_some())
}

fn lost(shared: &Shared, session: &Arc<Session>, attempt: &Attempt, error: &zk::Error) -> Error {
    if session.is_over() {
        shared.forget_if(attempt.owner, |entry| Arc::ptr_eq(&entry.session, session));
    }
    shared.setup.failed(error)
}

/// One of these nodes has vanished: so must the others, before anybody is told that there are none. Not if it has other nodes
/// by now, because another flight brought it anew, or lets it have one of several locks.
async fn gone(shared: &Arc<Shared>, attempt: &Attempt, nodes: &[String]) -> bool {
    {
        let now = shared.clock.now();
        let mut book = shared.book();
        let Some(place) = book.places.get_mut(attempt.owner) else { return true };
        if place.entry.coming || place.entry.choosing || place.entry.nodes != nodes {
            return false;
        }
        if attempt.wants.len() == 1 {
            shared.forget(&mut book, attempt.owner);
            return true;
        }
        place.entry.unwanted.get_or_insert(now);
    }
    // What cannot be removed now is as soon as there is a connection again.
    let _ = tender::remove(shared, attempt.owner).await;
    true
}

/// Whether the nodes of each are there. This is a write: it goes through the leader, so that a server which is cut off
/// cannot answer, and nobody is woken by it.
async fn prove(session: &Session, nodes: &[&[String]]) -> Vec<Result<bool, zk::Error>> {
    let chunks = portions(nodes, |nodes| nodes);
    let proofs: Vec<_> = chunks.iter().map(|chunk| checks(session, chunk, true)).collect();
    let mut proven = Vec::with_capacity(nodes.len());
    for (chunk, proof) in chunks.iter().zip(join_all(proofs).await) {
        match proof {
            Ok(()) => proven.extend(chunk.iter().map(|_| Ok(true))),
            Err(MultiWriteError::RequestFailed { source }) => {
                proven.extend(chunk.iter().map(|_| Err(source.clone())));
            }
            // One of them is not there: each is asked for alone.
            Err(MultiWriteError::OperationFailed { .. }) => {
                let alone: Vec<_> = chunk.iter().map(|nodes| checks(session, &[*nodes], false)).collect();
                proven.extend(join_all(alone).await.into_iter().map(|proof| match proof {
                    Ok(()) => Ok(true),
                    Err(MultiWriteError::OperationFailed { source: zk::Error::NoNode, .. }) => Ok(false),
                    Err(error) => Err(error.into()),
                }));
            }
        }
    }
    proven
}

/// Asks for all of these nodes at once, and writes down that the session was renewed.
fn checks<'a>(
    session: &'a Session,
    nodes: &[&[String]],
    stamped: bool,
) -> impl Future<Output = Result<(), MultiWriteError>> + use<'a> {
    let mut writer = session.client.new_multi_writer();
    let mut built = Ok(());
    for node in nodes.iter().copied().flatten().filter(|node| !node.is_empty()) {
        built = built.and_then(|()| writer.add_check_version(node, -1));
    }
    if stamped {
        built = built.and_then(|()| writer.add_set_data(&session.node, b"", None));
    }
    let sent = built.map(|()| writer.commit());
    async move {
        sent.map_err(|source| MultiWriteError::RequestFailed { source })?.await?;
        Ok(())
    }
}
