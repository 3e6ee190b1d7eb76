//! Acquires and leaves locks: creates the nodes of an attempt, grants it, or lets it wait.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::{Attempt, Award, Error, ErrorKind, FencingToken, Result, Rule};

use crate::error::outcome_unknown;
use crate::foreign;
use crate::nodes::{CreatedNodes, create_nodes, delete_all, fits_in_one_request, read_queues, recover_nodes};
use crate::orphans::{Orphan, delete_or_defer, delete_orphan_of, discard_entry};
use crate::queue::{AttemptPosition, Queue, attempt_position, check_modes};
use crate::registry::{Entry, Nodes};
use crate::renew;
use crate::session::Session;
use crate::state::ClientState;
use crate::watches;

/// The result of looking up an attempt in the registry.
enum Lookup {
    /// The reply, which needs no request.
    Reply(Reply),
    /// The attempt has nodes.
    HasNodes,
    /// The attempt has an entry; the outcome of creating its nodes is unknown.
    NodesUnknown(Arc<Session>),
    NoEntry,
}

/// Acquires the locks, or enqueues the attempt.
pub(crate) async fn acquire(
    state: &Arc<ClientState>,
    attempt: &Arc<Attempt>,
    on_busy: OnBusy,
) -> Result<Reply> {
    let has_nodes = match look_up(state, attempt, on_busy) {
        Lookup::Reply(reply) => return Ok(reply),
        Lookup::HasNodes => true,
        Lookup::NodesUnknown(session) => recover_nodes(state, &session, attempt).await?,
        Lookup::NoEntry => false,
    };
    // Recovered nodes were only read; the check verifies them with a write.
    if has_nodes {
        match renew::check_ticket(state, attempt).await? {
            Reply::NoTicket => {}
            reply => return Ok(reply),
        }
    }
    if attempt.wants.len() > 1 && !fits_in_one_request(state, attempt) {
        let (count, location) = (attempt.wants.len(), &state.ensemble.location);
        let message = format!("{count} locks in one acquire do not fit into one request to {location}");
        return Err(Error::new(ErrorKind::Unsupported, message)
            .with_hint("acquire fewer locks together, or use shorter names"));
    }
    let session = state.session(attempt.ttl).await?;
    session.wait_until_fresh(&state.ensemble).await;
    // The owner has no live entry here, so that no watch can turn it into an orphan after this.
    delete_orphan_of(state, attempt.owner).await?;
    if let Some(reply) = add_entry(state, &session, attempt, on_busy)? {
        return Ok(reply);
    }
    let sent = state.clock.now();
    let created = create_nodes(state, &session, attempt).await.inspect_err(|error| {
        if error.kind() != ErrorKind::OutcomeUnknown {
            state.registry().remove(attempt.owner);
        }
    })?;
    let Some(queues) = record_nodes(state, &session, attempt, created).await? else { return Ok(Reply::Busy) };
    match grant_or_wait(state, &session, attempt, &queues).await? {
        Reply::Granted(award) => {
            Ok(Reply::Granted(Award { elapsed: sent.since(session.lease_start()), ..award }))
        }
        Reply::NoTicket => Err(state.node_removed()),
        reply => Ok(reply),
    }
}

/// Looks up an attempt in the registry and extends its lease. A new attempt for which the client has no room waits in this
/// process, unless it must not wait.
fn look_up(state: &ClientState, attempt: &Arc<Attempt>, on_busy: OnBusy) -> Lookup {
    let now = state.clock.now();
    let mut registry = state.registry();
    if registry.has_tombstone(attempt.owner, now) {
        return Lookup::Reply(Reply::Busy);
    }
    if registry.entries.get(attempt.owner).is_some_and(|own| own.entry.session.is_over()) {
        registry.remove(attempt.owner);
    }
    match registry.keep(attempt.owner, now) {
        Some(Entry { nodes: None, session, .. }) => return Lookup::NodesUnknown(session.clone()),
        Some(_) => return Lookup::HasNodes,
        None => {}
    }
    if registry.entries.may_enqueue(attempt) {
        return Lookup::NoEntry;
    }
    if on_busy == OnBusy::Return {
        return Lookup::Reply(Reply::Busy);
    }
    registry.entries.wait_locally(attempt, now);
    Lookup::Reply(waiting_reply(attempt))
}

/// Adds the entry of an attempt whose nodes are about to be created. Returns a reply if the attempt left while the
/// session was opened.
fn add_entry(
    state: &ClientState,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    on_busy: OnBusy,
) -> Result<Option<Reply>> {
    let (now, owner) = (state.clock.now(), attempt.owner);
    let mut registry = state.registry();
    if registry.has_tombstone(owner, now) {
        return Ok(Some(Reply::Busy));
    }
    if session.is_over() || registry.entries.get(owner).is_some() || registry.orphan_of(owner).is_some() {
        return Err(outcome_unknown(&state.ensemble.location));
    }
    registry.entries.insert(attempt, Entry::new(session, on_busy), now);
    Ok(None)
}

/// Records the created nodes in the entry and returns the queues. Deletes the nodes if the queues cannot be read or the
/// entry was removed in the meantime; returns `None` if the attempt has left.
async fn record_nodes(
    state: &ClientState,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    created: CreatedNodes,
) -> Result<Option<Vec<Queue>>> {
    let CreatedNodes { paths, token, queues } = created;
    let was_removed = {
        let mut registry = state.registry();
        match registry.entries.get_mut(attempt.owner) {
            Some(own) if Arc::ptr_eq(&own.entry.session, session) => {
                own.entry.nodes = Some(Nodes { paths: paths.clone(), token: token.unwrap_or(0) });
                false
            }
            _ => true,
        }
    };
    if was_removed {
        let orphan = Orphan {
            session: session.clone(),
            attempt: attempt.clone(),
            nodes: Some(paths),
            since: state.clock.now(),
        };
        let orphan = state.registry().add_orphan(orphan);
        delete_or_defer(state, Some(orphan)).await?;
        // Without a tombstone the entry was removed because its session is over.
        let has_tombstone = state.registry().has_tombstone(attempt.owner, state.clock.now());
        return if has_tombstone { Ok(None) } else { Err(outcome_unknown(&state.ensemble.location)) };
    }
    let error = match (token, queues) {
        (Some(_), Ok(queues)) => return Ok(Some(queues)),
        (None, Ok(_)) => state.node_removed(),
        (_, Err(error)) => state.ensemble.failed(&error),
    };
    discard_entry(state, attempt.owner).await?;
    Err(error)
}

/// Grants an attempt whose nodes are first in these queues. Otherwise watches the nodes that it waits for, or deletes
/// its nodes if it must not wait.
pub(crate) async fn grant_or_wait(
    state: &Arc<ClientState>,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    queues: &[Queue],
) -> Result<Reply> {
    let Some((nodes, award, on_busy)) = state.registry().entries.get(attempt.owner).and_then(|own| {
        let Entry { nodes, award, on_busy, .. } = &own.entry;
        Some((nodes.clone()?, *award, *on_busy))
    }) else {
        return Err(state.node_removed());
    };
    if award.is_none()
        && let Err(conflict) = check_conflicts(state, session, attempt, &nodes.paths, queues).await
    {
        if conflict.kind() == ErrorKind::Conflict {
            discard_entry(state, attempt.owner).await?;
        }
        return Err(conflict);
    }
    match attempt_position(attempt, &nodes.paths, queues) {
        AttemptPosition::Holds(chosen) => grant(state, session, attempt, chosen).await.map(Reply::Granted),
        AttemptPosition::Missing => discard_entry(state, attempt.owner).await.map(|()| Reply::NoTicket),
        AttemptPosition::Waits(_) if on_busy == OnBusy::Return => {
            match discard_entry(state, attempt.owner).await {
                Err(error) if error.kind() != ErrorKind::OutcomeUnknown => Err(error),
                _ => Ok(Reply::Busy),
            }
        }
        AttemptPosition::Waits(positions) => {
            watches::watch_blockers(state, session, attempt, &positions);
            Ok(waiting_reply(attempt))
        }
    }
}

/// Rejects an attempt whose mode contradicts the contenders ahead of it, or whose lock is used by an incompatible
/// foreign client.
async fn check_conflicts(
    state: &ClientState,
    session: &Session,
    attempt: &Attempt,
    nodes: &[String],
    queues: &[Queue],
) -> Result<()> {
    check_modes(attempt, nodes, queues)?;
    foreign::reject_incompatible(state, session, attempt, queues).await
}

pub(crate) fn waiting_reply(attempt: &Attempt) -> Reply {
    // The leases of the contenders ahead are not read: a watch reports the deletion of each node.
    Reply::Waiting { check_after: attempt.ttl }
}

/// Awards the locks to an attempt that is first in its queues. Under [`Rule::Any`] the first call that finds a lock
/// free chooses it; the nodes of the other locks are deleted before the award.
async fn grant(state: &ClientState, session: &Session, attempt: &Attempt, chosen: usize) -> Result<Award> {
    let is_choice = attempt.rule == Rule::Any && attempt.wants.len() > 1;
    let surplus = {
        let mut registry = state.registry();
        let Entry { nodes, surplus, award, .. } = registry
            .entries
            .get_mut(attempt.owner)
            .map(|own| &mut own.entry)
            .ok_or_else(|| state.node_removed())?;
        if let Some(award) = award {
            return Ok(*award);
        }
        if is_choice {
            let others = nodes.as_mut().and_then(|nodes| nodes.choose(chosen));
            surplus.extend(others.ok_or_else(|| state.node_removed())?);
        }
        surplus.clone()
    };
    delete_all(session, &surplus).await.map_err(|error| state.ensemble.failed(&error))?;
    let now = state.clock.now();
    let mut registry = state.registry();
    let entry = registry.entries.get_mut(attempt.owner).map(|own| &mut own.entry);
    let Some(Entry { nodes: Some(nodes), surplus, award, .. }) = entry else {
        return Err(state.node_removed());
    };
    surplus.clear();
    let token = FencingToken::new(nodes.token);
    let granted = Award { token, ttl: attempt.ttl, chosen, elapsed: Duration::ZERO };
    *award = Some(granted);
    watches::watch_grant_later(session, attempt.owner, now);
    Ok(granted)
}

/// Removes the attempt from its queues, unless it holds the lock already.
pub(crate) async fn leave(state: &Arc<ClientState>, attempt: &Arc<Attempt>) -> Result<Reply> {
    delete_orphan_of(state, attempt.owner).await?;
    let now = state.clock.now();
    let (session, has_nodes) = {
        let mut registry = state.registry();
        if registry.entries.remove_local_waiter(attempt.owner) {
            registry.wake_local_waiters(attempt);
            return Ok(Reply::Left);
        }
        let own = registry.entries.get(attempt.owner);
        let Some(own) = own.filter(|own| !own.entry.session.is_over()) else {
            // A late acquire of this owner must do nothing.
            registry.remove(attempt.owner);
            registry.add_tombstone(attempt, now);
            return Ok(Reply::Left);
        };
        (own.entry.session.clone(), own.entry.nodes.is_some())
    };
    if !has_nodes && !recover_nodes(state, &session, attempt).await? {
        state.registry().add_tombstone(attempt, now);
        return Ok(Reply::Left);
    }
    session.wait_connected(&state.ensemble, &state.clock).await?;
    let queues = read_queues(state, &session, attempt).await?;
    let nodes = state.registry().entries.get(attempt.owner).and_then(|own| own.entry.nodes.clone());
    let nodes = nodes.ok_or_else(|| state.node_removed())?;
    let position = attempt_position(attempt, &nodes.paths, &queues);
    if let AttemptPosition::Holds(chosen) = position {
        return grant(state, &session, attempt, chosen).await.map(Reply::AlreadyGranted);
    }
    discard_entry(state, attempt.owner).await?;
    if position == AttemptPosition::Missing {
        // A foreign client deleted the nodes: on the servers nothing shows that this owner has left.
        state.registry().add_tombstone(attempt, now);
    }
    Ok(Reply::Left)
}
