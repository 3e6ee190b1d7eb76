//! Renews leases: those of grants (`Renew`) and of tickets (`Check`). Renewals in one session share a request.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Award, Grant, Result};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, MultiWriteError};

use crate::acquire::{acquire, grant_or_wait, waiting_reply};
use crate::flight::{Replies, group_by_session};
use crate::nodes::{read_queues, split_by_size};
use crate::orphans::discard_entry;
use crate::session::Session;
use crate::state::ClientState;
use crate::watches;

/// A check needs no write if the leases of its session started less than a ttl divided by this ago.
const RECENT_DIVISOR: u32 = 4;

/// A lease to renew.
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

/// What a renewal requires.
enum Plan {
    Reply(Reply),
    /// A write that verifies its nodes.
    Verify(Arc<Session>, Verification),
    /// Reads only: leases of the session start at this time, which is recent enough.
    Read(Arc<Session>, Vec<String>, Moment),
    /// An acquire: the attempt has no nodes yet, or their outcome is unknown.
    Acquire,
    /// The attempt has no entry.
    NoTicket,
}

/// The nodes to verify.
struct Verification {
    nodes: Vec<String>,
    /// The award of the attempt, if it was granted.
    award: Option<Award>,
}

/// Checks one ticket: renews its lease, and grants it if it is first.
pub(crate) async fn check_ticket(state: &Arc<ClientState>, attempt: &Arc<Attempt>) -> Result<Reply> {
    let mut replies = renew(state, vec![(0, Renewal::Ticket(attempt))]).await;
    replies.pop().map_or_else(|| Err(state.node_removed()), |(_, reply)| reply)
}

/// Executes renewals, those of one session in one request.
pub(crate) async fn renew(state: &Arc<ClientState>, renewals: Vec<(usize, Renewal<'_>)>) -> Replies {
    let (mut verifications, mut alone) = (Vec::new(), Vec::new());
    for (at, renewal) in renewals {
        match plan(state, renewal) {
            Plan::Verify(session, target) => verifications.push((session, (at, renewal, target))),
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
    // The entry is kept when the renewal is sent, not when it succeeds: an entry with a request in flight must not
    // expire.
    if let Some(entry) = registry.keep(owner, now) {
        let (session, award) = (entry.session.clone(), entry.award);
        let lease_start = session.lease_start();
        return match (renewal, &entry.nodes) {
            (Renewal::Ticket(_), None) => Plan::Acquire,
            (Renewal::Ticket(attempt), Some(nodes))
                if award.is_none() && lease_start + attempt.ttl / RECENT_DIVISOR > now =>
            {
                Plan::Read(session, nodes.paths.clone(), lease_start)
            }
            (Renewal::Grant(grant), Some(nodes)) if nodes.token != grant.award.token.get() => {
                Plan::Reply(Reply::NotHeld)
            }
            (_, Some(nodes)) => Plan::Verify(session, Verification { nodes: nodes.paths.clone(), award }),
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
        // The engine sends the acquire again immediately; opening the session first makes it likely to succeed.
        Plan::NoTicket => state.session(attempt.ttl).await.map(|_| Reply::NoTicket),
        // Boxed, because an acquire that finds its nodes calls this function.
        Plan::Acquire | Plan::Verify(..) => Box::pin(acquire(state, attempt, OnBusy::Wait)).await,
    }
}

/// Checks an attempt without a write. An attempt that is read as first stays first while its node exists, and the node
/// exists while the session is known to live. The lease therefore starts where that of the session starts.
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
    grant_or_wait(state, session, attempt, &queues)
        .await
        .map(|reply| with_elapsed(reply, now.since(lease_start)))
}

/// Sets the elapsed part of the lease if the reply is a grant.
fn with_elapsed(reply: Reply, elapsed: Duration) -> Reply {
    match reply {
        Reply::Granted(award) => Reply::Granted(Award { elapsed, ..award }),
        reply => reply,
    }
}

async fn renew_in_session(
    state: &Arc<ClientState>,
    session: Arc<Session>,
    members: Vec<(usize, Renewal<'_>, Verification)>,
) -> Replies {
    if let Err(error) = session.wait_connected(&state.ensemble, &state.clock).await {
        return members.into_iter().map(|(at, ..)| (at, Err(error.clone()))).collect();
    }
    let session = &session;
    let request = session.start_request();
    let nodes: Vec<&[String]> = members.iter().map(|(_, _, target)| target.nodes.as_slice()).collect();
    // The queues are read after the verification, in the same round trip.
    let queues = join_all(members.iter().map(async |(_, renewal, target)| match renewal {
        Renewal::Ticket(attempt) if target.award.is_none() => {
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
    let replies = replies.map(async |((at, renewal, target), (verified, queues))| {
        let attempt = renewal.attempt();
        let reply = match (verified, renewal, queues) {
            (Err(error), ..) => Err(state.ensemble.failed(&error)),
            (Ok(false), renewal, _) => {
                // A node is missing: the remaining ones must be deleted before the owner is told. If that fails, the
                // maintenance task retries.
                let _ = discard_entry(state, attempt.owner).await;
                Ok(if matches!(renewal, Renewal::Grant(_)) { Reply::NotHeld } else { Reply::NoTicket })
            }
            (Ok(true), Renewal::Grant(_), _) => {
                Ok(Reply::Renewed { ttl: attempt.ttl.saturating_sub(elapsed) })
            }
            (Ok(true), Renewal::Ticket(_), None) => {
                Ok(target.award.map_or_else(|| waiting_reply(attempt), Reply::Granted))
            }
            (Ok(true), Renewal::Ticket(_), Some(Err(error))) => Err(error),
            (Ok(true), Renewal::Ticket(_), Some(Ok(queues))) => {
                grant_or_wait(state, session, attempt, &queues).await
            }
        };
        (*at, reply.map(|reply| with_elapsed(reply, elapsed)))
    });
    join_all(replies).await
}

/// Returns for each item whether its nodes exist. The request is a write: it goes through the leader, so that a server
/// that is cut off cannot reply. It triggers no watch.
async fn verify_nodes(session: &Session, nodes: &[&[String]]) -> Vec<Result<bool, zk::Error>> {
    let chunks = split_by_size(nodes, |nodes| nodes);
    let verifications: Vec<_> =
        chunks.iter().map(|chunk| send_version_checks(session, chunk, true)).collect();
    let mut verified = Vec::with_capacity(nodes.len());
    for (chunk, result) in chunks.iter().zip(join_all(verifications).await) {
        match result {
            Ok(()) => verified.extend(chunk.iter().map(|_| Ok(true))),
            Err(MultiWriteError::RequestFailed { source }) => {
                verified.extend(chunk.iter().map(|_| Err(source.clone())));
            }
            // A node of this chunk is missing: each item is verified separately.
            Err(MultiWriteError::OperationFailed { .. }) => {
                let alone: Vec<_> =
                    chunk.chunks(1).map(|nodes| send_version_checks(session, nodes, false)).collect();
                verified.extend(join_all(alone).await.into_iter().map(|result| match result {
                    Ok(()) => Ok(true),
                    Err(MultiWriteError::OperationFailed { source: zk::Error::NoNode, .. }) => Ok(false),
                    Err(error) => Err(error.into()),
                }));
            }
        }
    }
    verified
}

/// Sends one transaction that checks that all of these nodes exist and, `with_stamp`, writes the session's node, whose
/// mtime shows the last renewal.
fn send_version_checks<'a>(
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
