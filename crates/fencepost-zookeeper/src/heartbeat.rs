//! Keeping what is held and what waits: renewals and checks, those of one session together.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Award, Grant, Result};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, MultiWriteError};

use crate::acquire::{acquire, settle, waiting};
use crate::flight::{Answers, by_session};
use crate::nodes::{lines, portions};
use crate::orphans::discard;
use crate::session::Session;
use crate::shared::Shared;
use crate::watching;

/// A session that was proven within this part of a lease need not be proven again for an attempt that has come to its turn.
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
    Prove(Arc<Session>, Proof),
    /// The session was proven at this moment, which is recent enough to go by what is read.
    Look(Arc<Session>, Vec<String>, Moment),
    /// It has no nodes yet, or it is not known whether it has.
    Acquire,
    /// It has none.
    NoTicket,
}

/// The nodes that must be proven.
struct Proof {
    nodes: Vec<String>,
    /// What it was awarded, if it was.
    award: Option<Award>,
}

/// The heartbeat of one ticket.
pub(crate) async fn check(shared: &Arc<Shared>, attempt: &Arc<Attempt>) -> Result<Reply> {
    let mut replies = beat(shared, vec![(0, Beat::Check(attempt))]).await;
    replies.pop().map_or_else(|| Err(shared.vanished()), |(_, reply)| reply)
}

/// Keeps all of these.
pub(crate) async fn beat(shared: &Arc<Shared>, beats: Vec<(usize, Beat<'_>)>) -> Answers {
    let (mut proofs, mut alone) = (Vec::new(), Vec::new());
    for (at, beat) in beats {
        match plan(shared, beat) {
            Plan::Prove(session, proof) => proofs.push((session, (at, beat, proof))),
            plan => alone.push((at, beat, plan)),
        }
    }
    let proofs = by_session(proofs).into_iter();
    let proofs = proofs.map(|(session, members)| keep_together(shared, session, members));
    let alone = alone.into_iter().map(async |(at, beat, plan)| (at, keep_alone(shared, beat, plan).await));
    let (proven, alone) = futures_util::join!(join_all(proofs), join_all(alone));
    proven.into_iter().flatten().chain(alone).collect()
}

fn plan(shared: &Shared, beat: Beat<'_>) -> Plan {
    let now = shared.clock.now();
    let owner = beat.attempt().owner;
    let mut registry = shared.registry();
    // It is kept when it is asked for and not when that has succeeded: what is in flight must not lapse.
    if let Some(entry) = registry.keep(owner, now) {
        let (session, award) = (entry.session.clone(), entry.award);
        let proven = session.proven();
        return match (beat, &entry.nodes) {
            (Beat::Check(_), None) => Plan::Acquire,
            (Beat::Check(attempt), Some(nodes)) if award.is_none() && proven + attempt.ttl / RECENT > now => {
                Plan::Look(session, nodes.paths.clone(), proven)
            }
            (Beat::Renew(grant), Some(nodes)) if nodes.token != grant.award.token.get() => {
                Plan::Answer(Reply::NotHeld)
            }
            (_, Some(nodes)) => Plan::Prove(session, Proof { nodes: nodes.paths.clone(), award }),
            (Beat::Renew(_), None) => Plan::Answer(Reply::NotHeld),
        };
    }
    match beat {
        Beat::Renew(_) => Plan::Answer(Reply::NotHeld),
        Beat::Check(attempt) if registry.places.keep_local_waiter(owner, now) => {
            if registry.places.may_enqueue(attempt) { Plan::Acquire } else { Plan::Answer(waiting(attempt)) }
        }
        Beat::Check(_) => Plan::NoTicket,
    }
}

async fn keep_alone(shared: &Arc<Shared>, beat: Beat<'_>, plan: Plan) -> Result<Reply> {
    let attempt = beat.attempt();
    match plan {
        Plan::Answer(reply) => Ok(reply),
        Plan::Look(session, nodes, proven) => look(shared, &session, attempt, &nodes, proven).await,
        // The engine asks again at once, and that should not fail: so there is a session before it is told.
        Plan::NoTicket => shared.session(attempt.ttl).await.map(|_| Reply::NoTicket),
        // A box, because an acquire that finds a place checks it.
        Plan::Acquire | Plan::Prove(..) => Box::pin(acquire(shared, attempt, OnBusy::Wait)).await,
    }
}

/// Sees whether it is an attempt's turn, without a write: one that is seen to be first stays it for as long as its node is
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
        return Ok(waiting(attempt));
    }
    let lines = lines(shared, session, attempt).await?;
    settle(shared, session, attempt, &lines).await.map(|reply| counted(reply, now.since(proven)))
}

/// Returns the reply with how much of the lease has passed, if it is a grant.
fn counted(reply: Reply, elapsed: Duration) -> Reply {
    match reply {
        Reply::Granted(award) => Reply::Granted(Award { elapsed, ..award }),
        reply => reply,
    }
}

async fn keep_together(
    shared: &Arc<Shared>,
    session: Arc<Session>,
    members: Vec<(usize, Beat<'_>, Proof)>,
) -> Answers {
    if let Err(away) = session.connected(&shared.setup, &shared.clock).await {
        return members.into_iter().map(|(at, ..)| (at, Err(away.clone()))).collect();
    }
    let session = &session;
    let request = session.send();
    let nodes: Vec<&[String]> = members.iter().map(|(_, _, proof)| proof.nodes.as_slice()).collect();
    // The lines are read behind the proof, in the same flight.
    let lines = join_all(members.iter().map(async |(_, beat, proof)| match beat {
        Beat::Check(attempt) if proof.award.is_none() => {
            let still_waits = watching::still_waits(shared, session, attempt, &[]).await;
            if still_waits { None } else { Some(lines(shared, session, attempt).await) }
        }
        _ => None,
    }));
    let (proven, lines) = futures_util::join!(prove(session, &nodes), lines);
    if proven.iter().any(Result::is_ok) {
        session.prove(request);
    }
    let passed = request.sent.since(session.proven());
    let replies = members.iter().zip(proven.into_iter().zip(lines));
    let replies = replies.map(async |((at, beat, proof), (proven, lines))| {
        let attempt = beat.attempt();
        let reply = match (proven, beat, lines) {
            (Err(error), ..) => Err(shared.setup.failed(&error)),
            (Ok(false), beat, _) => {
                // One of its nodes is gone: so must be the others before it is told. The session's task deletes what stays.
                let _ = discard(shared, attempt.owner).await;
                Ok(if matches!(beat, Beat::Renew(_)) { Reply::NotHeld } else { Reply::NoTicket })
            }
            (Ok(true), Beat::Renew(_), _) => Ok(Reply::Renewed { ttl: attempt.ttl.saturating_sub(passed) }),
            (Ok(true), Beat::Check(_), None) => {
                Ok(proof.award.map_or_else(|| waiting(attempt), Reply::Granted))
            }
            (Ok(true), Beat::Check(_), Some(Err(error))) => Err(error),
            (Ok(true), Beat::Check(_), Some(Ok(lines))) => settle(shared, session, attempt, &lines).await,
        };
        (*at, reply.map(|reply| counted(reply, passed)))
    });
    join_all(replies).await
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
                let alone: Vec<_> = chunk.chunks(1).map(|nodes| checks(session, nodes, false)).collect();
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
    nodes: &'a [&'a [String]],
    stamped: bool,
) -> impl Future<Output = Result<(), MultiWriteError>> + 'a {
    session.transact(move |writer| {
        for node in nodes.iter().copied().flatten().filter(|node| !node.is_empty()) {
            writer.add_check_version(node, -1)?;
        }
        if stamped { writer.add_set_data(&session.node, b"", None) } else { Ok(()) }
    })
}
