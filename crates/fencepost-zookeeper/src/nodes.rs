//! Creates, finds and deletes the nodes of an attempt.

use std::sync::Arc;

use fencepost_contenders::EntryMeta;
use fencepost_core::{Attempt, Result, Rule};
use futures_util::future::{BoxFuture, join_all};
use zookeeper_client::{self as zk, CreateMode, CreateOptions, MultiWriteResult, Stat};

use crate::containers;
use crate::ensemble::Ensemble;
use crate::layout::{Node, stem};
use crate::orphans::discard_entry;
use crate::queue::Queue;
use crate::registry::Nodes;
use crate::session::Session;
use crate::state::ClientState;

/// The largest request that is sent. Servers accept 1 MiB by default and close the connection on more
/// (`jute.maxbuffer`).
const MAX_REQUEST_SIZE: usize = 900 * 1024;
/// An upper bound of the bytes that a request has for one node besides its path and data.
const REQUEST_OVERHEAD: usize = 128;

/// Returns whether one request can create all nodes of an attempt.
pub(crate) fn fits_in_one_request(state: &ClientState, attempt: &Attempt) -> bool {
    let each = EntryMeta::new(attempt).to_bytes().len() + REQUEST_OVERHEAD;
    let paths = attempt.wants.iter().map(|want| state.lock_path(&want.name).len());
    paths.map(|path| path + each).sum::<usize>() <= MAX_REQUEST_SIZE
}

/// Splits items so that a request about the nodes of one chunk is not too large. The nodes of one item stay together.
pub(crate) fn split_by_size<T>(all: &[T], nodes: impl Fn(&T) -> &[String]) -> Vec<&[T]> {
    let mut chunks = Vec::new();
    let (mut from, mut size) = (0, 0);
    for (at, one) in all.iter().enumerate() {
        let more: usize = nodes(one).iter().map(|node| node.len() + REQUEST_OVERHEAD).sum();
        if at > from && size + more > MAX_REQUEST_SIZE {
            chunks.push(&all[from..at]);
            (from, size) = (at, 0);
        }
        size += more;
    }
    if from < all.len() {
        chunks.push(&all[from..]);
    }
    chunks
}

/// The nodes created for an attempt.
pub(crate) struct CreatedNodes {
    pub(crate) paths: Vec<String>,
    /// `None` if the reply did not contain it and it could not be read.
    pub(crate) token: Option<u64>,
    /// The queues of its locks, read after the create.
    pub(crate) queues: Result<Vec<Queue>, zk::Error>,
}

/// Creates the nodes and reads the queues in one round trip. If parents are missing, a second one creates them too.
pub(crate) async fn create_nodes(
    state: &Arc<ClientState>,
    session: &Arc<Session>,
    attempt: &Attempt,
) -> Result<CreatedNodes> {
    let failed = |error: zk::Error| state.ensemble.failed(&error);
    for with_parents in [false, true] {
        match create_nodes_once(state, session, attempt, with_parents).await {
            Err(zk::Error::NoNode) => {}
            created => return created.map_err(failed),
        }
    }
    // A foreign client has deleted the base nodes.
    state.ensemble.create_base_nodes(&session.client).await?;
    create_nodes_once(state, session, attempt, true).await.map_err(failed)
}

async fn create_nodes_once(
    state: &Arc<ClientState>,
    session: &Arc<Session>,
    attempt: &Attempt,
    with_parents: bool,
) -> Result<CreatedNodes, zk::Error> {
    let client = &session.client;
    let request = session.start_request();
    let entry_meta = EntryMeta::new(attempt).to_bytes();
    let parents: Vec<String> = attempt.wants.iter().map(|want| state.lock_path(&want.name)).collect();
    let dialect = state.ensemble.config.dialect;
    let wants = attempt.wants.iter().zip(&parents);
    let stems: Vec<String> =
        wants.map(|(want, parent)| format!("{parent}/{}", stem(dialect, attempt.owner, want.mode))).collect();
    let (container, node) = (
        state.ensemble.create_options(CreateMode::Container),
        state.ensemble.create_options(CreateMode::EphemeralSequential),
    );
    // A request is sent when its future is created: all are sent before the first is awaited.
    let created_parents: Vec<_> = parents
        .iter()
        .filter(|_| with_parents)
        .map(|parent| client.create(parent, b"", &container))
        .collect();
    let created = send_create(client, &stems, &entry_meta, &node)?;
    let children: Vec<_> = parents.iter().map(|parent| client.list_children(parent)).collect();
    let (parents, created, children) =
        futures_util::join!(join_all(created_parents), created, join_all(children));
    for (want, _) in attempt.wants.iter().zip(&parents).filter(|(_, parent)| parent.is_ok()) {
        containers::on_created(state, session, &want.name);
    }
    let (paths, token) = created?;
    session.on_write_reply(request);
    let token = match token {
        Some(token) => Some(token),
        // The nodes of one transaction have the same zxid, which its reply does not contain.
        None => client.check_stat(&paths[0]).await.ok().flatten().map(|stat| stat.czxid),
    };
    let queues = children
        .into_iter()
        .map(|children| children.map(|children| Queue::from_children(&children)))
        .collect();
    Ok(CreatedNodes { paths, token: token.and_then(|token| u64::try_from(token).ok()), queues })
}

/// The paths of the created nodes, and their zxid if the reply contains it.
type Creation<'a> = BoxFuture<'a, Result<(Vec<String>, Option<i64>), zk::Error>>;

/// Sends the request that creates all nodes in one transaction.
fn send_create<'a>(
    client: &'a zk::Client,
    stems: &'a [String],
    entry_meta: &[u8],
    node: &CreateOptions<'_>,
) -> Result<Creation<'a>, zk::Error> {
    if let [stem] = stems {
        let created = client.create(stem, entry_meta, node);
        return Ok(Box::pin(async move {
            let (stat, sequence) = created.await?;
            Ok((vec![format!("{stem}{sequence}")], Some(stat.czxid)))
        }));
    }
    let mut writer = client.new_multi_writer();
    for stem in stems {
        writer.add_create(stem, entry_meta, node)?;
    }
    let created = writer.commit();
    let path = |result| match result {
        MultiWriteResult::Create { path, .. } => path,
        _ => String::new(),
    };
    Ok(Box::pin(async move { Ok((created.await?.into_iter().map(path).collect(), None)) }))
}

/// Returns the queue of a lock from the children of its node. A missing node is an empty queue.
pub(crate) fn queue_from(ensemble: &Ensemble, children: Result<Vec<String>, zk::Error>) -> Result<Queue> {
    match children {
        Ok(children) => Ok(Queue::from_children(&children)),
        Err(zk::Error::NoNode) => Ok(Queue::default()),
        Err(error) => Err(ensemble.failed(&error)),
    }
}

/// Reads the queues of an attempt as the server of this session knows them.
pub(crate) async fn read_queues(
    state: &ClientState,
    session: &Session,
    attempt: &Attempt,
) -> Result<Vec<Queue>> {
    let parents = attempt.wants.iter().map(|want| state.lock_path(&want.name));
    let lists: Vec<_> = parents.map(|parent| session.client.list_children(&parent)).collect();
    join_all(lists).await.into_iter().map(|children| queue_from(&state.ensemble, children)).collect()
}

/// Deletes the nodes that exist.
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

/// Finds the nodes of a live entry whose creation has an unknown outcome. Returns whether they exist; if not, the entry
/// is removed.
pub(crate) async fn recover_nodes(
    state: &ClientState,
    session: &Arc<Session>,
    attempt: &Attempt,
) -> Result<bool> {
    let found = find_nodes(state, session, attempt).await?;
    let is_whole = match attempt.rule {
        Rule::All => found.paths.iter().all(|node| !node.is_empty()),
        Rule::Any => found.paths.iter().any(|node| !node.is_empty()),
    };
    if let Some(own) = state.registry().entries.get_mut(attempt.owner) {
        own.entry.nodes = Some(found);
    }
    if !is_whole {
        discard_entry(state, attempt.owner).await?;
    }
    Ok(is_whole)
}

/// Returns the nodes of an attempt in this session, with an empty path for each missing one. Earlier requests of the
/// attempt have been applied or are lost: a session keeps the order of its requests, and no request of an old
/// connection is applied after a new connection.
pub(crate) async fn find_nodes(state: &ClientState, session: &Session, attempt: &Attempt) -> Result<Nodes> {
    session.wait_connected(&state.ensemble, &state.clock).await?;
    let sync = session.client.sync(state.ensemble.layout.locks());
    let queues = read_queues(state, session, attempt);
    let (synced, queues) = futures_util::join!(sync, queues);
    synced.map_err(|error| state.ensemble.failed(&error))?;
    let mut found = Nodes { paths: Vec::new(), token: 0 };
    for (want, queue) in attempt.wants.iter().zip(&queues?) {
        let node = find_own_node(state, session, &state.lock_path(&want.name), queue, attempt).await?;
        let (path, token) = node.unwrap_or_default();
        found.paths.push(path);
        found.token = found.token.max(token);
    }
    Ok(found)
}

/// Finds the node that an owner has in this session, and the zxid that created it. A node that the owner has in a
/// former session does not count: the servers may not have expired that session yet.
async fn find_own_node(
    state: &ClientState,
    session: &Session,
    parent: &str,
    queue: &Queue,
    attempt: &Attempt,
) -> Result<Option<(String, u64)>> {
    let may_be_own = |node: &&Node| node.owner.is_none_or(|owner| owner == attempt.owner);
    for (node, read) in read_entries(&session.client, parent, queue.nodes().iter().filter(may_be_own)).await {
        match read {
            Ok((entry_meta, stat)) => {
                let owner = node.owner.or_else(|| entry_meta.map(|entry_meta| entry_meta.owner));
                if stat.ephemeral_owner == session.id && owner == Some(attempt.owner) {
                    let path = format!("{parent}/{}", node.name);
                    return Ok(Some((path, u64::try_from(stat.czxid).unwrap_or(0))));
                }
            }
            // A node of another client, whose name does not contain its owner.
            Err(zk::Error::NoNode | zk::Error::NoAuth) => {}
            Err(error) => return Err(state.ensemble.failed(&error)),
        }
    }
    Ok(None)
}

/// The data of a contender's node, `None` if a foreign client wrote it, and its stat.
pub(crate) type EntryRead = Result<(Option<EntryMeta>, Stat), zk::Error>;

/// Reads contenders' nodes below a lock, all in one round trip.
pub(crate) async fn read_entries<'a>(
    client: &zk::Client,
    parent: &str,
    nodes: impl Iterator<Item = &'a Node>,
) -> Vec<(&'a Node, EntryRead)> {
    let reads = nodes.map(|node| {
        let data = client.get_data(&format!("{parent}/{}", node.name));
        async move { (node, data.await.map(|(bytes, stat)| (EntryMeta::from_bytes(&bytes), stat))) }
    });
    join_all(reads).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_small_enough_and_complete() {
        let attempts: Vec<Vec<String>> = (0..2000).map(|at| vec!["x".repeat(1000); at % 3 + 1]).collect();
        let chunks = split_by_size(&attempts, |nodes| nodes);
        let size = |chunk: &&[Vec<String>]| chunk.iter().flatten().map(String::len).sum::<usize>();
        assert!(chunks.len() > 2 && chunks.iter().all(|chunk| size(chunk) <= MAX_REQUEST_SIZE));
        assert_eq!(chunks.concat(), attempts);
        let alone = [vec!["x".repeat(MAX_REQUEST_SIZE * 2)], vec!["y".to_owned()]];
        assert_eq!(super::split_by_size(&alone, |nodes| nodes).len(), 2);
        assert!(super::split_by_size(&attempts[..0], |nodes| nodes).is_empty());
    }
}
