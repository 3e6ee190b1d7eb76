//! Looks at locks, for people; and breaks them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fencepost_contenders::{Contender, EntryMeta, MultiState, lock_state};
use fencepost_core::backend::{ListPage, LockState, Page, Reply, WaiterState};
use fencepost_core::clock::wall_time;
use fencepost_core::{Cell, FencingToken, LockName, Mode, Owner, Result};
use futures_util::future::join_all;
use zookeeper_client::{self as zk, CreateMode, MultiWriteError, Stat};

use crate::cell::kept;
use crate::naming::decode;
use crate::nodes::{Read, line_of, read};
use crate::paths::Node;
use crate::queue::Queue;
use crate::session::Session;
use crate::shared::Shared;

/// How many locks are looked at at once.
const AT_ONCE: usize = 16;
/// Of how many locks it is asked at once whether there are contenders.
const COUNTED_AT_ONCE: usize = 512;

/// A lock as it was read.
struct Look {
    line: Queue,
    kept: Option<Cell>,
    /// Those who hold and the first who wait.
    first: Vec<Seen>,
}

/// One contender as it was read.
struct Seen {
    node: Node,
    stat: Stat,
    entry_meta: Option<EntryMeta>,
    elsewhere: MultiState,
}

impl Look {
    fn holders(&self) -> impl Iterator<Item = &Seen> {
        let holding = self.line.holding();
        let held: Vec<&str> = self.line.nodes()[..holding].iter().map(|node| node.called.as_str()).collect();
        let holds = move |seen: &&Seen| {
            seen.elsewhere == MultiState::Ready && held.contains(&seen.node.called.as_str())
        };
        self.first.iter().filter(holds)
    }
}

async fn look(shared: &Shared, session: &Session, name: &LockName, waiters: usize) -> Result<Look> {
    let failed = |error: zk::Error| shared.setup.failed(&error);
    let (parent, place) = (shared.line(name), shared.setup.paths.cell(name));
    let (sync, children, cell) = (
        session.client.sync(&parent),
        session.client.list_children(&parent),
        session.client.get_data(&place),
    );
    let (synced, children, cell) = futures_util::join!(sync, children, cell);
    synced.map_err(failed)?;
    let line = line_of(&shared.setup, children)?;
    let kept = kept(session, &place, cell).await.map_err(failed)?;
    let nodes = line.nodes().iter().take(line.holding() + waiters);
    let mut first = Vec::new();
    for (node, read) in read(&session.client, &parent, nodes).await {
        match read {
            Ok((entry_meta, stat)) => {
                first.push(Seen { node: node.clone(), stat, entry_meta, elsewhere: MultiState::Ready });
            }
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    for seen in &mut first {
        if let Some(entry_meta) = seen.entry_meta.as_ref().filter(|entry_meta| !entry_meta.names.is_empty()) {
            let mut held = Vec::new();
            for other in &entry_meta.names {
                let (parent, line, node) = place_of(shared, session, entry_meta.owner, other).await?;
                let mut holding = line.nodes()[..line.holding()].iter();
                if holding.any(|there| Some(format!("{parent}/{}", there.called)) == node) {
                    held.push(other);
                }
            }
            seen.elsewhere = MultiState::of(entry_meta, name, |other| held.contains(&other));
        }
    }
    Ok(Look { line, kept, first })
}

/// The line of a lock, and the node of this owner in it.
async fn place_of(
    shared: &Shared,
    session: &Session,
    owner: Owner,
    name: &LockName,
) -> Result<(String, Queue, Option<String>)> {
    let parent = shared.line(name);
    let line = line_of(&shared.setup, session.client.list_children(&parent).await)?;
    if let Some(node) = line.find(owner) {
        let node = format!("{parent}/{}", node.called);
        return Ok((parent, line, Some(node)));
    }
    let nameless = line.nodes().iter().filter(|node| node.owner.is_none());
    let cards = read(&session.client, &parent, nameless).await;
    let is_theirs = |read: &Read| matches!(read, Ok((Some(entry_meta), _)) if entry_meta.owner == owner);
    let node = cards.iter().find(|(_, read)| is_theirs(read));
    let node = node.map(|(node, _)| format!("{parent}/{}", node.called));
    Ok((parent, line, node))
}

/// Who holds a lock and who waits for it.
pub(crate) async fn inspect(shared: &Arc<Shared>, name: &LockName) -> Result<LockState> {
    let session = shared.looking().await?;
    inspect_in(shared, &session, name).await
}

async fn inspect_in(shared: &Shared, session: &Session, name: &LockName) -> Result<LockState> {
    let look = look(shared, session, name, LockState::MAX_WAITERS).await?;
    let renewed = renewals(shared, session, &look).await?;
    let now = session.their_time();
    let contender = |seen: &Seen| {
        let alive = renewed.get(&seen.stat.ephemeral_owner).copied().unwrap_or(0).max(seen.stat.ctime);
        let spent = Duration::from_millis(u64::try_from(now - alive).unwrap_or(0));
        Contender {
            token: FencingToken::new(u64::try_from(seen.stat.czxid).unwrap_or(0)),
            mode: seen.node.mode,
            entry_meta: seen.entry_meta.clone(),
            entry_name: seen.node.called.clone(),
            expires_in: seen.entry_meta.as_ref().map(|entry_meta| entry_meta.ttl.saturating_sub(spent)),
            multi: seen.elsewhere,
        }
    };
    let line: Vec<Contender> = look.first.iter().map(contender).collect();
    let unread = look.line.nodes().len() - line.len();
    let mut state = lock_state(name, &line, look.kept, wall_time());
    let registry = shared.registry();
    let beyond: Vec<_> = registry.places.local_waiters(name).collect();
    state.waiter_count += unread + beyond.len();
    let room = LockState::MAX_WAITERS.saturating_sub(state.waiters.len());
    state.waiters.extend(beyond.into_iter().take(room).map(|attempt| {
        let want = attempt.wants.iter().find(|want| want.name == *name);
        WaiterState::new(want.map_or(Mode::Exclusive, |want| want.mode), attempt.label.clone())
    }));
    Ok(state)
}

/// When the sessions of those who hold were last renewed, on the servers' clock.
async fn renewals(shared: &Shared, session: &Session, look: &Look) -> Result<HashMap<i64, i64>> {
    let ids: BTreeSet<i64> = look.holders().map(|seen| seen.stat.ephemeral_owner).collect();
    let stats: Vec<_> =
        ids.iter().map(|id| session.client.check_stat(&shared.setup.paths.session(*id))).collect();
    let mut renewed = HashMap::new();
    for (id, stat) in ids.into_iter().zip(join_all(stats).await) {
        if let Some(stat) = stat.map_err(|error| shared.setup.failed(&error))? {
            renewed.insert(id, stat.mtime);
        }
    }
    Ok(renewed)
}

/// The cell of a lock: its holder's, or the one that was kept.
pub(crate) async fn read_cell(shared: &Arc<Shared>, name: &LockName) -> Result<Reply> {
    let session = shared.looking().await?;
    let look = look(shared, &session, name, 0).await?;
    let held = look.holders().find_map(|seen| {
        let bytes = seen.entry_meta.as_ref()?.cell.clone()?;
        Some(Cell { token: FencingToken::new(u64::try_from(seen.stat.czxid).ok()?), bytes })
    });
    Ok(Reply::Cell(held.or(look.kept)))
}

/// A page of the locks in use. The servers give names in no order: each page looks through all of them.
pub(crate) async fn list(shared: &Arc<Shared>, prefix: &str, page: &Page) -> Result<ListPage> {
    let session = shared.looking().await?;
    let (locks, cells) = (shared.setup.paths.locks(), shared.setup.paths.cells());
    let (sync, locks, cells) = (
        session.client.sync(locks),
        session.client.list_children(locks),
        session.client.list_children(&cells),
    );
    let (synced, locks, cells) = futures_util::join!(sync, locks, cells);
    synced.map_err(|error| shared.setup.failed(&error))?;
    let locks_of = |children: Result<Vec<String>, zk::Error>| match children {
        Ok(children) => Ok(children.iter().filter_map(|child| decode(child)).collect()),
        Err(zk::Error::NoNode) => Ok(BTreeSet::new()),
        Err(error) => Err(shared.setup.failed(&error)),
    };
    let (names, kept) = (locks_of(locks)?, locks_of(cells)?);
    let names: BTreeSet<&LockName> = names.union(&kept).collect();
    let after = page.after.as_ref();
    let wanted =
        |name: &&LockName| name.as_str().starts_with(prefix) && after.is_none_or(|after| *name > after);
    let names: Vec<&LockName> = names.into_iter().filter(wanted).collect();
    let mut found = Vec::new();
    'full: for names in names.chunks(COUNTED_AT_ONCE) {
        for names in in_use(shared, &session, names, &kept).await?.chunks(AT_ONCE) {
            for state in join_all(names.iter().map(|name| inspect_in(shared, &session, name))).await {
                let state = state?;
                if !state.is_idle() {
                    found.push(state);
                }
            }
            if found.len() > page.limit {
                break 'full;
            }
        }
    }
    let is_more = found.len() > page.limit;
    found.truncate(page.limit);
    let next = found.last().filter(|_| is_more).map(|state| state.name.clone());
    Ok(ListPage { locks: found, next })
}

/// Of these locks, those that have contenders or a kept cell: a lock's node outlives them.
async fn in_use<'a>(
    shared: &Shared,
    session: &Session,
    names: &[&'a LockName],
    kept: &BTreeSet<LockName>,
) -> Result<Vec<&'a LockName>> {
    let stats: Vec<_> = names.iter().map(|name| session.client.check_stat(&shared.line(name))).collect();
    let mut used = Vec::new();
    for (name, stat) in names.iter().zip(join_all(stats).await) {
        let stat = stat.map_err(|error| shared.setup.failed(&error))?;
        if stat.is_some_and(|stat| stat.num_children > 0) || kept.contains(*name) {
            used.push(*name);
        }
    }
    Ok(used)
}

/// Takes the lock from the holder with this token.
pub(crate) async fn break_lock(shared: &Arc<Shared>, name: &LockName, token: FencingToken) -> Result<Reply> {
    let session = shared.looking().await?;
    let look = look(shared, &session, name, 0).await?;
    let Some(holder) = look.holders().find(|seen| u64::try_from(seen.stat.czxid) == Ok(token.get())) else {
        return Ok(Reply::NotHeld);
    };
    let mut nodes = vec![format!("{}/{}", shared.line(name), holder.node.called)];
    let mut told = None;
    if let Some(entry_meta) = &holder.entry_meta {
        told = Some(shared.setup.paths.broken_grant(entry_meta.owner));
        for other in entry_meta.names.iter().filter(|other| *other != name && !entry_meta.any) {
            nodes.extend(place_of(shared, &session, entry_meta.owner, other).await?.2);
        }
    }
    match break_nodes(shared, &session, &nodes, told.as_deref()).await {
        Ok(()) => {
            if let Some(told) = &told {
                shared.tell(told);
            }
            Ok(Reply::Released)
        }
        Err(MultiWriteError::OperationFailed { source: zk::Error::NoNode, .. }) => Ok(Reply::NotHeld),
        Err(error) => Err(shared.setup.failed(&error.into())),
    }
}

/// Deletes the nodes of a grant and tells its owner why, in one step.
async fn break_nodes(
    shared: &Shared,
    session: &Session,
    nodes: &[String],
    told: Option<&str>,
) -> Result<(), MultiWriteError> {
    let broken = session.transact(|writer| {
        nodes.iter().try_for_each(|node| writer.add_delete(node, None))?;
        let ephemeral = shared.setup.made_as(CreateMode::Ephemeral);
        told.map_or(Ok(()), |told| writer.add_create(told, b"", &ephemeral))
    });
    match broken.await {
        // It was told before.
        Err(MultiWriteError::OperationFailed { source: zk::Error::NodeExists, .. }) => {
            Box::pin(break_nodes(shared, session, nodes, None)).await
        }
        other => other,
    }
}
