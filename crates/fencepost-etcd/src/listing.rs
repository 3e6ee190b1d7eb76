//! The states of locks for `inspect` and `list`, and breaking a lock.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use fencepost_contenders::{Contender, EntryMeta, MultiState, PersistentCell, holder_count, lock_state};
use fencepost_core::backend::{ListPage, LockState, Page, Reply};
use fencepost_core::clock::wall_time;
use fencepost_core::{Error, ErrorKind, FencingToken, LockName, Result};
use futures_util::future::join_all;

use crate::cluster::{Cluster, MAX_TXN_OPS, READ_TIMEOUT};
use crate::config::Layout;
use crate::error::{Failure, unreachable};
use crate::layout::{KeyRange, is_owned_by};
use crate::proto::{KeyValue, RangeRequest, TxnRequest};
use crate::request::{
    created_by, delete_each, get, kvs, oldest_first, put_keeping_lease, single_key, unconditional,
    value_differs,
};
use crate::watch_events::BROKEN;

/// The number of keys per request when all keys of a range are read.
const SCAN_PAGE: i64 = 5_000;

/// The keys of a lock.
#[derive(Default)]
struct LockKeys {
    queue: Vec<KeyValue>,
    cell: Option<KeyValue>,
}

impl Cluster {
    pub(crate) async fn lock_state(&self, name: &LockName) -> Result<LockState> {
        let mut states = self.lock_states(std::slice::from_ref(name)).await?;
        Ok(states.remove(0))
    }

    /// Returns the states of these locks.
    async fn lock_states(&self, names: &[LockName]) -> Result<Vec<LockState>> {
        let mut known: HashMap<LockName, LockKeys> = HashMap::new();
        self.read(names, &mut known).await?;
        // The state of an attempt for several names depends on the queues of all of them.
        let others: BTreeSet<LockName> = known
            .values()
            .flat_map(|keys| &keys.queue)
            .filter_map(|key| EntryMeta::from_bytes(&key.value))
            .flat_map(|entry_meta| entry_meta.names)
            .filter(|name| !known.contains_key(name))
            .collect();
        let others: Vec<LockName> = others.into_iter().collect();
        self.read(&others, &mut known).await?;
        let ttls = self.remaining_ttls(names, &known).await;
        let now = wall_time();
        Ok(names
            .iter()
            .map(|name| {
                let queue: Vec<Contender> =
                    known[name].queue.iter().map(|key| self.contender(name, key, &ttls, &known)).collect();
                let cell = known[name].cell.as_ref().and_then(|key| PersistentCell::from_bytes(&key.value));
                lock_state(name, &queue, cell.map(|stored| stored.cell), now)
            })
            .collect())
    }

    async fn read(&self, names: &[LockName], known: &mut HashMap<LockName, LockKeys>) -> Result<()> {
        for names in names.chunks(MAX_TXN_OPS / 2) {
            let queues = names.iter().map(|name| get(oldest_first(self.keys.queue(name))));
            let cells = names.iter().map(|name| get(single_key(self.keys.cell(name))));
            let reads = unconditional(queues.chain(cells).collect());
            let read = self.link.txn(reads, READ_TIMEOUT).await;
            let read = read.map_err(|failure| self.read_error(failure))?;
            let (queues, cells) = read.responses.split_at(names.len().min(read.responses.len()));
            for ((name, queue), cell) in names.iter().zip(queues).zip(cells) {
                let queue = kvs(queue).to_vec();
                known.insert(name.clone(), LockKeys { queue, cell: kvs(cell).first().cloned() });
            }
        }
        Ok(())
    }

    /// Returns the remaining ttls of the holders' leases, as far as the server reports them.
    async fn remaining_ttls(
        &self,
        names: &[LockName],
        known: &HashMap<LockName, LockKeys>,
    ) -> HashMap<i64, Duration> {
        let holders = names.iter().flat_map(|name| {
            let queue = &known[name].queue;
            queue.iter().take(self.holder_count(queue).max(1))
        });
        let leases: BTreeSet<i64> = holders.map(|key| key.lease).filter(|lease| *lease != 0).collect();
        let ttls = leases.into_iter().map(async |lease| {
            let response = self.link.lease_time_to_live(lease, READ_TIMEOUT).await.ok()?;
            Some((lease, Duration::from_secs(response.ttl.unsigned_abs())))
        });
        join_all(ttls).await.into_iter().flatten().collect()
    }

    fn contender(
        &self,
        here: &LockName,
        key: &KeyValue,
        ttls: &HashMap<i64, Duration>,
        known: &HashMap<LockName, LockKeys>,
    ) -> Contender {
        let entry_meta = EntryMeta::from_bytes(&key.value);
        let multi = entry_meta.as_ref().map_or(MultiState::Ready, |entry_meta| {
            MultiState::of(entry_meta, here, |name| {
                known.get(name).is_some_and(|keys| self.holds(entry_meta, &keys.queue))
            })
        });
        Contender {
            token: FencingToken::new(key.create_revision.unsigned_abs()),
            mode: self.keys.mode_of(key),
            entry_meta,
            entry_name: format!("key {}", String::from_utf8_lossy(&key.key)),
            expires_in: ttls.get(&key.lease).copied(),
            multi,
        }
    }

    /// Returns how many entries of a queue hold the lock.
    fn holder_count(&self, queue: &[KeyValue]) -> usize {
        holder_count(queue.iter().map(|key| self.keys.mode_of(key)))
    }

    /// Returns whether the owner of this entry is among the holders of a queue.
    fn holds(&self, entry_meta: &EntryMeta, queue: &[KeyValue]) -> bool {
        queue.iter().take(self.holder_count(queue)).any(|key| is_owned_by(key, entry_meta.owner))
    }

    /// Returns the error of a failed read: without a reply nothing is unknown, because a read has no effect.
    fn read_error(&self, failure: Failure) -> Error {
        let error = self.to_error(failure);
        if error.kind() != ErrorKind::OutcomeUnknown {
            return error;
        }
        unreachable(&self.location).with_source(error)
    }

    pub(crate) async fn list(&self, prefix: &str, page: &Page) -> Result<ListPage> {
        let mut names: BTreeSet<LockName> = BTreeSet::new();
        for key in self.scan(self.keys.queues(prefix)).await? {
            let is_entry = key.lease != 0 || self.keys.layout == Layout::Own;
            names.extend(self.keys.parse_entry(&key.key).filter(|_| is_entry).map(|entry| entry.name));
        }
        let cells = self.scan(self.keys.cells(prefix)).await?;
        names.extend(cells.iter().filter_map(|key| self.keys.parse_cell(&key.key)));
        names.retain(|name| name.as_str().starts_with(prefix));
        let after = page.after.as_ref();
        let mut names = names.into_iter().filter(|name| after.is_none_or(|after| name > after));
        let wanted: Vec<LockName> = names.by_ref().take(page.limit).collect();
        let next = names.next().and(wanted.last().cloned());
        Ok(ListPage { locks: self.lock_states(&wanted).await?, next })
    }

    /// Reads all keys of a range, without their values.
    async fn scan(&self, range: KeyRange) -> Result<Vec<KeyValue>> {
        let KeyRange { mut start, end } = range;
        let mut keys: Vec<KeyValue> = Vec::new();
        loop {
            let request = RangeRequest {
                key: start,
                range_end: end.clone(),
                limit: SCAN_PAGE,
                keys_only: true,
                ..RangeRequest::default()
            };
            let page = self.link.range(request, READ_TIMEOUT).await;
            let page = page.map_err(|failure| self.read_error(failure))?;
            keys.extend(page.kvs);
            match keys.last().filter(|_| page.more) {
                // The first possible key after the last one.
                Some(last) => start = [last.key.as_slice(), &[0]].concat(),
                None => return Ok(keys),
            }
        }
    }

    /// Breaks the lock of the holder with this token: marks its keys as broken, so that the holder is told why, and deletes
    /// them.
    pub(crate) async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Reply> {
        let state = self.lock_state(name).await?;
        if !state.holders.iter().any(|holder| holder.token == Some(token)) {
            return Ok(Reply::NotHeld);
        }
        let create_revision = i64::try_from(token.get()).unwrap_or(0);
        let mut known = HashMap::new();
        self.read(std::slice::from_ref(name), &mut known).await?;
        // With layout=raw a key below the name may belong to another lock, created by the same transaction.
        let is_of_lock =
            |key: &&KeyValue| self.keys.parse_entry(&key.key).is_some_and(|entry| entry.name == *name);
        let is_of_grant = |key: &&KeyValue| key.create_revision == create_revision;
        let held = |keys: &LockKeys| keys.queue.iter().filter(is_of_grant).find(is_of_lock).cloned();
        let Some(first) = known.get(name).and_then(held) else {
            return Ok(Reply::NotHeld);
        };
        let entry_meta = EntryMeta::from_bytes(&first.value);
        let mut keys = BTreeSet::from([first.key.clone()]);
        if let Some(entry_meta) =
            entry_meta.filter(|entry_meta| !entry_meta.any && !entry_meta.names.is_empty())
        {
            self.read(&entry_meta.names, &mut known).await?;
            let queues =
                entry_meta.names.iter().filter_map(|name| known.get(name)).flat_map(|keys| &keys.queue);
            let others = queues
                .filter(|key| key.create_revision == create_revision && is_owned_by(key, entry_meta.owner));
            keys.extend(others.map(|key| key.key.clone()));
        }
        // Of two concurrent breaks only one succeeds.
        let are_held = keys
            .iter()
            .flat_map(|key| [created_by(key.clone(), create_revision), value_differs(key.clone(), BROKEN)]);
        let marks = keys.iter().map(|key| put_keeping_lease(key.clone(), BROKEN.to_vec()));
        let mark = TxnRequest { compare: are_held.collect(), success: marks.collect(), failure: Vec::new() };
        if !self.txn(mark, READ_TIMEOUT).await?.succeeded {
            return Ok(Reply::NotHeld);
        }
        // The holder may have deleted them already, so that the keys may belong to another attempt now.
        let delete = delete_each(keys.into_iter().map(|key| (key, create_revision)));
        self.txn(delete, READ_TIMEOUT).await?;
        Ok(Reply::Released)
    }
}
