//! Keeping what is held and what waits: renewals and checks, those of one session together.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Award, Grant, Result};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, MultiWriteError};

use crate::acquire::{acquire, decide, waiting_reply};
use crate::flight::{Replies, group_by_session};
use crate::nodes::{read_queues, split_by_size};
use crate::orphans::discard_entry;
use crate::session::Session;
use crate::state::ClientState;
use crate::watches;

/// A session that was verified within this part of a lease need not be verified again for an attempt that has come to its turn.
const RECENT_PART: u32 = 4;

/// What is to be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Renewal<'a> {
    Grant(&'a Grant),
    Ticket(&'a Arc<Attempt>),
}

impl Renewal<'_> {
    fn attempt(&self) -> &Arc<Attempt> {
        match self {
            Self::Grant(grant) => &grant.attempt,
            Self::Ticket(attempt) => attempt,
        }
    }
}

/// What there is to do for one of them.
enum Plan {
    Reply(Reply),
    /// Its nodes must be verified.
    Verify(Arc<Session>, OwnNodes),
    /// The session was verified at this moment, which is recent enough to go by what is read.
    Read(Arc<Session>, Vec<String>, Moment),
    /// It has no nodes yet, or it is not known whether it has.
    Acquire,
    /// It has none.
    NoTicket,
}

/// The nodes that must be verified.
struct OwnNodes {
    nodes: Vec<String>,
    /// What it was awarded, if it was.
    award: Option<Award>,
}

/// The heartbeat of one ticket.
pub(crate) async fn renew_ticket(state: &Arc<ClientState>, attempt: &Arc<Attempt>) -> Result<Reply> {
    let mut replies = renew(state, vec![(0, Renewal::Ticket(attempt))]).await;
    replies.pop().map_or_else(|| Err(state.node_removed()), |(_, reply)| reply)
}

/// Keeps all of these.
pub(crate) async fn renew(state: &Arc<ClientState>, renewals: Vec<(usize, Renewal<'_>)>) -> Replies {
    let (mut verifications, mut alone) = (Vec::new(), Vec::new());
    for (at, renewal) in renewals {
        match plan(state, renewal) {
            Plan::Verify(session, own) => verifications.push((session, (at, renewal, own))),
            plan => alone.push((at, renewal, plan)),
        }
    }
    let verifications = group_by_session(verifications).into_iter();
    let verifications = verifications.map(|(session, members)| renew_in_session(state, session, members));
    let alone =
        alone.into_iter().map(async |(at, renewal, plan)| (at, renew_alone(state, renewal, plan).await));
    let (verified, alone) = futures_util::join!(join_all(verifications), join_all(alone));
    verified.into_iter().flatten().chain(alone).collect()
}

fn plan(state: &ClientState, renewal: Renewal<'_>) -> Plan {
    let now = state.clock.now();
    let owner = renewal.attempt().owner;
    let mut registry = state.registry();
    // It is kept when it is asked for and not when that has succeeded: what is in flight must not lapse.
    if let Some(entry) = registry.keep(owner, now) {
        let (session, award) = (entry.session.clone(), entry.award);
        let lease_start = session.lease_start();
        return match (renewal, &entry.nodes) {
            (Renewal::Ticket(_), None) => Plan::Acquire,
            (Renewal::Ticket(attempt), Some(nodes))
                if award.is_none() && lease_start + attempt.ttl / RECENT_PART > now =>
            {
                Plan::Read(session, nodes.paths.clone(), lease_start)
            }
            (Renewal::Grant(grant), Some(nodes)) if nodes.token != grant.award.token.get() => {
                Plan::Reply(Reply::NotHeld)
            }
            (_, Some(nodes)) => Plan::Verify(session, OwnNodes { nodes: nodes.paths.clone(), award }),
            (Renewal::Grant(_), None) => Plan::Reply(Reply::NotHeld),
        };
    }
    match renewal {
        Renewal::Grant(_) => Plan::Reply(Reply::NotHeld),
        Renewal::Ticket(attempt) if registry.entries.keep_local_waiter(owner, now) => {
            if registry.entries.may_enqueue(attempt) {
                Plan::Acquire
            } else {
                Plan::Reply(waiting_reply(attempt))
            }
        }
        Renewal::Ticket(_) => Plan::NoTicket,
    }
}

async fn renew_alone(state: &Arc<ClientState>, renewal: Renewal<'_>, plan: Plan) -> Result<Reply> {
    let attempt = renewal.attempt();
    match plan {
        Plan::Reply(reply) => Ok(reply),
        Plan::Read(session, nodes, lease_start) => {
            check_by_reading(state, &session, attempt, &nodes, lease_start).await
        }
        // The engine asks again at once, and that should not fail: so there is a session before it is told.
        Plan::NoTicket => state.session(attempt.ttl).await.map(|_| Reply::NoTicket),
        // A box, because an acquire that finds a place checks it.
        Plan::Acquire | Plan::Verify(..) => Box::pin(acquire(state, attempt, OnBusy::Wait)).await,
    }
}

/// Sees whether it is an attempt's turn, without a write: one that is seen to be first stays it for as long as its node is
/// there, and that is for as long as its session was verified to live. The lease counts from that own.
async fn check_by_reading(
    state: &Arc<ClientState>,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    nodes: &[String],
    lease_start: Moment,
) -> Result<Reply> {
    session.wait_connected(&state.ensemble, &state.clock).await?;
    let now = state.clock.now();
    if watches::is_still_blocked(state, session, attempt, nodes).await {
        return Ok(waiting_reply(attempt));
    }
    let queues = read_queues(state, session, attempt).await?;
    decide(state, session, attempt, &queues).await.map(|reply| with_elapsed(reply, now.since(lease_start)))
}

/// Returns the reply with how much of the lease has elapsed, if it is a grant.
fn with_elapsed(reply: Reply, elapsed: Duration) -> Reply {
    match reply {
        Reply::Granted(award) => Reply::Granted(Award { elapsed, ..award }),
        reply => reply,
    }
}

async fn renew_in_session(
    state: &Arc<ClientState>,
    session: Arc<Session>,
    members: Vec<(usize, Renewal<'_>, OwnNodes)>,
) -> Replies {
    if let Err(error) = session.wait_connected(&state.ensemble, &state.clock).await {
        return members.into_iter().map(|(at, ..)| (at, Err(error.clone()))).collect();
    }
    let session = &session;
    let request = session.on_send();
    let nodes: Vec<&[String]> = members.iter().map(|(_, _, own)| own.nodes.as_slice()).collect();
    // The queues are read behind the own, in the same flight.
    let queues = join_all(members.iter().map(async |(_, renewal, own)| match renewal {
        Renewal::Ticket(attempt) if own.award.is_none() => {
            let is_still_blocked = watches::is_still_blocked(state, session, attempt, &[]).await;
            if is_still_blocked { None } else { Some(read_queues(state, session, attempt).await) }
        }
        _ => None,
    }));
    let (verified, queues) = futures_util::join!(verify_nodes(session, &nodes), queues);
    if verified.iter().any(Result::is_ok) {
        session.on_write_reply(request);
    }
    let elapsed = request.sent.since(session.lease_start());
    let replies = members.iter().zip(verified.into_iter().zip(queues));
    let replies = replies.map(async |((at, renewal, own), (verified, queues))| {
        let attempt = renewal.attempt();
        let reply = match (verified, renewal, queues) {
            (Err(error), ..) => Err(state.ensemble.failed(&error)),
            (Ok(false), renewal, _) => {
                // One of its nodes is gone: so must be the others before it is told. The session's task deletes what stays.
                let _ = discard_entry(state, attempt.owner).await;
                Ok(if matches!(renewal, Renewal::Grant(_)) { Reply::NotHeld } else { Reply::NoTicket })
            }
            (Ok(true), Renewal::Grant(_), _) => {
                Ok(Reply::Renewed { ttl: attempt.ttl.saturating_sub(elapsed) })
            }
            (Ok(true), Renewal::Ticket(_), None) => {
                Ok(own.award.map_or_else(|| waiting_reply(attempt), Reply::Granted))
            }
            (Ok(true), Renewal::Ticket(_), Some(Err(error))) => Err(error),
            (Ok(true), Renewal::Ticket(_), Some(Ok(queues))) => {
                decide(state, session, attempt, &queues).await
            }
        };
        (*at, reply.map(|reply| with_elapsed(reply, elapsed)))
    });
    join_all(replies).await
}

/// Whether the nodes of each are there. This is a write: it goes through the leader, so that a server which is cut off
/// cannot answer, and nobody is woken by it.
async fn verify_nodes(session: &Session, nodes: &[&[String]]) -> Vec<Result<bool, zk::Error>> {
    let chunks = split_by_size(nodes, |nodes| nodes);
    let verifications: Vec<_> = chunks.iter().map(|chunk| send_checks(session, chunk, true)).collect();
    let mut verified = Vec::with_capacity(nodes.len());
    for (chunk, own) in chunks.iter().zip(join_all(verifications).await) {
        match own {
            Ok(()) => verified.extend(chunk.iter().map(|_| Ok(true))),
            Err(MultiWriteError::RequestFailed { source }) => {
                verified.extend(chunk.iter().map(|_| Err(source.clone())));
            }
            // One of them is not there: each is asked for alone.
            Err(MultiWriteError::OperationFailed { .. }) => {
                let alone: Vec<_> = chunk.chunks(1).map(|nodes| send_checks(session, nodes, false)).collect();
                verified.extend(join_all(alone).await.into_iter().map(|own| match own {
                    Ok(()) => Ok(true),
                    Err(MultiWriteError::OperationFailed { source: zk::Error::NoNode, .. }) => Ok(false),
                    Err(error) => Err(error.into()),
                }));
            }
        }
    }
    verified
}

/// Asks for all of these nodes at once, and writes down that the session was renewed.
fn send_checks<'a>(
    session: &'a Session,
    nodes: &'a [&'a [String]],
    with_stamp: bool,
) -> impl Future<Output = Result<(), MultiWriteError>> + 'a {
    session.transact(move |writer| {
        for node in nodes.iter().copied().flatten().filter(|node| !node.is_empty()) {
            writer.add_check_version(node, -1)?;
        }
        if with_stamp { writer.add_set_data(&session.node, b"", None) } else { Ok(()) }
    })
}
