//! Inspects, lists and breaks locks.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fencepost_contenders::{Contender, EntryMeta, MultiState, lock_state};
use fencepost_core::backend::{ListPage, LockState, Page, Reply, WaiterState};
use fencepost_core::clock::wall_time;
use fencepost_core::{Cell, FencingToken, LockName, Mode, Owner, Result};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, CreateMode, MultiWriteError, Stat};

use crate::cell::drop_expired;
use crate::layout::Node;
use crate::node_name::decode;
use crate::nodes::{EntryRead, queue_from, read_entries};
use crate::queue::Queue;
use crate::session::Session;
use crate::state::ClientState;

/// How many locks are inspected at a time.
const INSPECTED_AT_ONCE: usize = 16;
/// How many locks are checked for contenders at a time.
const STATS_AT_ONCE: usize = 512;

/// A lock as it was read.
struct LockSnapshot {
    queue: Queue,
    persistent: Option<Cell>,
    /// The holders and the first waiters.
    first: Vec<EntrySnapshot>,
}

/// One contender as it was read.
struct EntrySnapshot {
    node: Node,
    stat: Stat,
    meta: Option<EntryMeta>,
    multi: MultiState,
}

impl LockSnapshot {
    fn holders(&self) -> impl Iterator<Item = &EntrySnapshot> {
        let holding = self.queue.holder_count();
        let held: Vec<&str> = self.queue.nodes()[..holding].iter().map(|node| node.name.as_str()).collect();
        let holds = move |entry: &&EntrySnapshot| {
            entry.multi == MultiState::Ready && held.contains(&entry.node.name.as_str())
        };
        self.first.iter().filter(holds)
    }
}

async fn read_lock(
    state: &ClientState,
    session: &Session,
    name: &LockName,
    waiters: usize,
) -> Result<LockSnapshot> {
    let failed = |error: zk::Error| state.ensemble.failed(&error);
    let (parent, cell_path) = (state.lock_path(name), state.ensemble.layout.cell(name));
    let (sync, children, cell) = (
        session.client.sync(&parent),
        session.client.list_children(&parent),
        session.client.get_data(&cell_path),
    );
    let (synced, children, cell) = futures_util::join!(sync, children, cell);
    synced.map_err(failed)?;
    let queue = queue_from(&state.ensemble, children)?;
    let persistent = drop_expired(session, &cell_path, cell).await.map_err(failed)?;
    let nodes = queue.nodes().iter().take(queue.holder_count() + waiters);
    let mut first = Vec::new();
    for (node, read) in read_entries(&session.client, &parent, nodes).await {
        match read {
            Ok((entry_meta, stat)) => {
                first.push(EntrySnapshot {
                    node: node.clone(),
                    stat,
                    meta: entry_meta,
                    multi: MultiState::Ready,
                });
            }
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    for entry in &mut first {
        if let Some(entry_meta) = entry.meta.as_ref().filter(|entry_meta| !entry_meta.names.is_empty()) {
            let mut held = Vec::new();
            for other in &entry_meta.names {
                let (parent, queue, node) = find_entry(state, session, entry_meta.owner, other).await?;
                let mut holding = queue.nodes()[..queue.holder_count()].iter();
                if holding.any(|there| Some(format!("{parent}/{}", there.name)) == node) {
                    held.push(other);
                }
            }
            entry.multi = MultiState::of(entry_meta, name, |other| held.contains(&other));
        }
    }
    Ok(LockSnapshot { queue, persistent, first })
}

/// Returns the node of a lock, its queue, and the path of this owner's node.
async fn find_entry(
    state: &ClientState,
    session: &Session,
    owner: Owner,
    name: &LockName,
) -> Result<(String, Queue, Option<String>)> {
    let parent = state.lock_path(name);
    let queue = queue_from(&state.ensemble, session.client.list_children(&parent).await)?;
    if let Some(node) = queue.find(owner) {
        let node = format!("{parent}/{}", node.name);
        return Ok((parent, queue, Some(node)));
    }
    let without_owner = queue.nodes().iter().filter(|node| node.owner.is_none());
    let entries = read_entries(&session.client, &parent, without_owner).await;
    let is_of_owner =
        |read: &EntryRead| matches!(read, Ok((Some(entry_meta), _)) if entry_meta.owner == owner);
    let node = entries.iter().find(|(_, read)| is_of_owner(read));
    let node = node.map(|(node, _)| format!("{parent}/{}", node.name));
    Ok((parent, queue, node))
}

/// Returns the holders and waiters of a lock.
pub(crate) async fn inspect(state: &Arc<ClientState>, name: &LockName) -> Result<LockState> {
    let session = state.control_session().await?;
    inspect_in(state, &session, name).await
}

async fn inspect_in(state: &ClientState, session: &Session, name: &LockName) -> Result<LockState> {
    let snapshot = read_lock(state, session, name, LockState::MAX_WAITERS).await?;
    let renewed = renewals(state, session, &snapshot).await?;
    let now = session.server_time();
    let contender = |entry: &EntrySnapshot| {
        let renewed_at = renewed.get(&entry.stat.ephemeral_owner).copied().unwrap_or(0).max(entry.stat.ctime);
        let elapsed = Duration::from_millis(u64::try_from(now - renewed_at).unwrap_or(0));
        Contender {
            token: FencingToken::new(u64::try_from(entry.stat.czxid).unwrap_or(0)),
            mode: entry.node.mode,
            entry_meta: entry.meta.clone(),
            entry_name: entry.node.name.clone(),
            expires_in: entry.meta.as_ref().map(|entry_meta| entry_meta.ttl.saturating_sub(elapsed)),
            multi: entry.multi,
        }
    };
    let queue: Vec<Contender> = snapshot.first.iter().map(contender).collect();
    let unread = snapshot.queue.nodes().len() - queue.len();
    let mut lock = lock_state(name, &queue, snapshot.persistent, wall_time());
    let registry = state.registry();
    let local: Vec<_> = registry.entries.local_waiters(name).collect();
    lock.waiter_count += unread + local.len();
    let room = LockState::MAX_WAITERS.saturating_sub(lock.waiters.len());
    lock.waiters.extend(local.into_iter().take(room).map(|attempt| {
        let want = attempt.wants.iter().find(|want| want.name == *name);
        WaiterState::new(want.map_or(Mode::Exclusive, |want| want.mode), attempt.label.clone())
    }));
    Ok(lock)
}

/// Returns when the sessions of the holders were last renewed, on the servers' clock.
async fn renewals(
    state: &ClientState,
    session: &Session,
    snapshot: &LockSnapshot,
) -> Result<HashMap<i64, i64>> {
    let ids: BTreeSet<i64> = snapshot.holders().map(|entry| entry.stat.ephemeral_owner).collect();
    let reads: Vec<_> =
        ids.iter().map(|id| session.client.check_stat(&state.ensemble.layout.session(*id))).collect();
    let mut renewed = HashMap::new();
    for (id, stat) in ids.into_iter().zip(join_all(reads).await) {
        if let Some(stat) = stat.map_err(|error| state.ensemble.failed(&error))? {
            renewed.insert(id, stat.mtime);
        }
    }
    Ok(renewed)
}

/// Reads the cell of a lock: the one of its holder, or the persistent one.
pub(crate) async fn read_cell(state: &Arc<ClientState>, name: &LockName) -> Result<Reply> {
    let session = state.control_session().await?;
    let snapshot = read_lock(state, &session, name, 0).await?;
    let held = snapshot.holders().find_map(|entry| {
        let bytes = entry.meta.as_ref()?.cell.clone()?;
        Some(Cell { token: FencingToken::new(u64::try_from(entry.stat.czxid).ok()?), bytes })
    });
    Ok(Reply::Cell(held.or(snapshot.persistent)))
}

/// Returns a page of the locks in use. The servers return names in no order, so each page reads all of them.
pub(crate) async fn list(state: &Arc<ClientState>, prefix: &str, page: &Page) -> Result<ListPage> {
    let session = state.control_session().await?;
    let (locks, cells) = (state.ensemble.layout.locks(), state.ensemble.layout.cells());
    let (sync, locks, cells) = (
        session.client.sync(locks),
        session.client.list_children(locks),
        session.client.list_children(&cells),
    );
    let (synced, locks, cells) = futures_util::join!(sync, locks, cells);
    synced.map_err(|error| state.ensemble.failed(&error))?;
    let locks_of = |children: Result<Vec<String>, zk::Error>| match children {
        Ok(children) => Ok(children.iter().filter_map(|child| decode(child)).collect()),
        Err(zk::Error::NoNode) => Ok(BTreeSet::new()),
        Err(error) => Err(state.ensemble.failed(&error)),
    };
    let (names, persistent) = (locks_of(locks)?, locks_of(cells)?);
    let names: BTreeSet<&LockName> = names.union(&persistent).collect();
    let after = page.after.as_ref();
    let matches =
        |name: &&LockName| name.as_str().starts_with(prefix) && after.is_none_or(|after| *name > after);
    let names: Vec<&LockName> = names.into_iter().filter(matches).collect();
    let mut found = Vec::new();
    'full: for names in names.chunks(STATS_AT_ONCE) {
        for names in in_use(state, &session, names, &persistent).await?.chunks(INSPECTED_AT_ONCE) {
            for lock in join_all(names.iter().map(|name| inspect_in(state, &session, name))).await {
                let lock = lock?;
                if !lock.is_idle() {
                    found.push(lock);
                }
            }
            if found.len() > page.limit {
                break 'full;
            }
        }
    }
    let has_more = found.len() > page.limit;
    found.truncate(page.limit);
    let next = found.last().filter(|_| has_more).map(|lock| lock.name.clone());
    Ok(ListPage { locks: found, next })
}

/// Returns the locks that have contenders or a persistent cell: lock nodes outlive their contenders.
async fn in_use<'a>(
    state: &ClientState,
    session: &Session,
    names: &[&'a LockName],
    persistent: &BTreeSet<LockName>,
) -> Result<Vec<&'a LockName>> {
    let reads: Vec<_> = names.iter().map(|name| session.client.check_stat(&state.lock_path(name))).collect();
    let mut used = Vec::new();
    for (name, stat) in names.iter().zip(join_all(reads).await) {
        let stat = stat.map_err(|error| state.ensemble.failed(&error))?;
        if stat.is_some_and(|stat| stat.num_children > 0) || persistent.contains(*name) {
            used.push(*name);
        }
    }
    Ok(used)
}

/// Breaks the grant with this token.
pub(crate) async fn break_lock(
    state: &Arc<ClientState>,
    name: &LockName,
    token: FencingToken,
) -> Result<Reply> {
    let session = state.control_session().await?;
    let snapshot = read_lock(state, &session, name, 0).await?;
    let Some(holder) = snapshot.holders().find(|entry| u64::try_from(entry.stat.czxid) == Ok(token.get()))
    else {
        return Ok(Reply::NotHeld);
    };
    let mut nodes = vec![format!("{}/{}", state.lock_path(name), holder.node.name)];
    let mut notice = None;
    if let Some(entry_meta) = &holder.meta {
        notice = Some(state.ensemble.layout.break_notice(entry_meta.owner));
        for other in entry_meta.names.iter().filter(|other| *other != name && !entry_meta.any) {
            nodes.extend(find_entry(state, &session, entry_meta.owner, other).await?.2);
        }
    }
    match break_nodes(state, &session, &nodes, notice.as_deref()).await {
        Ok(()) => {
            if let Some(notice) = &notice {
                state.add_break_notice(notice);
            }
            Ok(Reply::Released)
        }
        Err(MultiWriteError::OperationFailed { source: zk::Error::NoNode, .. }) => Ok(Reply::NotHeld),
        Err(error) => Err(state.ensemble.failed(&error.into())),
    }
}

/// Deletes the nodes of a grant and creates the notice for its owner, in one transaction.
async fn break_nodes(
    state: &ClientState,
    session: &Session,
    nodes: &[String],
    notice: Option<&str>,
) -> Result<(), MultiWriteError> {
    let broken = session.transact(|writer| {
        nodes.iter().try_for_each(|node| writer.add_delete(node, None))?;
        let ephemeral = state.ensemble.create_options(CreateMode::Ephemeral);
        notice.map_or(Ok(()), |notice| writer.add_create(notice, b"", &ephemeral))
    });
    match broken.await {
        // The notice exists already.
        Err(MultiWriteError::OperationFailed { source: zk::Error::NodeExists, .. }) => {
            Box::pin(break_nodes(state, session, nodes, None)).await
        }
        other => other,
    }
}
