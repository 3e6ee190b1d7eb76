//! Which rights an account needs, as the line that an administrator can paste.

use crate::config::{Config, Servers};

/// What the scripts and the calls around them use; `pexpireat` only those of earlier versions, which may be in use beside
/// this one.
const ALWAYS: [&str; 29] = [
    "del",
    "evalsha",
    "exists",
    "get",
    "hdel",
    "hexists",
    "hgetall",
    "hlen",
    "hmget",
    "hset",
    "mget",
    "pexpire",
    "pexpireat",
    "pttl",
    "publish",
    "pubsub|numsub",
    "scan",
    "script|load",
    "set",
    "subscribe",
    "time",
    "zadd",
    "zcard",
    "zrange",
    "zrangebyscore",
    "zrank",
    "zrem",
    "zremrangebyscore",
    "zscore",
];

/// What only `fencepost doctor` uses.
const FOR_THE_DOCTOR: [&str; 2] = ["info", "type"];

/// The commands that this URL needs.
fn commands(config: &Config) -> Vec<&'static str> {
    let mut commands = ALWAYS.to_vec();
    if config.db != 0 {
        commands.push("select");
    }
    if config.replicas > 0 {
        commands.push("wait");
    }
    if config.dialect.is_some() {
        commands.push("client|tracking");
    }
    if signals(config).is_some() {
        commands.extend(["blpop", "lpush"]);
    }
    match config.servers {
        Servers::One(_) => {}
        Servers::Sentinel { .. } => commands.push("role"),
        Servers::Cluster(_) => commands.extend(["asking", "cluster|slots"]),
    }
    commands.sort_unstable();
    commands
}

/// The lists on which another library waits, if it does.
fn signals(config: &Config) -> Option<String> {
    config.dialect.as_ref()?.signal("*")
}

/// The keys that this URL needs: ours, and those that another library would use.
fn keys(config: &Config) -> String {
    let ours = Some(format!("{}:*", config.namespace));
    let theirs = config.dialect.as_ref().map(|dialect| dialect.key("*"));
    let keys = [ours, theirs, signals(config)].into_iter().flatten();
    keys.map(|key| format!("~{key}")).collect::<Vec<_>>().join(" ")
}

/// The rights that an account needs, with what they are for.
pub(crate) fn rights_on(config: &Config) -> String {
    let plus = |commands: &[&str]| {
        commands.iter().map(|command| format!("+{command}")).collect::<Vec<_>>().join(" ")
    };
    let (location, namespace) = (config.location(), &config.namespace);
    let everywhere = match config.servers {
        Servers::One(_) => "",
        Servers::Sentinel { .. } => "# On the primary and on every replica, which may be promoted.\n",
        Servers::Cluster(_) => "# On every node.\n",
    };
    format!(
        "\
# Rights for locks in {location}
#
# Paste into redis-cli, with the account's name for USER and its password for PASSWORD. `ACL SAVE` keeps it.
{everywhere}# Who can write to these keys can take or break every lock of the namespace.
ACL SETUSER USER on >PASSWORD resetkeys resetchannels -@all {keys} &{namespace}:ch:* {needed}

# Only for `fencepost doctor`, which says what it may not look at:
ACL SETUSER USER {doctor}
",
        keys = keys(config),
        needed = plus(&commands(config)),
        doctor = plus(&FOR_THE_DOCTOR),
    )
}
