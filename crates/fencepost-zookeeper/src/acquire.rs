//! How an attempt gets its nodes and what it is answered: acquiring, granting, leaving.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::{Attempt, Award, Error, ErrorKind, FencingToken, Result, Rule};

use crate::error::unknown;
use crate::heartbeat;
use crate::nodes::{Made, delete_all, find_again, fits, lines, make};
use crate::orphans::{Orphan, clear, delete_now_or_later, discard};
use crate::queue::{self, Verdict, agree, verdict};
use crate::registry::{Entry, Nodes};
use crate::session::Session;
use crate::shared::Shared;
use crate::strangers;
use crate::watching;

/// What the registry says about an attempt that wants in.
enum Known {
    /// It is answered without asking the servers.
    Answer(Reply),
    /// It has nodes.
    Placed,
    /// It may have nodes.
    Doubtful(Arc<Session>),
    New,
}

/// Takes the locks, or joins the line.
pub(crate) async fn acquire(shared: &Arc<Shared>, attempt: &Arc<Attempt>, on_busy: OnBusy) -> Result<Reply> {
    clear(shared, attempt.owner).await?;
    let is_placed = match known(shared, attempt, on_busy) {
        Known::Answer(reply) => return Ok(reply),
        Known::Placed => true,
        Known::Doubtful(session) => find_again(shared, &session, attempt).await?,
        Known::New => false,
    };
    // What was found was only read; the check proves it.
    if is_placed {
        match heartbeat::check(shared, attempt).await? {
            Reply::NoTicket => {}
            reply => return Ok(reply),
        }
    }
    if attempt.wants.len() > 1 && !fits(shared, attempt) {
        let (count, location) = (attempt.wants.len(), &shared.setup.location);
        let message = format!("{count} names at once are more than {location} takes in one request");
        return Err(Error::new(ErrorKind::Unsupported, message).with_hint("take fewer, or shorter ones"));
    }
    let session = shared.session(attempt.ttl).await?;
    session.fresh(&shared.setup).await;
    if let Some(reply) = begin(shared, &session, attempt, on_busy)? {
        return Ok(reply);
    }
    let sent = shared.clock.now();
    let made = make(shared, &session, attempt).await.inspect_err(|error| {
        if error.kind() != ErrorKind::OutcomeUnknown {
            shared.registry().forget(attempt.owner);
        }
    })?;
    let Some(lines) = record(shared, &session, attempt, made).await? else { return Ok(Reply::Busy) };
    match settle(shared, &session, attempt, &lines).await? {
        Reply::Granted(award) => Ok(Reply::Granted(Award { elapsed: sent.since(session.proven()), ..award })),
        Reply::NoTicket => Err(shared.vanished()),
        reply => Ok(reply),
    }
}

fn known(shared: &Shared, attempt: &Arc<Attempt>, on_busy: OnBusy) -> Known {
    let now = shared.clock.now();
    let mut registry = shared.registry();
    if registry.has_departed(attempt.owner, now) {
        return Known::Answer(Reply::Busy);
    }
    if registry.places.get(attempt.owner).is_some_and(|place| place.entry.session.is_over()) {
        registry.forget(attempt.owner);
    }
    match registry.keep(attempt.owner, now) {
        Some(Entry { nodes: None, session, .. }) => return Known::Doubtful(session.clone()),
        Some(_) => return Known::Placed,
        None => {}
    }
    if registry.places.may_enqueue(attempt) {
        return Known::New;
    }
    if on_busy == OnBusy::Return {
        return Known::Answer(Reply::Busy);
    }
    registry.places.wait_locally(attempt, now);
    Known::Answer(waiting(attempt))
}

/// Adds an entry that may have nodes from now on, unless the attempt is to be answered: it may have left while there was no
/// session.
fn begin(
    shared: &Shared,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    on_busy: OnBusy,
) -> Result<Option<Reply>> {
    let (now, owner) = (shared.clock.now(), attempt.owner);
    let mut registry = shared.registry();
    if registry.has_departed(owner, now) {
        return Ok(Some(Reply::Busy));
    }
    if session.is_over() || registry.places.get(owner).is_some() || registry.orphan_of(owner).is_some() {
        return Err(unknown(&shared.setup.location));
    }
    registry.places.insert(attempt, Entry::new(session, on_busy), now);
    Ok(None)
}

/// Records the nodes that were made, and returns the lines. If the lines cannot be read, or the attempt has left meanwhile, the
/// nodes are deleted.
async fn record(
    shared: &Shared,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    made: Made,
) -> Result<Option<Vec<queue::Queue>>> {
    let Made { paths, token, lines } = made;
    let is_gone = {
        let mut registry = shared.registry();
        match registry.places.get_mut(attempt.owner) {
            Some(place) if Arc::ptr_eq(&place.entry.session, session) => {
                place.entry.nodes = Some(Nodes { paths: paths.clone(), token: token.unwrap_or(0) });
                false
            }
            _ => true,
        }
    };
    if is_gone {
        let orphan = Orphan {
            session: session.clone(),
            attempt: attempt.clone(),
            nodes: Some(paths),
            since: shared.clock.now(),
        };
        let orphan = shared.registry().add_orphan(orphan);
        delete_now_or_later(shared, Some(orphan)).await?;
        // It may also be gone because its session is over.
        let has_departed = shared.registry().has_departed(attempt.owner, shared.clock.now());
        return if has_departed { Ok(None) } else { Err(unknown(&shared.setup.location)) };
    }
    let refusal = match (token, lines) {
        (Some(_), Ok(lines)) => return Ok(Some(lines)),
        (None, Ok(_)) => shared.vanished(),
        (_, Err(error)) => shared.setup.failed(&error),
    };
    discard(shared, attempt.owner).await?;
    Err(refusal)
}

/// Returns the answer for an attempt whose nodes are in these lines.
pub(crate) async fn settle(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    lines: &[queue::Queue],
) -> Result<Reply> {
    let Some((nodes, award, on_busy)) = shared.registry().places.get(attempt.owner).and_then(|place| {
        let Entry { nodes, award, on_busy, .. } = &place.entry;
        Some((nodes.clone()?, *award, *on_busy))
    }) else {
        return Err(shared.vanished());
    };
    if award.is_none()
        && let Err(refusal) = admit(shared, session, attempt, &nodes.paths, lines).await
    {
        if refusal.kind() == ErrorKind::Conflict {
            discard(shared, attempt.owner).await?;
        }
        return Err(refusal);
    }
    match verdict(attempt, &nodes.paths, lines) {
        Verdict::Holds(chosen) => grant(shared, session, attempt, chosen).await.map(Reply::Granted),
        Verdict::Gone => discard(shared, attempt.owner).await.map(|()| Reply::NoTicket),
        Verdict::Waits(_) if on_busy == OnBusy::Return => match discard(shared, attempt.owner).await {
            Err(error) if error.kind() != ErrorKind::OutcomeUnknown => Err(error),
            _ => Ok(Reply::Busy),
        },
        Verdict::Waits(standings) => {
            watching::wait_for(shared, session, attempt, &standings);
            Ok(waiting(attempt))
        }
    }
}

/// Refuses an attempt at a lock that others use as something else.
async fn admit(
    shared: &Shared,
    session: &Session,
    attempt: &Attempt,
    nodes: &[String],
    lines: &[queue::Queue],
) -> Result<()> {
    agree(attempt, nodes, lines)?;
    strangers::refuse(shared, session, attempt, lines).await
}

pub(crate) fn waiting(attempt: &Attempt) -> Reply {
    // The leases of those before it are not read for this; it is told of every departure anyway.
    Reply::Waiting { check_after: attempt.ttl }
}

/// Grants an attempt that is first in its lines. If it had a choice, the choice is made once, by the first that sees one of its
/// locks free, and the nodes that it does not need then are deleted before.
async fn grant(shared: &Shared, session: &Session, attempt: &Attempt, chosen: usize) -> Result<Award> {
    let has_choice = attempt.rule == Rule::Any && attempt.wants.len() > 1;
    let surplus = {
        let mut registry = shared.registry();
        let Entry { nodes, surplus, award, .. } = registry
            .places
            .get_mut(attempt.owner)
            .map(|place| &mut place.entry)
            .ok_or_else(|| shared.vanished())?;
        if let Some(award) = award {
            return Ok(*award);
        }
        if has_choice {
            let others = nodes.as_mut().and_then(|nodes| nodes.choose(chosen));
            surplus.extend(others.ok_or_else(|| shared.vanished())?);
        }
        surplus.clone()
    };
    delete_all(session, &surplus).await.map_err(|error| shared.setup.failed(&error))?;
    let now = shared.clock.now();
    let mut registry = shared.registry();
    let entry = registry.places.get_mut(attempt.owner).map(|place| &mut place.entry);
    let Some(Entry { nodes: Some(nodes), surplus, award, .. }) = entry else {
        return Err(shared.vanished());
    };
    surplus.clear();
    let token = FencingToken::new(nodes.token);
    let granted = Award { token, ttl: attempt.ttl, chosen, elapsed: Duration::ZERO };
    *award = Some(granted);
    watching::watch_if_it_lasts(session, attempt.owner, now);
    Ok(granted)
}

/// Leaves the line, unless the lock is held already.
pub(crate) async fn leave(shared: &Arc<Shared>, attempt: &Arc<Attempt>) -> Result<Reply> {
    clear(shared, attempt.owner).await?;
    let now = shared.clock.now();
    let (session, is_known) = {
        let mut registry = shared.registry();
        if registry.places.remove_local_waiter(attempt.owner) {
            registry.move_up(attempt);
            return Ok(Reply::Left);
        }
        let place = registry.places.get(attempt.owner);
        let Some(place) = place.filter(|place| !place.entry.session.is_over()) else {
            // An acquire of it may still come.
            registry.forget(attempt.owner);
            registry.depart(attempt, now);
            return Ok(Reply::Left);
        };
        (place.entry.session.clone(), place.entry.nodes.is_some())
    };
    if !is_known && !find_again(shared, &session, attempt).await? {
        shared.registry().depart(attempt, now);
        return Ok(Reply::Left);
    }
    session.connected(&shared.setup, &shared.clock).await?;
    let lines = lines(shared, &session, attempt).await?;
    let nodes = shared.registry().places.get(attempt.owner).and_then(|place| place.entry.nodes.clone());
    let nodes = nodes.ok_or_else(|| shared.vanished())?;
    let verdict = verdict(attempt, &nodes.paths, &lines);
    if let Verdict::Holds(chosen) = verdict {
        return grant(shared, &session, attempt, chosen).await.map(Reply::AlreadyGranted);
    }
    discard(shared, attempt.owner).await?;
    if verdict == Verdict::Gone {
        // Another program has removed it before: to the servers, none that left.
        shared.registry().depart(attempt, now);
    }
    Ok(Reply::Left)
}
