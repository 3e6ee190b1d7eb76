//! The checks of `fencepost doctor`: everything about the servers that can weaken a guarantee.

mod access;
mod foreign;
mod locate;

use std::collections::HashMap;
use std::time::Duration;

use fencepost_core::clock::wall_time;
use fencepost_core::{Finding, Result};
use redis::Value;

use crate::decode::{text, unexpected_reply};
use crate::identity::Identity;
use crate::node::Node;
use crate::route::Route;
use crate::state::ClientState;

pub(crate) use locate::locate;

/// The smallest clock difference that is a warning.
const CLOCK_SKEW: Duration = Duration::from_secs(2);

/// Checks every server that has keys.
pub(crate) async fn diagnose(state: &ClientState, route: &Route) -> Vec<Finding> {
    let mut findings = vec![namespace(state, route.identity())];
    let nodes = match route.nodes().await {
        Ok(nodes) => nodes,
        Err(error) => return vec![Finding::failed("servers", &error)],
    };
    let addresses = access::addresses(&state.config, &nodes).await;
    findings.push(access::encryption(&state.config, &addresses));
    for node in &nodes {
        let whoami = access::whoami(state, node).await;
        let mut more = vec![access::authentication(&state.config, &addresses, &whoami)];
        more.extend(diagnose_node(state, node).await);
        // A finding that is the same on several servers is reported once.
        findings.extend(more.into_iter().filter(|new| !findings.contains(new)).collect::<Vec<_>>());
    }
    findings
}

fn namespace(state: &ClientState, identity: &Identity) -> Finding {
    let name = &state.config.namespace;
    match identity.stored() {
        Some(id) => Finding::ok("namespace", format!("{name}, format {}, storage id {id}", Identity::FORMAT)),
        None => Finding::ok("namespace", format!("{name}, where no lock has been acquired yet")),
    }
}

async fn diagnose_node(state: &ClientState, node: &Node) -> Vec<Finding> {
    let mut findings = vec![Finding::from_result("server's clock", clock(state, node).await)];
    match info(state, node).await {
        Ok(info) => findings.extend(info_findings(&info, state.config.replicas)),
        Err(error) => {
            let checks = ["server", "role", "eviction policy", "memory", "persistence", "replicas"];
            findings.extend(checks.map(|check| Finding::from_result(check, Err(error.clone()))));
        }
    }
    findings
}

async fn clock(state: &ClientState, node: &Node) -> Result<Finding> {
    let before = wall_time();
    let reply = node.query(&redis::cmd("TIME")).await?;
    let local_time = before + wall_time().saturating_sub(before) / 2;
    let Value::Array(parts) = &reply else {
        return Err(unexpected_reply(&state.location));
    };
    let part = |index: usize| text(parts.get(index))?.parse::<u64>().ok();
    let (Some(seconds), Some(micros)) = (part(0), part(1)) else {
        return Err(unexpected_reply(&state.location));
    };
    let server_time = Duration::from_secs(seconds) + Duration::from_micros(micros);
    let skew = local_time.abs_diff(server_time);
    let direction = if server_time > local_time { "ahead of" } else { "behind" };
    Ok(if skew < CLOCK_SKEW {
        Finding::ok("server's clock", format!("within {} ms of this host's", skew.as_millis().max(1)))
    } else {
        Finding::warning("server's clock", format!("{} s {direction} this host's", skew.as_secs())).with_advice(
            "synchronise the clocks (NTP): leases depend on the server's clock only, but fencing tokens are \
             derived from it",
        )
    })
}

type Info = HashMap<String, String>;

async fn info(state: &ClientState, node: &Node) -> Result<Info> {
    let reply = node.query(&redis::cmd("INFO")).await?;
    let text = match &reply {
        Value::VerbatimString { text, .. } => text.as_str(),
        other => text(Some(other)).ok_or_else(|| unexpected_reply(&state.location))?,
    };
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect())
}

/// Evaluates the fields of `INFO`.
fn info_findings(info: &Info, replicas_wanted: u32) -> Vec<Finding> {
    let get = |key: &str| info.get(key).map_or("", String::as_str);
    let number = |key: &str| get(key).parse::<u64>().unwrap_or(0);
    vec![
        version(get("redis_version"), get("redis_mode")),
        role(get("role")),
        eviction(get("maxmemory_policy"), number("maxmemory")),
        memory(number("used_memory"), number("maxmemory")),
        persistence(get("aof_enabled") == "1", get("rdb_last_bgsave_status"), get("aof_last_write_status")),
        replicas(number("connected_slaves"), replicas_wanted.into()),
    ]
}

fn version(version: &str, mode: &str) -> Finding {
    let found = format!("Redis {version}, {mode}");
    let numbers = version.split('.').map_while(|part| part.parse::<u32>().ok()).collect::<Vec<_>>();
    if numbers.as_slice() >= [6, 2].as_slice() {
        Finding::ok("server", found)
    } else {
        Finding::warning("server", found)
            .with_advice("6.0 is the oldest version that works, and 7.0 is tested: consider an upgrade")
    }
}

fn role(role: &str) -> Finding {
    if role == "master" {
        return Finding::ok("role", "primary");
    }
    Finding::problem("role", format!("{role}, which accepts no writes")).with_advice(
        "use the primary's address, or let sentinels find it: redis+sentinel://HOST,HOST/PRIMARY",
    )
}

fn eviction(policy: &str, limit: u64) -> Finding {
    match (policy, limit) {
        ("noeviction", _) => Finding::ok("eviction policy", "noeviction"),
        (policy, 0) => {
            Finding::warning("eviction policy", format!("{policy}, but there is no maxmemory yet"))
                .with_advice("set maxmemory-policy to noeviction before maxmemory is set")
        }
        (policy, _) => {
            Finding::problem("eviction policy", format!("{policy}: locks that are held may be evicted"))
                .with_advice("set maxmemory-policy to noeviction, or use a separate server for locks")
        }
    }
}

fn memory(used: u64, limit: u64) -> Finding {
    let mib = |bytes: u64| bytes / (1 << 20);
    if limit == 0 {
        return Finding::ok("memory", format!("{} MiB used, no limit", mib(used)));
    }
    let found = format!("{} of {} MiB used", mib(used), mib(limit));
    if used < limit / 10 * 9 {
        return Finding::ok("memory", found);
    }
    Finding::warning("memory", found).with_advice("raise maxmemory: a full server grants no locks")
}

fn persistence(is_aof: bool, snapshot: &str, aof_write: &str) -> Finding {
    if snapshot == "err" || aof_write == "err" {
        return Finding::problem(
            "persistence",
            "the last write to disk failed: Redis may refuse every write",
        )
        .with_advice("check the server's log and its disk");
    }
    if is_aof {
        return Finding::ok("persistence", "append-only file");
    }
    Finding::warning("persistence", "no append-only file: a restart loses locks that are held").with_advice(
        "set appendonly yes if a restart must not lead to two holders; holders are notified on reconnect either way",
    )
}

fn replicas(connected: u64, wanted: u64) -> Finding {
    if connected < wanted {
        return Finding::problem("replicas", format!("{connected} connected, ?replicas={wanted} required"))
            .with_advice("no lock can be acquired until enough replicas are up");
    }
    match (connected, wanted) {
        (0, _) => Finding::ok("replicas", "none, and so no failover"),
        (_, 0) => Finding::warning("replicas", format!("{connected}, and grants do not wait for them"))
            .with_advice("a failover can lose the newest grants; ?replicas=1 makes that rare, fencing makes it harmless"),
        _ => Finding::ok("replicas", format!("{connected}, and grants wait for {wanted} of them")),
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    fn severities(changes: &[(&str, &str)], wanted: u32) -> Vec<(String, Severity)> {
        let healthy = [
            ("redis_version", "7.0.15"),
            ("redis_mode", "standalone"),
            ("role", "master"),
            ("maxmemory_policy", "noeviction"),
            ("maxmemory", "0"),
            ("used_memory", "1000000"),
            ("aof_enabled", "1"),
            ("rdb_last_bgsave_status", "ok"),
            ("aof_last_write_status", "ok"),
            ("connected_slaves", "0"),
        ];
        let pairs =
            healthy.iter().chain(changes).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let findings = info_findings(&pairs.collect(), wanted);
        findings.into_iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    #[test]
    fn a_healthy_server_has_no_warnings() {
        assert!(severities(&[], 0).iter().all(|(_, severity)| *severity == Severity::Ok));
    }

    #[test]
    fn each_weakness_is_reported() {
        type Case<'a> = (&'a [(&'a str, &'a str)], u32, &'a str, Severity);
        let cases: [Case<'_>; 8] = [
            (&[("redis_version", "6.0.16")], 0, "server", Severity::Warning),
            (&[("role", "slave")], 0, "role", Severity::Problem),
            (&[("maxmemory_policy", "allkeys-lru")], 0, "eviction policy", Severity::Warning),
            (
                &[("maxmemory_policy", "volatile-ttl"), ("maxmemory", "9000000")],
                0,
                "eviction policy",
                Severity::Problem,
            ),
            (&[("maxmemory", "1000001")], 0, "memory", Severity::Warning),
            (&[("aof_enabled", "0")], 0, "persistence", Severity::Warning),
            (&[("connected_slaves", "1")], 0, "replicas", Severity::Warning),
            (&[], 1, "replicas", Severity::Problem),
        ];
        for (changes, wanted, check, severity) in cases {
            let found: Vec<_> =
                severities(changes, wanted).into_iter().filter(|(_, found)| *found != Severity::Ok).collect();
            assert_eq!(found, [(check.to_owned(), severity)], "{changes:?}");
        }
    }
}
