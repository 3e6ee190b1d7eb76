//! Locks as people see them, and the sending away of a holder.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use fencepost_contenders::{Contender, EntryMeta, MultiState, PersistentCell, holder_count, lock_state};
use fencepost_core::backend::{ListPage, LockState, Page, Reply};
use fencepost_core::clock::wall_time;
use fencepost_core::{Error, ErrorKind, FencingToken, LockName, Result};
use futures_util::future::join_all;

use crate::config::Layout;
use crate::error::{Failure, unreachable};
use crate::keys::{Stretch, is_own};
use crate::proto::{KeyValue, RangeRequest, TxnRequest};
use crate::request::{all, all_gone, created, differs, found, get, in_order, one, replace};
use crate::store::{LOOKING, MOST_PARTS, Store};
use crate::watching::BROKEN;

/// How many keys are asked for at once when all names are wanted.
const SCAN: i64 = 5_000;

/// What was found of a lock.
#[derive(Default)]
struct Found {
    line: Vec<KeyValue>,
    cell: Option<KeyValue>,
}

impl Store {
    pub(crate) async fn lock_state(&self, name: &LockName) -> Result<LockState> {
        let mut states = self.lock_states(std::slice::from_ref(name)).await?;
        Ok(states.remove(0))
    }

    /// These locks as they are.
    async fn lock_states(&self, names: &[LockName]) -> Result<Vec<LockState>> {
        let mut known: HashMap<LockName, Found> = HashMap::new();
        self.read(names, &mut known).await?;
        // How an attempt stands that wants several names, the lines of all of them tell.
        let elsewhere: BTreeSet<LockName> = known
            .values()
            .flat_map(|found| &found.line)
            .filter_map(|key| EntryMeta::from_bytes(&key.value))
            .flat_map(|entry_meta| entry_meta.names)
            .filter(|name| !known.contains_key(name))
            .collect();
        let elsewhere: Vec<LockName> = elsewhere.into_iter().collect();
        self.read(&elsewhere, &mut known).await?;
        let left = self.time_left(names, &known).await;
        let now = wall_time();
        Ok(names
            .iter()
            .map(|name| {
                let line: Vec<Contender> =
                    known[name].line.iter().map(|key| self.contender(name, key, &left, &known)).collect();
                let cell = known[name].cell.as_ref().and_then(|key| PersistentCell::from_bytes(&key.value));
                lock_state(name, &line, cell.map(|kept| kept.cell), now)
            })
            .collect())
    }

    async fn read(&self, names: &[LockName], known: &mut HashMap<LockName, Found>) -> Result<()> {
        for names in names.chunks(MOST_PARTS / 2) {
            let lines = names.iter().map(|name| get(in_order(self.keys.line(name))));
            let cells = names.iter().map(|name| get(one(self.keys.cell(name))));
            let answer = self.link.txn(all(lines.chain(cells).collect()), LOOKING).await;
            let answer = answer.map_err(|failure| self.looking_failed(failure))?;
            let (lines, cells) = answer.responses.split_at(names.len().min(answer.responses.len()));
            for ((name, line), cell) in names.iter().zip(lines).zip(cells) {
                let line = found(line).to_vec();
                known.insert(name.clone(), Found { line, cell: found(cell).first().cloned() });
            }
        }
        Ok(())
    }

    /// What is left of the leases in these lines, as far as it can be found out.
    async fn time_left(
        &self,
        names: &[LockName],
        known: &HashMap<LockName, Found>,
    ) -> HashMap<i64, Duration> {
        let holders = names.iter().flat_map(|name| {
            let line = &known[name].line;
            line.iter().take(self.holders(line).max(1))
        });
        let leases: BTreeSet<i64> = holders.map(|key| key.lease).filter(|lease| *lease != 0).collect();
        let asked = leases.into_iter().map(async |lease| {
            let answer = self.link.lease_time_to_live(lease, LOOKING).await.ok()?;
            Some((lease, Duration::from_secs(answer.ttl.unsigned_abs())))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    fn contender(
        &self,
        here: &LockName,
        key: &KeyValue,
        left: &HashMap<i64, Duration>,
        known: &HashMap<LockName, Found>,
    ) -> Contender {
        let entry_meta = EntryMeta::from_bytes(&key.value);
        let multi = entry_meta.as_ref().map_or(MultiState::Ready, |entry_meta| {
            MultiState::of(entry_meta, here, |name| {
                known.get(name).is_some_and(|it| self.holds(entry_meta, &it.line))
            })
        });
        Contender {
            token: FencingToken::new(key.create_revision.unsigned_abs()),
            mode: self.keys.mode_of(key),
            entry_meta,
            entry_name: format!("key {}", String::from_utf8_lossy(&key.key)),
            expires_in: left.get(&key.lease).copied(),
            multi,
        }
    }

    /// Returns how many of a line hold the lock.
    fn holders(&self, line: &[KeyValue]) -> usize {
        holder_count(line.iter().map(|key| self.keys.mode_of(key)))
    }

    /// Returns whether the owner of this entry_meta is among the first of a line.
    fn holds(&self, entry_meta: &EntryMeta, line: &[KeyValue]) -> bool {
        line.iter().take(self.holders(line)).any(|key| is_own(key, entry_meta.owner))
    }

    fn looking_failed(&self, failure: Failure) -> Error {
        let error = self.failed(failure);
        if error.kind() != ErrorKind::OutcomeUnknown {
            return error;
        }
        unreachable(&self.location).with_source(error)
    }

    pub(crate) async fn list(&self, prefix: &str, page: &Page) -> Result<ListPage> {
        let mut names: BTreeSet<LockName> = BTreeSet::new();
        for key in self.scan(self.keys.lines(prefix)).await? {
            let is_contender = key.lease != 0 || self.keys.layout == Layout::Own;
            names.extend(self.keys.read(&key.key).filter(|_| is_contender).map(|seat| seat.name));
        }
        let cells = self.scan(self.keys.cells(prefix)).await?;
        names.extend(cells.iter().filter_map(|key| self.keys.read_cell(&key.key)));
        names.retain(|name| name.as_str().starts_with(prefix));
        let after = page.after.as_ref();
        let mut names = names.into_iter().filter(|name| after.is_none_or(|after| name > after));
        let wanted: Vec<LockName> = names.by_ref().take(page.limit).collect();
        let next = names.next().and(wanted.last().cloned());
        Ok(ListPage { locks: self.lock_states(&wanted).await?, next })
    }

    /// All keys of a stretch, without their values.
    async fn scan(&self, stretch: Stretch) -> Result<Vec<KeyValue>> {
        let Stretch { mut from, to } = stretch;
        let mut keys: Vec<KeyValue> = Vec::new();
        loop {
            let request = RangeRequest {
                key: from,
                range_end: to.clone(),
                limit: SCAN,
                keys_only: true,
                ..RangeRequest::default()
            };
            let answer =
                self.link.range(request, LOOKING).await.map_err(|failure| self.looking_failed(failure))?;
            keys.extend(answer.kvs);
            match keys.last().filter(|_| answer.more) {
                // The next key after this one.
                Some(last) => from = [last.key.as_slice(), &[0]].concat(),
                None => return Ok(keys),
            }
        }
    }

    /// Takes the lock from the holder with this token: its key is marked, so that it learns why, and then removed.
    pub(crate) async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Reply> {
        let seen = self.lock_state(name).await?;
        if !seen.holders.iter().any(|holder| holder.token == Some(token)) {
            return Ok(Reply::NotHeld);
        }
        let revision = i64::try_from(token.get()).unwrap_or(0);
        let mut known = HashMap::new();
        self.read(std::slice::from_ref(name), &mut known).await?;
        // What is below a name may be another lock's, and was made by the same transaction.
        let is_its = |key: &&KeyValue| self.keys.read(&key.key).is_some_and(|seat| seat.name == *name);
        let made_then = |key: &&KeyValue| key.create_revision == revision;
        let mine = |found: &Found| found.line.iter().filter(made_then).find(is_its).cloned();
        let Some(first) = known.get(name).and_then(mine) else {
            return Ok(Reply::NotHeld);
        };
        let entry_meta = EntryMeta::from_bytes(&first.value);
        let mut keys = BTreeSet::from([first.key.clone()]);
        if let Some(entry_meta) =
            entry_meta.filter(|entry_meta| !entry_meta.any && !entry_meta.names.is_empty())
        {
            self.read(&entry_meta.names, &mut known).await?;
            let lines =
                entry_meta.names.iter().filter_map(|name| known.get(name)).flat_map(|found| &found.line);
            let others = lines.filter(|key| key.create_revision == revision && is_own(key, entry_meta.owner));
            keys.extend(others.map(|key| key.key.clone()));
        }
        // Of two that break it at once only one does.
        let are_held =
            keys.iter().flat_map(|key| [created(key.clone(), revision), differs(key.clone(), BROKEN)]);
        let marks = keys.iter().map(|key| replace(key.clone(), BROKEN.to_vec()));
        let mark = TxnRequest { compare: are_held.collect(), success: marks.collect(), failure: Vec::new() };
        if !self.txn(mark, LOOKING).await?.succeeded {
            return Ok(Reply::NotHeld);
        }
        // The holder may have heard of it already, and have removed them itself; what is there now may be another's.
        let ends = all_gone(keys.into_iter().map(|key| (key, revision)));
        self.txn(ends, LOOKING).await?;
        Ok(Reply::Released)
    }
}
