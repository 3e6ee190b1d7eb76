//! How an attempt gets its nodes and what it is told: taking, finding again, giving up.

use std::sync::Arc;
use std::time::Duration;

use fencepost_contenders::Card;
use fencepost_core::backend::{Queue, Reply};
use fencepost_core::{Attempt, Award, ErrorKind, FencingToken, Result, Rule};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, CreateMode, MultiWriteResult};

use crate::heartbeat;
use crate::paths::stem;
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
                let lines = lines(shared, &session, attempt).await?;
                return settle(shared, &session, attempt, queue, &lines).await;
            }
        }
        Known::Lapsed => tender::remove(shared, attempt.owner).await?,
        Known::Unknown => {}
    }
    let session = shared.session(attempt.ttl).await?;
    begin(shared, &session, attempt);
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
    settle(shared, &session, attempt, queue, &lines).await
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

/// Makes the nodes and reads the lines, in one flight; if parents are missing, they and all of that in another one.
async fn make(shared: &Shared, session: &Session, attempt: &Attempt) -> Result<Vec<queue::Queue>, zk::Error> {
    match make_once(shared, session, attempt, false).await {
        Err(zk::Error::NoNode) => {}
        other => return other,
    }
    match make_once(shared, session, attempt, true).await {
        Err(zk::Error::NoNode) => {}
        other => return other,
    }
    // Somebody has removed everything.
    for node in shared.setup.paths.foundations() {
        match session.client.create(&node, b"", &shared.setup.made_as(CreateMode::Persistent)).await {
            Ok(_) | Err(zk::Error::NodeExists) => {}
            Err(error) => return Err(error),
        }
    }
    make_once(shared, session, attempt, true).await
}

async fn make_once(
    shared: &Shared,
    session: &Session,
    attempt: &Attempt,
    parents_too: bool,
) -> Result<Vec<queue::Queue>, zk::Error> {
    let client = &session.client;
    let card = Card::new(attempt).to_bytes();
    let parents: Vec<String> = attempt.wants.iter().map(|want| shared.line(&want.name)).collect();
    let dialect = shared.setup.config.dialect;
    let wants = attempt.wants.iter().zip(&parents);
    let stems: Vec<String> =
        wants.map(|(want, parent)| format!("{parent}/{}", stem(dialect, attempt.owner, want.mode))).collect();
    let (container, node) =
        (shared.setup.made_as(CreateMode::Container), shared.setup.made_as(CreateMode::EphemeralSequential));
    // Every request is sent when its future is made; none is awaited before all are sent.
    let with_parents: Vec<_> =
        parents.iter().filter(|_| parents_too).map(|parent| client.create(parent, b"", &container)).collect();
    let (nodes, token, children) = if let [stem] = stems.as_slice() {
        let made = client.create(stem, &card, &node);
        let children = client.list_children(&parents[0]);
        let (_, made, children) = futures_util::join!(join_all(with_parents), made, children);
        let (stat, sequence) = made?;
        (vec![format!("{stem}{sequence}")], Some(stat.czxid), vec![children])
    } else {
        let mut writer = client.new_multi_writer();
        for stem in &stems {
            writer.add_create(stem, &card, &node)?;
        }
        let made = writer.commit();
        let children = join_all(parents.iter().map(|parent| client.list_children(parent)));
        let (_, made, children) = futures_util::join!(join_all(with_parents), made, children);
        let path = |result| match result {
            MultiWriteResult::Create { path, .. } => path,
            _ => String::new(),
        };
        let nodes: Vec<String> = made?.into_iter().map(path).collect();
        // What is made together has one number, which is not told by the making.
        let stat = client.check_stat(&nodes[0]).await?;
        (nodes, stat.map(|stat| stat.czxid), children)
    };
    {
        let mut book = shared.book();
        if let Some(place) = book.places.get_mut(attempt.owner) {
            place.entry.nodes = nodes;
            place.entry.token = token.and_then(|token| u64::try_from(token).ok());
        }
    }
    let children: Vec<Vec<String>> = children.into_iter().collect::<Result<_, _>>()?;
    Ok(children.iter().map(queue::Queue::of).collect())
}

/// The lines of an attempt as they are now, as far as this session has heard.
pub(crate) async fn lines(
    shared: &Shared,
    session: &Session,
    attempt: &Attempt,
) -> Result<Vec<queue::Queue>> {
    let parents = attempt.wants.iter().map(|want| shared.line(&want.name));
    let lists: Vec<_> = parents.map(|parent| session.client.list_children(&parent)).collect();
    let lists = join_all(lists).await.into_iter().map(|children| match children {
        Ok(children) => Ok(queue::Queue::of(&children)),
        Err(zk::Error::NoNode) => Ok(queue::Queue::default()),
        Err(error) => Err(shared.setup.failed(&error)),
    });
    lists.collect()
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
    let token = match known {
        Some(token) => token,
        None => {
            let stat = session.client.check_stat(&nodes[chosen]).await;
            let stat = stat.map_err(|error| shared.setup.failed(&error))?.ok_or_else(|| shared.vanished())?;
            u64::try_from(stat.czxid).unwrap_or(0)
        }
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

async fn remove(shared: &Shared, session: &Session, attempt: &Attempt, nodes: &[String]) -> Result<()> {
    match delete_all(session, nodes).await {
        Ok(()) => {
            shared.forget(&mut shared.book(), attempt.owner);
            Ok(())
        }
        Err(error) => {
            shared.unwant(attempt.owner);
            Err(shared.setup.failed(&error))
        }
    }
}

/// Deletes nodes, as far as they are there.
pub(crate) async fn delete_all(session: &Session, nodes: &[String]) -> Result<(), zk::Error> {
    let deletes: Vec<_> =
        nodes.iter().filter(|node| !node.is_empty()).map(|node| session.client.delete(node, None)).collect();
    for deleted in join_all(deletes).await {
        match deleted {
            Ok(()) | Err(zk::Error::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Looks for the nodes of an attempt that may have been made without our hearing of it. Whatever of it was on its way has
/// arrived or is lost: requests of one session keep their order, and none of an old connection comes after a new one.
pub(crate) async fn find_again(shared: &Shared, session: &Arc<Session>, attempt: &Attempt) -> Result<bool> {
    session.connected(&shared.setup, &shared.clock).await?;
    let sync = session.client.sync(shared.setup.paths.locks());
    let lines = lines(shared, session, attempt);
    let (synced, lines) = futures_util::join!(sync, lines);
    synced.map_err(|error| shared.setup.failed(&error))?;
    let lines = lines?;
    let mut found = Vec::new();
    for (want, line) in attempt.wants.iter().zip(&lines) {
        let parent = shared.line(&want.name);
        let node = match line.find(attempt.owner) {
            Some(node) => Some(node.called.clone()),
            None => find_by_card(shared, session, &parent, line, attempt).await?,
        };
        found.push(node.map_or_else(String::new, |called| format!("{parent}/{called}")));
    }
    let is_whole = match attempt.rule {
        Rule::All => found.iter().all(|node| !node.is_empty()),
        Rule::Any => found.iter().any(|node| !node.is_empty()),
    };
    if is_whole {
        if let Some(place) = shared.book().places.get_mut(attempt.owner) {
            place.entry.nodes = found;
        }
        return Ok(true);
    }
    remove(shared, session, attempt, &found).await?;
    Ok(false)
}

/// Looks for the node of an owner among those whose names do not say whose they are.
async fn find_by_card(
    shared: &Shared,
    session: &Session,
    parent: &str,
    line: &queue::Queue,
    attempt: &Attempt,
) -> Result<Option<String>> {
    let nameless: Vec<&String> =
        line.nodes().iter().filter(|node| node.owner.is_none()).map(|node| &node.called).collect();
    let cards: Vec<_> =
        nameless.iter().map(|called| session.client.get_data(&format!("{parent}/{called}"))).collect();
    for (called, data) in nameless.into_iter().zip(join_all(cards).await) {
        match data {
            Ok((data, stat)) => {
                let owner = Card::from_bytes(&data).map(|card| card.owner);
                if stat.ephemeral_owner == session.id && owner == Some(attempt.owner) {
                    return Ok(Some(called.clone()));
                }
            }
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(shared.setup.failed(&error)),
        }
    }
    Ok(None)
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
        match book.places.get(attempt.owner) {
            Some(place) => place.entry.session.clone(),
            None => {
                // An acquire of it may still come.
                book.depart(attempt, now);
                return Ok(Reply::Left);
            }
        }
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
