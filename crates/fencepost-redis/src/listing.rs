//! Reads the state of locks: of one, or of all whose names begin with a prefix.

use std::collections::BTreeSet;

use fencepost_core::backend::{ListPage, LockState, Page};
use fencepost_core::{LockName, Result};
use redis::Value;

use crate::decode::{lock_state, text, unexpected_reply};
use crate::node::{Node, READ_TIMEOUT, ScriptCall};
use crate::route::Route;
use crate::script::Script;
use crate::state::ClientState;

/// The `COUNT` of a `SCAN`: how many keys the server examines in one call.
const SCAN_COUNT: usize = 1000;
/// How many locks are inspected in one call.
const INSPECT_BATCH: usize = 32;

/// Returns the current state of these locks, in this order.
pub(crate) async fn inspect(
    state: &ClientState,
    route: &Route,
    names: &[LockName],
) -> Result<Vec<LockState>> {
    let mut states = Vec::with_capacity(names.len());
    let mut rest = names;
    while let Some(first) = rest.first() {
        let prefix = state.layout.prefix(first.as_str());
        let same_prefix =
            rest.iter().take(INSPECT_BATCH).take_while(|name| state.layout.prefix(name.as_str()) == prefix);
        let (batch, others) = rest.split_at(same_prefix.count());
        states.extend(inspect_batch(state, route, &prefix, batch).await?);
        rest = others;
    }
    Ok(states)
}

/// Inspects locks that share a key prefix in one call.
async fn inspect_batch(
    state: &ClientState,
    route: &Route,
    prefix: &str,
    names: &[LockName],
) -> Result<Vec<LockState>> {
    let declared = names.iter().map(|name| format!("{prefix}l:{name}")).chain([format!("{prefix}c")]);
    let keys = if state.is_cluster() { declared.collect() } else { Vec::new() };
    let call = ScriptCall { script: Script::Inspect, prefix, keys, min_replicas: 0, timeout: READ_TIMEOUT };
    let reply = route.call_script(&call, |command| {
        command.arg(prefix).arg(LockState::MAX_WAITERS);
        for name in names {
            command.arg(state.layout.stem(name.as_str()).as_ref());
        }
    });
    let unexpected = || unexpected_reply(&state.location);
    let Value::Array(values) = reply.await?.value else {
        return Err(unexpected());
    };
    let now = text(values.first()).and_then(|now| now.parse().ok()).ok_or_else(unexpected)?;
    let pairs = names.iter().zip(values.get(1..).unwrap_or_default());
    pairs.map(|(name, value)| lock_state(name.clone(), now, value).ok_or_else(unexpected)).collect()
}

/// Returns a page of the locks in use. `SCAN` returns names in no order: each page scans all keys, and keeps no more names
/// than it returns.
pub(crate) async fn list(state: &ClientState, route: &Route, prefix: &str, page: &Page) -> Result<ListPage> {
    let mut names = BTreeSet::new();
    for node in route.nodes().await? {
        scan(state, &node, prefix, page, &mut names).await?;
    }
    let has_more = names.len() > page.limit;
    let names: Vec<LockName> = names.into_iter().take(page.limit).collect();
    let next = names.last().filter(|_| has_more).cloned();
    let mut locks = inspect(state, route, &names).await?;
    locks.retain(|lock| !lock.is_idle());
    Ok(ListPage { locks, next })
}

async fn scan(
    state: &ClientState,
    node: &Node,
    prefix: &str,
    page: &Page,
    names: &mut BTreeSet<LockName>,
) -> Result<()> {
    let connection = node.connection().await?;
    let pattern = state.layout.pattern(prefix);
    let mut cursor = "0".to_owned();
    loop {
        let mut command = redis::cmd("SCAN");
        command.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
        let reply = connection.query(&command).await?;
        let (next, keys) = match &reply {
            Value::Array(parts) => match parts.as_slice() {
                [next, Value::Array(keys)] => (text(Some(next)), keys),
                _ => return Err(unexpected_reply(&state.location)),
            },
            _ => return Err(unexpected_reply(&state.location)),
        };
        let found = keys.iter().filter_map(|key| state.layout.name_in(text(Some(key))?));
        let found = found.filter_map(|name| LockName::new(name).ok());
        for name in found.filter(|name| page.after.as_ref().is_none_or(|after| name > after)) {
            names.insert(name);
            if names.len() > page.limit + 1 {
                names.pop_last();
            }
        }
        match next {
            None | Some("0") => return Ok(()),
            Some(next) => next.clone_into(&mut cursor),
        }
    }
}
