//! Finds the keys of a lock, and keys of other libraries for a lock of the same name.

use fencepost_core::{Finding, LockName, Result};
use redis::Value;

use super::foreign::{Content, UNKNOWN, identify};
use crate::decode::text;
use crate::layout::slot;
use crate::node::Node;
use crate::route::Route;
use crate::state::ClientState;

/// Reports the keys of a lock and their types.
pub(crate) async fn locate(state: &ClientState, route: &Route, name: &LockName) -> Vec<Finding> {
    let prefix = state.layout.prefix(name.as_str());
    let mut findings = Vec::new();
    let stem = state.layout.stem(name.as_str());
    let keys = match state.layout.dialect {
        None => [("lock's key", "l"), ("line's key", "q"), ("cell's key", "v")]
            .map(|(check, kind)| (check, format!("{prefix}{kind}:{stem}"))),
        Some(_) => [
            ("lock's key", stem.to_string()),
            ("line's key", format!("{prefix}q:{stem}")),
            ("holder's key", format!("{prefix}h:{stem}")),
        ],
    };
    let lock = keys[0].1.clone();
    for (check, key) in keys {
        let found = async {
            let kind = type_of(&*route.node_of(&key).await?, &key).await?;
            let slot = if state.is_cluster() { format!(", slot {}", slot(&key)) } else { String::new() };
            let what = if kind == "none" { "nothing there now".to_owned() } else { format!("a {kind}") };
            Ok(Finding::ok(check, format!("{key} ({what}{slot})")))
        };
        findings.push(Finding::from_result(check, found.await));
    }
    // The keys that other libraries use for a lock of this name.
    let foreign_keys = [name.to_string(), format!("lock:{name}"), format!("job-lock:default:{name}")];
    for key in foreign_keys.into_iter().filter(|key| *key != lock) {
        match foreign_lock(route, &key).await {
            Ok(None) => {}
            Ok(Some(description)) => {
                let advice =
                    "it does not exclude Fencepost's lock of this name unless the URL names the dialect";
                let found = Finding::warning("foreign key", format!("{key} is {description}"));
                findings.push(found.with_advice(advice));
            }
            Err(error) => findings.push(Finding::not_checked("foreign key", &error)),
        }
    }
    findings.dedup();
    findings
}

async fn type_of(node: &Node, key: &str) -> Result<String> {
    let mut command = redis::cmd("TYPE");
    command.arg(key);
    let reply = node.query(&command).await?;
    Ok(text(Some(&reply)).unwrap_or("value").to_owned())
}

/// Returns what the key is, or `None` if it does not exist.
async fn foreign_lock(route: &Route, key: &str) -> Result<Option<&'static str>> {
    let node = route.node_of(key).await?;
    let read = async |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(key).arg(&words[1..]);
        node.query(&command).await
    };
    Ok(match type_of(&node, key).await?.as_str() {
        "none" => None,
        "string" => match read(&["GET"]).await? {
            Value::BulkString(bytes) => Some(identify(&Content::String(&bytes))),
            _ => None,
        },
        "hash" => Some(identify(&Content::Hash(&hash_fields(read(&["HGETALL"]).await?)))),
        "zset" => Some(identify(&Content::SortedSet(&read(&["ZRANGE", "0", "100"]).await?))),
        _ => Some(UNKNOWN),
    })
}

/// Returns the field names of a hash, which is a map in RESP3.
fn hash_fields(hash: Value) -> Value {
    match hash {
        Value::Map(pairs) => Value::Array(pairs.into_iter().map(|(field, _)| field).collect()),
        other => other,
    }
}
