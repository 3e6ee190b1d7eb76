//! What `fencepost doctor` finds out about a server: whatever can weaken a promise.

mod foreign;
mod locate;

use std::collections::HashMap;
use std::time::Duration;

use fencepost_core::clock::wall_time;
use fencepost_core::{Finding, Result};
use redis::Value;

use crate::decode::{nonsense, text};
use crate::identity::Identity;
use crate::node::Node;
use crate::route::Route;
use crate::setup::Setup;

pub(crate) use locate::locate;

/// A difference between clocks that is worth mentioning.
const SKEW: Duration = Duration::from_secs(2);

/// Examines every server that has keys.
pub(crate) async fn diagnose(setup: &Setup, route: &Route) -> Vec<Finding> {
    let mut findings = vec![namespace(setup, route.identity())];
    let nodes = match route.nodes().await {
        Ok(nodes) => nodes,
        Err(error) => return vec![Finding::failed("servers", &error)],
    };
    for node in &nodes {
        let more = examine_one(setup, node).await;
        // Of several servers that are alike, one line is enough.
        findings.extend(more.into_iter().filter(|new| !findings.contains(new)).collect::<Vec<_>>());
    }
    findings
}

fn namespace(setup: &Setup, identity: &Identity) -> Finding {
    let name = &setup.config.namespace;
    match identity.known() {
        Some(id) => Finding::ok("namespace", format!("{name}, format {}, storage id {id}", Identity::FORMAT)),
        None => Finding::ok("namespace", format!("{name}, where no lock has been taken yet")),
    }
}

async fn examine_one(setup: &Setup, node: &Node) -> Vec<Finding> {
    let mut findings = vec![Finding::from_result("server's clock", clock(setup, node).await)];
    match info(setup, node).await {
        Ok(info) => findings.extend(judge(&info, setup.config.replicas)),
        Err(error) => {
            let checks = ["server", "role", "eviction policy", "memory", "persistence", "replicas"];
            findings.extend(checks.map(|check| Finding::from_result(check, Err(error.clone()))));
        }
    }
    findings
}

async fn clock(setup: &Setup, node: &Node) -> Result<Finding> {
    let before = wall_time();
    let answer = node.ask(&redis::cmd("TIME")).await?;
    let here = before + wall_time().saturating_sub(before) / 2;
    let Value::Array(parts) = &answer else {
        return Err(nonsense(&setup.location));
    };
    let part = |at: usize| text(parts.get(at))?.parse::<u64>().ok();
    let (Some(seconds), Some(micros)) = (part(0), part(1)) else {
        return Err(nonsense(&setup.location));
    };
    let there = Duration::from_secs(seconds) + Duration::from_micros(micros);
    let apart = here.abs_diff(there);
    let direction = if there > here { "ahead of" } else { "behind" };
    Ok(if apart < SKEW {
        Finding::ok("server's clock", format!("within {} ms of this host's", apart.as_millis().max(1)))
    } else {
        Finding::warning("server's clock", format!("{} s {direction} this host's", apart.as_secs()))
            .with_advice(
                "leases are timed by the server alone, but its clock should be right: tokens follow it",
            )
    })
}

type Info = HashMap<String, String>;

async fn info(setup: &Setup, node: &Node) -> Result<Info> {
    let answer = node.ask(&redis::cmd("INFO")).await?;
    let text = match &answer {
        Value::VerbatimString { text, .. } => text.as_str(),
        other => text(Some(other)).ok_or_else(|| nonsense(&setup.location))?,
    };
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect())
}

/// What a server's own figures mean for locks.
fn judge(info: &Info, replicas_wanted: u32) -> Vec<Finding> {
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
            .with_advice("it works from 6.0 on, and is tested with 7.0: consider a newer one")
    }
}

fn role(role: &str) -> Finding {
    if role == "master" {
        return Finding::ok("role", "primary");
    }
    Finding::problem("role", format!("{role}, which takes no locks"))
        .with_advice("name the primary, or let sentinels find it: redis+sentinel://HOST,HOST/PRIMARY")
}

fn eviction(policy: &str, limit: u64) -> Finding {
    match (policy, limit) {
        ("noeviction", _) => Finding::ok("eviction policy", "noeviction"),
        (policy, 0) => {
            Finding::warning("eviction policy", format!("{policy}, but there is no maxmemory yet"))
                .with_advice("set maxmemory-policy to noeviction before somebody sets maxmemory")
        }
        (policy, _) => {
            Finding::problem("eviction policy", format!("{policy}: locks that are held may vanish"))
                .with_advice("set maxmemory-policy to noeviction, or give locks a server of their own")
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
    Finding::warning("memory", found).with_advice("raise maxmemory: when it is full no lock can be taken")
}

fn persistence(is_aof: bool, snapshot: &str, aof_write: &str) -> Finding {
    if snapshot == "err" || aof_write == "err" {
        return Finding::problem(
            "persistence",
            "the last write to disk failed: Redis may refuse every change",
        )
        .with_advice("look into the server's log and at its disk");
    }
    if is_aof {
        return Finding::ok("persistence", "append-only file");
    }
    Finding::warning("persistence", "no append-only file: a restart frees locks that are held").with_advice(
        "set appendonly yes if a restart must not let two in; holders learn of it on reconnect either way",
    )
}

fn replicas(connected: u64, wanted: u64) -> Finding {
    if connected < wanted {
        return Finding::problem("replicas", format!("{connected} connected, and the URL wants {wanted}"))
            .with_advice("no lock can be taken until enough replicas are up");
    }
    match (connected, wanted) {
        (0, _) => Finding::ok("replicas", "none: no failover can lose a lock, and none can save it"),
        (_, 0) => Finding::warning("replicas", format!("{connected}, which grants do not wait for"))
            .with_advice("a failover can forget a grant that was just made; ?replicas=1 makes that rare, a fence harmless"),
        _ => Finding::ok("replicas", format!("{connected}, of which grants wait for {wanted}")),
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    fn verdicts(changes: &[(&str, &str)], wanted: u32) -> Vec<(String, Severity)> {
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
        judge(&pairs.collect(), wanted).into_iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    #[test]
    fn a_healthy_server_has_no_findings() {
        assert!(verdicts(&[], 0).iter().all(|(_, verdict)| *verdict == Severity::Ok));
    }

    #[test]
    fn each_weakness_is_found() {
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
        for (changes, wanted, check, verdict) in cases {
            let found: Vec<_> =
                verdicts(changes, wanted).into_iter().filter(|(_, found)| *found != Severity::Ok).collect();
            assert_eq!(found, [(check.to_owned(), verdict)], "{changes:?}");
        }
    }
}
