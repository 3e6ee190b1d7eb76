//! The nodes of an attempt: created, found again, removed.

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

/// How large a request is at most; servers take 1 MiB unless they are told otherwise, and hang up on more.
const MAX_REQUEST_SIZE: usize = 900 * 1024;
/// What a request says about a node besides its path and its data, at most.
const REQUEST_OVERHEAD: usize = 128;

/// Whether one request can make all nodes of an attempt.
pub(crate) fn fits_in_one_request(state: &ClientState, attempt: &Attempt) -> bool {
    let each = EntryMeta::new(attempt).to_bytes().len() + REQUEST_OVERHEAD;
    let paths = attempt.wants.iter().map(|want| state.lock_path(&want.name).len());
    paths.map(|path| path + each).sum::<usize>() <= MAX_REQUEST_SIZE
}

/// Splits what is to be asked about nodes, so that no request is too large. What is about one attempt stays together.
pub(crate) fn split_by_size<T>(all: &[T], nodes: impl Fn(&T) -> &[String]) -> Vec<&[T]> {
    let mut portions = Vec::new();
    let (mut from, mut size) = (0, 0);
    for (at, one) in all.iter().enumerate() {
        let more: usize = nodes(one).iter().map(|node| node.len() + REQUEST_OVERHEAD).sum();
        if at > from && size + more > MAX_REQUEST_SIZE {
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

/// What was created for an attempt.
pub(crate) struct CreatedNodes {
    pub(crate) paths: Vec<String>,
    /// `None` if the servers did not tell.
    pub(crate) token: Option<u64>,
    /// The queues of its locks.
    pub(crate) queues: Result<Vec<Queue>, zk::Error>,
}

/// Makes the nodes and reads the queues, in one flight; if parents are missing, they and all of that in another one.
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
    // Another program has removed everything.
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
    let request = session.on_send();
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
    // Every request is sent when its future is created; none is awaited before all are sent.
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
        // What is created together has one number, which is not told by the making.
        None => client.check_stat(&paths[0]).await.ok().flatten().map(|stat| stat.czxid),
    };
    let queues = children
        .into_iter()
        .map(|children| children.map(|children| Queue::from_children(&children)))
        .collect();
    Ok(CreatedNodes { paths, token: token.and_then(|token| u64::try_from(token).ok()), queues })
}

/// Returns the paths of the nodes that were created, and the transaction if that is told.
type Creation<'a> = BoxFuture<'a, Result<(Vec<String>, Option<i64>), zk::Error>>;

/// Sends the request that makes all nodes at once.
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

/// Returns the queue of a lock as it was read.
pub(crate) fn queue_from(ensemble: &Ensemble, children: Result<Vec<String>, zk::Error>) -> Result<Queue> {
    match children {
        Ok(children) => Ok(Queue::from_children(&children)),
        Err(zk::Error::NoNode) => Ok(Queue::default()),
        Err(error) => Err(ensemble.failed(&error)),
    }
}

/// Reads the queues of an attempt, as far as this session's server knows them.
pub(crate) async fn read_queues(
    state: &ClientState,
    session: &Session,
    attempt: &Attempt,
) -> Result<Vec<Queue>> {
    let parents = attempt.wants.iter().map(|want| state.lock_path(&want.name));
    let lists: Vec<_> = parents.map(|parent| session.client.list_children(&parent)).collect();
    join_all(lists).await.into_iter().map(|children| queue_from(&state.ensemble, children)).collect()
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

/// Looks for the nodes of a live entry that may have been created without an answer. Returns whether it has them; if not, it has
/// no entry any more.
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

/// Returns the nodes that an attempt has in this session; the path of one that it has not is empty. What was sent for it before
/// has arrived or is lost: requests of one session keep their order, and none of an old connection comes after a new one.
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

/// Looks for the node that an owner has in this session, and the transaction that created it. In a session that has ended the
/// owner may have another, which is not its own any more although the servers do not know yet.
async fn find_own_node(
    state: &ClientState,
    session: &Session,
    parent: &str,
    queue: &Queue,
    attempt: &Attempt,
) -> Result<Option<(String, u64)>> {
    let may_be_its = |node: &&Node| node.owner.is_none_or(|owner| owner == attempt.owner);
    for (node, read) in read_entries(&session.client, parent, queue.nodes().iter().filter(may_be_its)).await {
        match read {
            Ok((entry_meta, stat)) => {
                let owner = node.owner.or_else(|| entry_meta.map(|entry_meta| entry_meta.owner));
                if stat.ephemeral_owner == session.id && owner == Some(attempt.owner) {
                    let path = format!("{parent}/{}", node.name);
                    return Ok(Some((path, u64::try_from(stat.czxid).unwrap_or(0))));
                }
            }
            // The node of another client, whose names do not say so.
            Err(zk::Error::NoNode | zk::Error::NoAuth) => {}
            Err(error) => return Err(state.ensemble.failed(&error)),
        }
    }
    Ok(None)
}

/// What a contender's node says about itself, if it is one of ours.
pub(crate) type EntryRead = Result<(Option<EntryMeta>, Stat), zk::Error>;

/// Reads contenders' nodes below a lock, all at once.
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
    fn no_request_is_too_large_and_nothing_is_left_out() {
        let attempts: Vec<Vec<String>> = (0..2000).map(|at| vec!["x".repeat(1000); at % 3 + 1]).collect();
        let portions = split_by_size(&attempts, |nodes| nodes);
        let size = |portion: &&[Vec<String>]| portion.iter().flatten().map(String::len).sum::<usize>();
        assert!(portions.len() > 2 && portions.iter().all(|portion| size(portion) <= MAX_REQUEST_SIZE));
        assert_eq!(portions.concat(), attempts);
        let alone = [vec!["x".repeat(MAX_REQUEST_SIZE * 2)], vec!["y".to_owned()]];
        assert_eq!(super::split_by_size(&alone, |nodes| nodes).len(), 2);
        assert!(super::split_by_size(&attempts[..0], |nodes| nodes).is_empty());
    }
}
