//! How an attempt gets its nodes and what it is told: taking, finding again, giving up.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Queue, Reply};
use fencepost_core::{Attempt, Award, ErrorKind, FencingToken, Result, Rule};

use crate::heartbeat;
use crate::nodes::{delete_all, find_again, lines, make, remove};
use crate::queue::{self, Verdict, agree, verdict};
use crate::session::Session;
use crate::shared::{Entry, Shared};
use crate::tender;
use crate::watching;

/// What the book says about an attempt that wants in.
enum Known {
    Departed,
    /// It has nodes.
    Placed,
    /// It may have nodes.
    Doubtful(Arc<Session>),
    /// It has nodes that are being removed.
    Lapsed,
    /// There is no room for it now.
    Beyond,
    Unknown,
}

/// Takes the locks, or joins the line.
pub(crate) async fn acquire(shared: &Arc<Shared>, attempt: &Arc<Attempt>, queue: Queue) -> Result<Reply> {
    match known(shared, attempt, queue) {
        Known::Departed => return Ok(Reply::Busy),
        Known::Beyond if queue == Queue::Never => return Ok(Reply::Busy),
        Known::Beyond => return Ok(waiting(attempt)),
        Known::Placed => match heartbeat::check(shared, attempt).await? {
            Reply::NoTicket => {}
            reply => return Ok(reply),
        },
        Known::Doubtful(session) => {
            if find_again(shared, &session, attempt).await? {
                // What was found was only read; the check proves it.
                return match heartbeat::check(shared, attempt).await? {
                    Reply::Waiting { .. } if queue == Queue::Never => give_up(shared, attempt).await,
                    reply => Ok(reply),
                };
            }
        }
        Known::Lapsed => tender::remove(shared, attempt.owner).await?,
        Known::Unknown => {}
    }
    let session = shared.session(attempt.ttl).await?;
    begin(shared, &session, attempt);
    let sent = shared.clock.now();
    let lines = match make(shared, &session, attempt).await {
        Ok(lines) => lines,
        Err(error) => {
            let error = shared.setup.failed(&error);
            if error.kind() != ErrorKind::OutcomeUnknown || session.is_over() {
                shared.forget(&mut shared.book(), attempt.owner);
            }
            return Err(error);
        }
    };
    Ok(match settle(shared, &session, attempt, queue, &lines).await? {
        Reply::Granted(award) => Reply::Granted(Award { spent: sent.since(session.proven()), ..award }),
        reply => reply,
    })
}

fn known(shared: &Shared, attempt: &Arc<Attempt>, queue: Queue) -> Known {
    let now = shared.clock.now();
    let mut book = shared.book();
    if book.has_departed(attempt.owner, now) {
        return Known::Departed;
    }
    if book.places.get(attempt.owner).is_some() {
        return match book.keep(attempt.owner, now) {
            None => Known::Lapsed,
            Some(entry) if entry.nodes.is_empty() => Known::Doubtful(entry.session.clone()),
            Some(_) => Known::Placed,
        };
    }
    if book.places.has_room(attempt) {
        return Known::Unknown;
    }
    if queue == Queue::Join {
        book.places.wait(attempt, now);
    }
    Known::Beyond
}

/// Remembers that this attempt may have nodes from now on.
fn begin(shared: &Shared, session: &Arc<Session>, attempt: &Arc<Attempt>) {
    let entry = Entry {
        session: session.clone(),
        nodes: Vec::new(),
        award: None,
        token: None,
        watched: Vec::new(),
        unwanted: None,
    };
    shared.book().places.insert(attempt, entry, shared.clock.now());
}

/// What an attempt is told whose nodes are in these lines.
pub(crate) async fn settle(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    queue: Queue,
    lines: &[queue::Queue],
) -> Result<Reply> {
    let Some(nodes) = nodes(shared, attempt) else {
        return Err(shared.vanished());
    };
    if award(shared, attempt).is_none()
        && let Err(conflict) = agree(attempt, &nodes, lines)
    {
        remove(shared, session, attempt, &nodes).await?;
        return Err(conflict);
    }
    match verdict(attempt, &nodes, lines) {
        Verdict::Holds(chosen) => Ok(Reply::Granted(grant(shared, session, attempt, &nodes, chosen).await?)),
        Verdict::Gone => {
            remove(shared, session, attempt, &nodes).await?;
            Err(shared.vanished())
        }
        Verdict::Waits(_) if queue == Queue::Never => give_up(shared, attempt).await,
        Verdict::Waits(standings) => {
            watching::wait_for(shared, session, attempt, &standings);
            Ok(waiting(attempt))
        }
    }
}

/// The nodes of an attempt, if they are known.
pub(crate) fn nodes(shared: &Shared, attempt: &Attempt) -> Option<Vec<String>> {
    let book = shared.book();
    let nodes = &book.places.get(attempt.owner)?.entry.nodes;
    (!nodes.is_empty()).then(|| nodes.clone())
}

/// What this attempt was awarded, if it was.
fn award(shared: &Shared, attempt: &Attempt) -> Option<Award> {
    shared.book().places.get(attempt.owner)?.entry.award
}

fn waiting(attempt: &Attempt) -> Reply {
    // Who stands before it is not read for this; it is told of every departure anyway.
    Reply::Waiting { turn_in: attempt.ttl }
}

/// Makes an attempt that is first in its lines a grant. What it wants no longer is given up before.
pub(crate) async fn grant(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    attempt: &Arc<Attempt>,
    nodes: &[String],
    chosen: usize,
) -> Result<Award> {
    if let Some(award) = award(shared, attempt) {
        return Ok(award);
    }
    if attempt.rule == Rule::Any && attempt.wants.len() > 1 {
        let others: Vec<String> = nodes
            .iter()
            .enumerate()
            .filter(|(at, node)| *at != chosen && !node.is_empty())
            .map(|(_, node)| node.clone())
            .collect();
        delete_all(session, &others).await.map_err(|error| shared.setup.failed(&error))?;
    }
    let known = shared.book().places.get(attempt.owner).and_then(|place| place.entry.token);
    let token = if let Some(token) = known {
        token
    } else {
        let stat = session.client.check_stat(&nodes[chosen]).await;
        let stat = stat.map_err(|error| shared.setup.failed(&error))?.ok_or_else(|| shared.vanished())?;
        u64::try_from(stat.czxid).unwrap_or(0)
    };
    let chosen_of = if attempt.rule == Rule::Any { chosen } else { 0 };
    let award =
        Award { token: FencingToken::new(token), ttl: attempt.ttl, chosen: chosen_of, spent: Duration::ZERO };
    let now = shared.clock.now();
    let mut book = shared.book();
    let Some(place) = book.places.get_mut(attempt.owner) else {
        return Err(shared.vanished());
    };
    place.entry.award = Some(award);
    place.entry.token = Some(token);
    if attempt.rule == Rule::Any {
        for (at, node) in place.entry.nodes.iter_mut().enumerate() {
            if at != chosen {
                node.clear();
            }
        }
    }
    if book.unwatched.is_empty() {
        session.chores.notify_one();
    }
    book.unwatched.push((attempt.owner, now));
    Ok(award)
}

/// A try that did not succeed leaves nothing.
async fn give_up(shared: &Arc<Shared>, attempt: &Arc<Attempt>) -> Result<Reply> {
    // If it cannot be removed now, it is as soon as there is a connection again.
    match tender::remove(shared, attempt.owner).await {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
        Err(error) => return Err(error),
    }
    Ok(Reply::Busy)
}

/// Leaves the line, unless the lock is held already.
pub(crate) async fn leave(shared: &Arc<Shared>, attempt: &Arc<Attempt>) -> Result<Reply> {
    let now = shared.clock.now();
    let session = {
        let mut book = shared.book();
        if book.places.stop_waiting(attempt.owner) {
            shared.move_up(&book, attempt);
            return Ok(Reply::Left);
        }
        let Some(place) = book.places.get(attempt.owner) else {
            // An acquire of it may still come.
            book.depart(attempt, now);
            return Ok(Reply::Left);
        };
        place.entry.session.clone()
    };
    if session.is_over() {
        shared.forget(&mut shared.book(), attempt.owner);
        shared.book().depart(attempt, now);
        return Ok(Reply::Left);
    }
    if nodes(shared, attempt).is_none() && !find_again(shared, &session, attempt).await? {
        shared.book().depart(attempt, now);
        return Ok(Reply::Left);
    }
    session.connected(&shared.setup, &shared.clock).await?;
    let lines = lines(shared, &session, attempt).await?;
    let nodes = nodes(shared, attempt).unwrap_or_default();
    if let Verdict::Holds(chosen) = verdict(attempt, &nodes, &lines)
        && !is_unwanted(shared, attempt)
    {
        return Ok(Reply::HadBeenGranted(grant(shared, &session, attempt, &nodes, chosen).await?));
    }
    remove(shared, &session, attempt, &nodes).await?;
    Ok(Reply::Left)
}

fn is_unwanted(shared: &Shared, attempt: &Attempt) -> bool {
    shared.book().places.get(attempt.owner).is_none_or(|place| place.entry.unwanted.is_some())
}
