//! The nodes of an attempt: made, found again, removed.

use std::sync::Arc;

use fencepost_contenders::Card;
use fencepost_core::{Attempt, Result, Rule};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, CreateMode, MultiWriteResult};

use crate::containers;
use crate::paths::{Node, stem};
use crate::queue::Queue;
use crate::session::Session;
use crate::shared::Shared;

/// How large a request is at most; servers take 1 MiB unless they are told otherwise, and hang up on more.
const LARGEST: usize = 900 * 1024;
/// What a request says about a node besides its path and its data, at most.
const BESIDES: usize = 128;

/// Whether one request can make all nodes of an attempt.
pub(crate) fn fits(shared: &Shared, attempt: &Attempt) -> bool {
    let each = Card::new(attempt).to_bytes().len() + BESIDES;
    let paths = attempt.wants.iter().map(|want| shared.line(&want.name).len());
    paths.map(|path| path + each).sum::<usize>() <= LARGEST
}

/// Splits what is to be asked about nodes, so that no request is too large. What is about one attempt stays together.
pub(crate) fn portions<T>(all: &[T], nodes: impl Fn(&T) -> &[String]) -> Vec<&[T]> {
    let mut portions = Vec::new();
    let (mut from, mut size) = (0, 0);
    for (at, one) in all.iter().enumerate() {
        let more: usize = nodes(one).iter().map(|node| node.len() + BESIDES).sum();
        if at > from && size + more > LARGEST {
            portions.push(&all[from..at]);
            (from, size) = (at, 0);
        }
        size += more;
    }
    if from < all.len() {
        portions.push(&all[from..]);
    }
    portions
}

/// Makes the nodes and reads the lines, in one flight; if parents are missing, they and all of that in another one.
pub(crate) async fn make(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    attempt: &Attempt,
) -> Result<Vec<Queue>, zk::Error> {
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
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    attempt: &Attempt,
    parents_too: bool,
) -> Result<Vec<Queue>, zk::Error> {
    let client = &session.client;
    let request = session.send();
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
        let (parents, made, children) = futures_util::join!(join_all(with_parents), made, children);
        remember(shared, session, attempt, &parents);
        let (stat, sequence) = made?;
        (vec![format!("{stem}{sequence}")], Some(stat.czxid), vec![children])
    } else {
        let mut writer = client.new_multi_writer();
        for stem in &stems {
            writer.add_create(stem, &card, &node)?;
        }
        let made = writer.commit();
        let children = join_all(parents.iter().map(|parent| client.list_children(parent)));
        let (parents, made, children) = futures_util::join!(join_all(with_parents), made, children);
        remember(shared, session, attempt, &parents);
        let path = |result| match result {
            MultiWriteResult::Create { path, .. } => path,
            _ => String::new(),
        };
        let nodes: Vec<String> = made?.into_iter().map(path).collect();
        // What is made together has one number, which is not told by the making.
        let stat = client.check_stat(&nodes[0]).await?;
        (nodes, stat.map(|stat| stat.czxid), children)
    };
    session.prove(request);
    {
        let mut book = shared.book();
        if let Some(place) = book.places.get_mut(attempt.owner) {
            place.entry.nodes = nodes;
            place.entry.token = token.and_then(|token| u64::try_from(token).ok());
        }
    }
    let children: Vec<Vec<String>> = children.into_iter().collect::<Result<_, _>>()?;
    Ok(children.iter().map(Queue::of).collect())
}

/// Remembers which parents this attempt has made.
fn remember<T>(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    attempt: &Attempt,
    parents: &[Result<T, zk::Error>],
) {
    for (want, _) in attempt.wants.iter().zip(parents).filter(|(_, parent)| parent.is_ok()) {
        containers::made(shared, session, &want.name);
    }
}

/// The lines of an attempt as they are now, as far as this session has heard.
pub(crate) async fn lines(shared: &Shared, session: &Session, attempt: &Attempt) -> Result<Vec<Queue>> {
    let parents = attempt.wants.iter().map(|want| shared.line(&want.name));
    let lists: Vec<_> = parents.map(|parent| session.client.list_children(&parent)).collect();
    let lists = join_all(lists).await.into_iter().map(|children| match children {
        Ok(children) => Ok(Queue::of(&children)),
        Err(zk::Error::NoNode) => Ok(Queue::default()),
        Err(error) => Err(shared.setup.failed(&error)),
    });
    lists.collect()
}

/// Removes the nodes of an attempt and forgets it. If that fails it is tried again later.
pub(crate) async fn remove(
    shared: &Shared,
    session: &Session,
    attempt: &Attempt,
    nodes: &[String],
) -> Result<()> {
    {
        let now = shared.clock.now();
        let mut book = shared.book();
        if let Some(place) = book.places.get_mut(attempt.owner).filter(|place| place.entry.nodes == nodes) {
            // Nobody is to be granted what is being removed.
            place.entry.unwanted.get_or_insert(now + attempt.ttl);
        }
    }
    match delete_all(session, nodes).await {
        Ok(()) => {
            shared.forget_with(attempt.owner, nodes);
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
        let node = find_own(shared, session, &shared.line(&want.name), line, attempt).await?;
        found.push(node.unwrap_or_default());
    }
    let is_whole = match attempt.rule {
        Rule::All => found.iter().all(|node| !node.is_empty()),
        Rule::Any => found.iter().any(|node| !node.is_empty()),
    };
    if is_whole {
        let mut book = shared.book();
        let place = book.places.get_mut(attempt.owner);
        // Somebody else may have looked too, and have gone on already.
        if let Some(place) = place.filter(|place| !place.entry.coming && place.entry.nodes.is_empty()) {
            place.entry.nodes = found;
        }
        return Ok(true);
    }
    if let Err(error) = delete_all(session, &found).await {
        shared.unwant(attempt.owner);
        return Err(shared.setup.failed(&error));
    }
    shared.forget_with(attempt.owner, &[]);
    Ok(false)
}

/// Looks for the node that an owner has in this session. In one that has ended it may have another, which is not its own
/// any more although the servers do not know yet.
async fn find_own(
    shared: &Shared,
    session: &Session,
    parent: &str,
    line: &Queue,
    attempt: &Attempt,
) -> Result<Option<String>> {
    let may_be_its = |node: &&Node| node.owner.is_none_or(|owner| owner == attempt.owner);
    let nodes: Vec<(&Node, String)> = line
        .nodes()
        .iter()
        .filter(may_be_its)
        .map(|node| (node, format!("{parent}/{}", node.called)))
        .collect();
    let cards: Vec<_> = nodes.iter().map(|(_, path)| session.client.get_data(path)).collect();
    for ((node, path), data) in nodes.into_iter().zip(join_all(cards).await) {
        match data {
            Ok((data, stat)) => {
                let owner = node.owner.or_else(|| Card::from_bytes(&data).map(|card| card.owner));
                if stat.ephemeral_owner == session.id && owner == Some(attempt.owner) {
                    return Ok(Some(path));
                }
            }
            // Somebody else's, whose names do not say so.
            Err(zk::Error::NoNode | zk::Error::NoAuth) => {}
            Err(error) => return Err(shared.setup.failed(&error)),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_request_is_too_large_and_nothing_is_left_out() {
        let attempts: Vec<Vec<String>> = (0..2000).map(|at| vec!["x".repeat(1000); at % 3 + 1]).collect();
        let portions = portions(&attempts, |nodes| nodes);
        let size = |portion: &&[Vec<String>]| portion.iter().flatten().map(String::len).sum::<usize>();
        assert!(portions.len() > 2 && portions.iter().all(|portion| size(portion) <= LARGEST));
        assert_eq!(portions.concat(), attempts);
        let alone = [vec!["x".repeat(LARGEST * 2)], vec!["y".to_owned()]];
        assert_eq!(super::portions(&alone, |nodes| nodes).len(), 2);
        assert!(super::portions(&attempts[..0], |nodes| nodes).is_empty());
    }
}
