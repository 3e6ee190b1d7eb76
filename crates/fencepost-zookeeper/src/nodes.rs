//! The nodes of an attempt: made, found again, removed.

use std::sync::Arc;

use fencepost_contenders::EntryMeta;
use fencepost_core::{Attempt, Result, Rule};
use futures_util::future::{BoxFuture, join_all};
use zookeeper_client::{self as zk, CreateMode, CreateOptions, MultiWriteResult, Stat};

use crate::containers;
use crate::orphans::discard;
use crate::paths::{Node, stem};
use crate::queue::Queue;
use crate::registry::Nodes;
use crate::session::Session;
use crate::setup::Setup;
use crate::shared::Shared;

/// How large a request is at most; servers take 1 MiB unless they are told otherwise, and hang up on more.
const LARGEST: usize = 900 * 1024;
/// What a request says about a node besides its path and its data, at most.
const BESIDES: usize = 128;

/// Whether one request can make all nodes of an attempt.
pub(crate) fn fits(shared: &Shared, attempt: &Attempt) -> bool {
    let each = EntryMeta::new(attempt).to_bytes().len() + BESIDES;
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

/// What was made for an attempt.
pub(crate) struct Made {
    pub(crate) paths: Vec<String>,
    /// `None` if the servers did not tell.
    pub(crate) token: Option<u64>,
    /// The lines of its locks.
    pub(crate) lines: Result<Vec<Queue>, zk::Error>,
}

/// Makes the nodes and reads the lines, in one flight; if parents are missing, they and all of that in another one.
pub(crate) async fn make(shared: &Arc<Shared>, session: &Arc<Session>, attempt: &Attempt) -> Result<Made> {
    let failed = |error: zk::Error| shared.setup.failed(&error);
    for parents_too in [false, true] {
        match make_once(shared, session, attempt, parents_too).await {
            Err(zk::Error::NoNode) => {}
            made => return made.map_err(failed),
        }
    }
    // Another program has removed everything.
    shared.setup.lay_foundations(&session.client).await?;
    make_once(shared, session, attempt, true).await.map_err(failed)
}

async fn make_once(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    attempt: &Attempt,
    parents_too: bool,
) -> Result<Made, zk::Error> {
    let client = &session.client;
    let request = session.send();
    let entry_meta = EntryMeta::new(attempt).to_bytes();
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
    let made = create(client, &stems, &entry_meta, &node)?;
    let children: Vec<_> = parents.iter().map(|parent| client.list_children(parent)).collect();
    let (parents, made, children) = futures_util::join!(join_all(with_parents), made, join_all(children));
    for (want, _) in attempt.wants.iter().zip(&parents).filter(|(_, parent)| parent.is_ok()) {
        containers::made(shared, session, &want.name);
    }
    let (paths, token) = made?;
    session.prove(request);
    let token = match token {
        Some(token) => Some(token),
        // What is made together has one number, which is not told by the making.
        None => client.check_stat(&paths[0]).await.ok().flatten().map(|stat| stat.czxid),
    };
    let lines = children.into_iter().map(|children| children.map(|children| Queue::of(&children))).collect();
    Ok(Made { paths, token: token.and_then(|token| u64::try_from(token).ok()), lines })
}

/// Returns the paths of the nodes that were made, and the transaction if that is told.
type Creation<'a> = BoxFuture<'a, Result<(Vec<String>, Option<i64>), zk::Error>>;

/// Sends the request that makes all nodes at once.
fn create<'a>(
    client: &'a zk::Client,
    stems: &'a [String],
    entry_meta: &[u8],
    node: &CreateOptions<'_>,
) -> Result<Creation<'a>, zk::Error> {
    if let [stem] = stems {
        let made = client.create(stem, entry_meta, node);
        return Ok(Box::pin(async move {
            let (stat, sequence) = made.await?;
            Ok((vec![format!("{stem}{sequence}")], Some(stat.czxid)))
        }));
    }
    let mut writer = client.new_multi_writer();
    for stem in stems {
        writer.add_create(stem, entry_meta, node)?;
    }
    let made = writer.commit();
    let path = |result| match result {
        MultiWriteResult::Create { path, .. } => path,
        _ => String::new(),
    };
    Ok(Box::pin(async move { Ok((made.await?.into_iter().map(path).collect(), None)) }))
}

/// Returns the line of a lock as it was read.
pub(crate) fn line_of(setup: &Setup, children: Result<Vec<String>, zk::Error>) -> Result<Queue> {
    match children {
        Ok(children) => Ok(Queue::of(&children)),
        Err(zk::Error::NoNode) => Ok(Queue::default()),
        Err(error) => Err(setup.failed(&error)),
    }
}

/// Reads the lines of an attempt, as far as this session's server knows them.
pub(crate) async fn lines(shared: &Shared, session: &Session, attempt: &Attempt) -> Result<Vec<Queue>> {
    let parents = attempt.wants.iter().map(|want| shared.line(&want.name));
    let lists: Vec<_> = parents.map(|parent| session.client.list_children(&parent)).collect();
    join_all(lists).await.into_iter().map(|children| line_of(&shared.setup, children)).collect()
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

/// Looks for the nodes of a live entry that may have been made without an answer. Returns whether it has them; if not, it has
/// no entry any more.
pub(crate) async fn find_again(shared: &Shared, session: &Arc<Session>, attempt: &Attempt) -> Result<bool> {
    let found = find(shared, session, attempt).await?;
    let is_whole = match attempt.rule {
        Rule::All => found.paths.iter().all(|node| !node.is_empty()),
        Rule::Any => found.paths.iter().any(|node| !node.is_empty()),
    };
    if let Some(place) = shared.registry().places.get_mut(attempt.owner) {
        place.entry.nodes = Some(found);
    }
    if !is_whole {
        discard(shared, attempt.owner).await?;
    }
    Ok(is_whole)
}

/// Returns the nodes that an attempt has in this session; the path of one that it has not is empty. What was sent for it before
/// has arrived or is lost: requests of one session keep their order, and none of an old connection comes after a new one.
pub(crate) async fn find(shared: &Shared, session: &Session, attempt: &Attempt) -> Result<Nodes> {
    session.connected(&shared.setup, &shared.clock).await?;
    let sync = session.client.sync(shared.setup.paths.locks());
    let lines = lines(shared, session, attempt);
    let (synced, lines) = futures_util::join!(sync, lines);
    synced.map_err(|error| shared.setup.failed(&error))?;
    let mut found = Nodes { paths: Vec::new(), token: 0 };
    for (want, line) in attempt.wants.iter().zip(&lines?) {
        let node = find_own(shared, session, &shared.line(&want.name), line, attempt).await?;
        let (path, token) = node.unwrap_or_default();
        found.paths.push(path);
        found.token = found.token.max(token);
    }
    Ok(found)
}

/// Looks for the node that an owner has in this session, and the transaction that made it. In a session that has ended the
/// owner may have another, which is not its own any more although the servers do not know yet.
async fn find_own(
    shared: &Shared,
    session: &Session,
    parent: &str,
    line: &Queue,
    attempt: &Attempt,
) -> Result<Option<(String, u64)>> {
    let may_be_its = |node: &&Node| node.owner.is_none_or(|owner| owner == attempt.owner);
    for (node, read) in read(&session.client, parent, line.nodes().iter().filter(may_be_its)).await {
        match read {
            Ok((entry_meta, stat)) => {
                let owner = node.owner.or_else(|| entry_meta.map(|entry_meta| entry_meta.owner));
                if stat.ephemeral_owner == session.id && owner == Some(attempt.owner) {
                    let path = format!("{parent}/{}", node.called);
                    return Ok(Some((path, u64::try_from(stat.czxid).unwrap_or(0))));
                }
            }
            // The node of another client, whose names do not say so.
            Err(zk::Error::NoNode | zk::Error::NoAuth) => {}
            Err(error) => return Err(shared.setup.failed(&error)),
        }
    }
    Ok(None)
}

/// What a contender's node says about itself, if it is one of ours.
pub(crate) type Read = Result<(Option<EntryMeta>, Stat), zk::Error>;

/// Reads contenders' nodes below a lock, all at once.
pub(crate) async fn read<'a>(
    client: &zk::Client,
    parent: &str,
    nodes: impl Iterator<Item = &'a Node>,
) -> Vec<(&'a Node, Read)> {
    let reads = nodes.map(|node| {
        let data = client.get_data(&format!("{parent}/{}", node.called));
        async move { (node, data.await.map(|(bytes, stat)| (EntryMeta::from_bytes(&bytes), stat))) }
    });
    join_all(reads).await
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
