//! Where a lock is kept: the exact keys, and whether another library keeps one under the same name.

use fencepost_core::{Finding, LockName, Result};
use redis::Value;

use super::foreign::{Content, recognise};
use crate::decode::text;
use crate::layout::slot;
use crate::node::Node;
use crate::route::Route;
use crate::setup::Setup;

/// The keys of a lock, and what is in them.
pub(crate) async fn locate(setup: &Setup, route: &Route, name: &LockName) -> Vec<Finding> {
    let prefix = setup.layout.prefix(name.as_str());
    let mut findings = Vec::new();
    let stem = setup.layout.stem(name.as_str());
    let keys = match setup.layout.dialect {
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
            let slot = if setup.is_cluster() { format!(", slot {}", slot(&key)) } else { String::new() };
            let what = if kind == "none" { "nothing there now".to_owned() } else { format!("a {kind}") };
            Ok(Finding::ok(check, format!("{key} ({what}{slot})")))
        };
        findings.push(Finding::from_result(check, found.await));
    }
    // Where other libraries keep a lock of this name.
    let elsewhere = [name.to_string(), format!("lock:{name}"), format!("job-lock:default:{name}")];
    for key in elsewhere.into_iter().filter(|key| *key != lock) {
        match stranger(route, &key).await {
            Ok(None) => {}
            Ok(Some(whose)) => {
                let advice =
                    "it does not exclude Fencepost's lock of this name unless the URL names the dialect";
                let found = Finding::warning("foreign key", format!("{key} is {whose}"));
                findings.push(found.with_advice(advice));
            }
            Err(error) => findings.push(Finding::not_checked("foreign key", &error)),
        }
    }
    findings.dedup();
    findings
}

async fn type_of(node: &Node, key: &str) -> Result<String> {
    let mut question = redis::cmd("TYPE");
    question.arg(key);
    let answer = node.ask(&question).await?;
    Ok(text(Some(&answer)).unwrap_or("value").to_owned())
}

/// Whose key it is, if there is one.
async fn stranger(route: &Route, key: &str) -> Result<Option<&'static str>> {
    let node = route.node_of(key).await?;
    let read = async |words: &[&str]| {
        let mut question = redis::cmd(words[0]);
        question.arg(key).arg(&words[1..]);
        node.ask(&question).await
    };
    Ok(match type_of(&node, key).await?.as_str() {
        "none" => None,
        "string" => match read(&["GET"]).await? {
            Value::BulkString(bytes) => Some(recognise(&Content::String(&bytes))),
            _ => None,
        },
        "hash" => Some(recognise(&Content::Hash(&hash_fields(read(&["HGETALL"]).await?)))),
        "zset" => Some(recognise(&Content::SortedSet(&read(&["ZRANGE", "0", "100"]).await?))),
        _ => Some("not a lock that we know"),
    })
}

/// The names of a hash's fields, whichever way the protocol puts it.
fn hash_fields(hash: Value) -> Value {
    match hash {
        Value::Map(pairs) => Value::Array(pairs.into_iter().map(|(field, _)| field).collect()),
        other => other,
    }
}
