//! The rights that an account needs, as commands for `redis-cli`.

use crate::config::{Config, Servers};

/// The commands of the scripts and of the client. `pexpireat` is used only by earlier versions, which may run beside this one.
const REQUIRED: [&str; 29] = [
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

/// The commands that only `fencepost doctor` uses.
const DOCTOR_ONLY: [&str; 3] = ["acl|whoami", "info", "type"];

/// Returns the commands that this URL needs.
fn commands(config: &Config) -> Vec<&'static str> {
    let mut commands = REQUIRED.to_vec();
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

/// Returns the pattern of the lists on which the other library's waiters block, if they do.
fn signals(config: &Config) -> Option<String> {
    config.dialect.as_ref()?.signal_list("*")
}

/// Returns the key patterns that this URL needs: the namespace, and the keys of the other library.
fn keys(config: &Config) -> String {
    let namespace = Some(format!("{}:*", config.namespace));
    let dialect = config.dialect.as_ref().map(|dialect| dialect.key("*"));
    let keys = [namespace, dialect, signals(config)].into_iter().flatten();
    keys.map(|key| format!("~{key}")).collect::<Vec<_>>().join(" ")
}

/// Returns the commands that grant the rights, with comments.
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
# Run in redis-cli, with the account's name for USER and its password for PASSWORD. `ACL SAVE` stores it.
{everywhere}# A client that can write to these keys can acquire and break every lock of the namespace.
ACL SETUSER USER on >PASSWORD resetkeys resetchannels -@all {keys} &{namespace}:ch:* {needed}

# Only for `fencepost doctor`, which reports what it is not permitted to check:
ACL SETUSER USER {doctor}
",
        keys = keys(config),
        needed = plus(&commands(config)),
        doctor = plus(&DOCTOR_ONLY),
    )
}
