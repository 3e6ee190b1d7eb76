//! The nodes of an attempt: made, found again, removed.

use std::sync::Arc;

use fencepost_contenders::Card;
use fencepost_core::{Attempt, Result, Rule};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, CreateMode, MultiWriteResult};

use crate::paths::stem;
use crate::queue::Queue;
use crate::session::Session;
use crate::shared::Shared;

/// Makes the nodes and reads the lines, in one flight; if parents are missing, they and all of that in another one.
pub(crate) async fn make(
    shared: &Shared,
    session: &Session,
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
    shared: &Shared,
    session: &Session,
    attempt: &Attempt,
    parents_too: bool,
) -> Result<Vec<Queue>, zk::Error> {
    let client = &session.client;
    let sent = shared.clock.now();
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
    session.prove(sent);
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
    line: &Queue,
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
