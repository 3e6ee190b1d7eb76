//! Looks at locks: one, or all whose names begin alike.

use std::collections::BTreeSet;

use fencepost_core::backend::{ListPage, LockState, Page};
use fencepost_core::{LockName, Result};
use redis::Value;

use crate::decode::{lock_state, nonsense, text};
use crate::node::{Call, LOOK_TIMEOUT, Node};
use crate::route::Route;
use crate::script::Script;
use crate::setup::Setup;

/// How many keys a server looks at in one go.
const SCANNED: usize = 1000;
/// How many locks are looked at in one call.
const AT_ONCE: usize = 32;

/// The locks of these names as they are now, in this order.
pub(crate) async fn inspect(setup: &Setup, route: &Route, names: &[LockName]) -> Result<Vec<LockState>> {
    let mut states = Vec::with_capacity(names.len());
    let mut rest = names;
    while let Some(first) = rest.first() {
        let prefix = setup.layout.prefix(first.as_str());
        let alike = rest.iter().take(AT_ONCE).take_while(|name| setup.layout.prefix(name.as_str()) == prefix);
        let (these, others) = rest.split_at(alike.count());
        states.extend(inspect_alike(setup, route, &prefix, these).await?);
        rest = others;
    }
    Ok(states)
}

async fn inspect_alike(
    setup: &Setup,
    route: &Route,
    prefix: &str,
    names: &[LockName],
) -> Result<Vec<LockState>> {
    let in_one_place = names.iter().map(|name| format!("{prefix}l:{name}")).chain([format!("{prefix}c")]);
    let keys = if setup.is_cluster() { in_one_place.collect() } else { Vec::new() };
    let call = Call { script: Script::Inspect, prefix, keys, replicas: 0, patience: LOOK_TIMEOUT };
    let answer = route.invoke(&call, |command| {
        command.arg(prefix).arg(LockState::MAX_WAITERS);
        for name in names {
            command.arg(setup.layout.stem(name.as_str()).as_ref());
        }
    });
    let nonsense = || nonsense(&setup.location);
    let Value::Array(found) = answer.await?.value else {
        return Err(nonsense());
    };
    let now = text(found.first()).and_then(|now| now.parse().ok()).ok_or_else(nonsense)?;
    let pairs = names.iter().zip(found.get(1..).unwrap_or_default());
    pairs.map(|(name, state)| lock_state(name.clone(), now, state).ok_or_else(nonsense)).collect()
}

/// A page of the locks in use. The server finds names in no order: each page looks through all of them, and keeps no
/// more than it shows.
pub(crate) async fn list(setup: &Setup, route: &Route, prefix: &str, page: &Page) -> Result<ListPage> {
    let mut names = BTreeSet::new();
    for node in route.nodes().await? {
        scan(setup, &node, prefix, page, &mut names).await?;
    }
    let is_more = names.len() > page.limit;
    let shown: Vec<LockName> = names.into_iter().take(page.limit).collect();
    let next = shown.last().filter(|_| is_more).cloned();
    let mut locks = inspect(setup, route, &shown).await?;
    locks.retain(|lock| !lock.is_idle());
    Ok(ListPage { locks, next })
}

async fn scan(
    setup: &Setup,
    node: &Node,
    prefix: &str,
    page: &Page,
    names: &mut BTreeSet<LockName>,
) -> Result<()> {
    let live = node.live().await?;
    let pattern = setup.layout.pattern(prefix);
    let mut cursor = "0".to_owned();
    loop {
        let mut command = redis::cmd("SCAN");
        command.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCANNED);
        let answer = live.ask(&command).await?;
        let (next, keys) = match &answer {
            Value::Array(parts) => match parts.as_slice() {
                [next, Value::Array(keys)] => (text(Some(next)), keys),
                _ => return Err(nonsense(&setup.location)),
            },
            _ => return Err(nonsense(&setup.location)),
        };
        let found = keys.iter().filter_map(|key| setup.layout.name_in(text(Some(key))?));
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
