//! How an attempt gets its nodes and what it is told: taking, finding again, giving up.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Queue, Reply};
use fencepost_core::{Attempt, Award, Error, ErrorKind, FencingToken, Owner, Result, Rule};

use crate::error::unknown;
use crate::heartbeat;
use crate::nodes::{delete_all, find_again, fits, lines, make, remove};
use crate::queue::{self, Verdict, agree, verdict};
use crate::session::Session;
use crate::shared::{Entry, Shared};
use crate::strangers;
use crate::tender;
use crate::watching;

/// What the book says about an attempt that wants in.
enum Known {
    Departed,
    /// Another flight is just making its nodes.
    Coming,
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
        Known::Coming => return Err(unknown(&shared.setup.location)),
        Known::Beyond if queue == Queue::Never => return Ok(Reply::Busy),
        Known::Beyond => return Ok(waiting(attempt)),
        Known::Placed => match heartbeat::check(shared, attempt).await? {
            Reply::NoTicket => {}
            reply => return Ok(reply),
        },
        Known::Doubtful(session) => {
            if find_again(shared, &session, attempt).await? {
                // What was found was only read; the check proves it.
                match heartbeat::check(shared, attempt).await? {
                    Reply::Waiting { .. } if queue == Queue::Never => return give_up(shared, attempt).await,
                    Reply::NoTicket => {}
                    reply => return Ok(reply),
                }
            }
        }
        Known::Lapsed => tender::remove(shared, attempt.owner).await?,
        Known::Unknown => {}
    }
    if attempt.wants.len() > 1 && !fits(shared, attempt) {
        let (count, location) = (attempt.wants.len(), &shared.setup.location);
        let message = format!("{count} names at once are more than {location} takes in one request");
        return Err(Error::new(ErrorKind::Unsupported, message).with_hint("take fewer, or shorter ones"));
    }
    let session = shared.session(attempt.ttl).await?;
    session.fresh(&shared.setup).await;
    let Some(coming) = begin(shared, &session, attempt) else {
        // While there was no session, somebody else has begun with it, or it has left.
        let has_left = shared.book().has_departed(attempt.owner, shared.clock.now());
        return if has_left { Ok(Reply::Busy) } else { Err(unknown(&shared.setup.location)) };
    };
    let sent = shared.clock.now();
    let made = make(shared, &session, attempt).await;
    drop(coming);
    let lines = match made {
        Ok(lines) => lines,
        Err(error) => {
            let error = shared.setup.failed(&error);
            if session.is_over() {
                shared.forget_if(attempt.owner, |entry| Arc::ptr_eq(&entry.session, &session));
            } else if nodes(shared, attempt).is_some() {
                // They were made, and only the lines could not be read.
                shared.unwant(attempt.owner);
                if error.kind() == ErrorKind::Unreachable {
                    return Err(unknown(&shared.setup.location).with_source(error));
                }
            } else if error.kind() != ErrorKind::OutcomeUnknown {
                shared.forget_with(attempt.owner, &[]);
            }
            return Err(error);
        }
    };
    if shared.book().has_departed(attempt.owner, shared.clock.now()) {
        // It has left while it came.
        return give_up(shared, attempt).await;
    }
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
    let is_over = |entry: &Entry| entry.session.is_over() && !entry.coming;
    if book.places.get(attempt.owner).is_some_and(|place| is_over(&place.entry)) {
        // Its nodes have ended with their session.
        shared.forget(&mut book, attempt.owner);
    }
    if let Some(place) = book.places.get(attempt.owner) {
        if place.entry.coming {
            return Known::Coming;
        }
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

/// Somebody who makes the nodes of an attempt; when it is dropped, others may see to them.
struct Coming<'a> {
    shared: &'a Shared,
    session: &'a Arc<Session>,
    owner: Owner,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut book = self.shared.book();
        let place = book.places.get_mut(self.owner);
        if let Some(place) = place.filter(|place| Arc::ptr_eq(&place.entry.session, self.session)) {
            place.entry.coming = false;
            if place.entry.unwanted.is_some() {
                self.session.chores.notify_one();
            }
        }
    }
}

/// Somebody who removes what an attempt has not chosen; when it is dropped, others may go by what is there.
struct Choosing<'a> {
    shared: &'a Shared,
    owner: Owner,
}

impl<'a> Choosing<'a> {
    /// Begins to choose; not if somebody does already, who may see another one free, or the nodes are being removed.
    fn begin(shared: &'a Shared, owner: Owner) -> Option<Self> {
        let mut book = shared.book();
        let is_free_to = |entry: &Entry| entry.unwanted.is_none() && !entry.choosing;
        let place = book.places.get_mut(owner).filter(|place| is_free_to(&place.entry))?;
        place.entry.choosing = true;
        Some(Self { shared, owner })
    }
}

impl Drop for Choosing<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.shared.book().places.get_mut(self.owner) {
            place.entry.choosing = false;
        }
    }
}

/// Remembers that this attempt may have nodes from now on; nothing if it must not.
fn begin<'a>(shared: &'a Shared, session: &'a Arc<Session>, attempt: &Arc<Attempt>) -> Option<Coming<'a>> {
    let entry = Entry {
        session: session.clone(),
        nodes: Vec::new(),
        award: None,
        token: None,
        watched: Vec::new(),
        unwanted: None,
        coming: true,
        choosing: false,
    };
    let (now, owner) = (shared.clock.now(), attempt.owner);
    let mut book = shared.book();
    if book.has_departed(owner, now) || book.places.get(owner).is_some() {
        return None;
    }
    book.places.insert(attempt, entry, now);
    Some(Coming { shared, session, owner })
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
        && let Err(refusal) = admit(shared, session, attempt, &nodes, lines).await
    {
        if refusal.kind() == ErrorKind::Conflict {
            remove(shared, session, attempt, &nodes).await?;
        }
        return Err(refusal);
    }
    match verdict(attempt, &nodes, lines) {
        // Another flight lets it have one of several locks just now.
        Verdict::Holds(_) | Verdict::Gone if is_choosing(shared, attempt) => Ok(waiting(attempt)),
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

fn is_choosing(shared: &Shared, attempt: &Attempt) -> bool {
    shared.book().places.get(attempt.owner).is_some_and(|place| place.entry.choosing)
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
    let Some(_choosing) = Choosing::begin(shared, attempt.owner) else {
        return Err(shared.vanished());
    };
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
    let Some(place) = book.places.get_mut(attempt.owner).filter(|place| place.entry.unwanted.is_none())
    else {
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
    let unwatched = book.unwatched.entry(session.id).or_default();
    if unwatched.is_empty() {
        session.chores.notify_one();
    }
    unwatched.push((attempt.owner, now));
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
        let Some(place) = book.places.get_mut(attempt.owner) else {
            // An acquire of it may still come.
            book.depart(attempt, now);
            return Ok(Reply::Left);
        };
        let session = place.entry.session.clone();
        if place.entry.coming {
            // Whoever makes its nodes removes them.
            place.entry.unwanted.get_or_insert(now);
            book.depart(attempt, now);
            return Ok(Reply::Left);
        }
        session
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
    let verdict = verdict(attempt, &nodes, &lines);
    if let Verdict::Holds(chosen) = verdict
        && !is_unwanted(shared, attempt)
    {
        return Ok(Reply::HadBeenGranted(grant(shared, &session, attempt, &nodes, chosen).await?));
    }
    remove(shared, &session, attempt, &nodes).await?;
    if verdict == Verdict::Gone {
        // Somebody has removed it before; to the servers it was nobody who left.
        shared.book().depart(attempt, now);
    }
    Ok(Reply::Left)
}

fn is_unwanted(shared: &Shared, attempt: &Attempt) -> bool {
    shared.book().places.get(attempt.owner).is_none_or(|place| place.entry.unwanted.is_some())
}
