//! What the driver and the server say, in our words.

use fencepost_core::{Error, ErrorKind};
use redis::RedisError;

/// The server's own answer, also if it was one of several. The driver has them in a list then, of which it tells less.
pub(crate) fn alone(error: RedisError) -> RedisError {
    let errors = error.clone().into_server_errors();
    let first = errors.and_then(|errors| errors.first().map(|(_, first)| first.clone()));
    first.map_or(error, RedisError::from)
}

/// What a failed call means. `sent` says whether the server may have seen it.
pub(crate) fn call_failed(location: &str, error: &RedisError, sent: Sent) -> Error {
    let error = &alone(error.clone());
    match (code_of(error), sent) {
        (Some(code), _) => refused(location, code, error.detail().unwrap_or_default()),
        (None, Sent::Maybe) => {
            let message = format!("the connection to {location} ended before the answer came");
            Error::new(ErrorKind::OutcomeUnknown, message).with_source(plain(error))
        }
        (None, Sent::No) => unreachable(location).with_source(plain(error)),
    }
}

/// The first word of a server's answer. A key that a script looked for and that is on its way to another node is worth
/// another try.
pub(crate) fn code_of(error: &RedisError) -> Option<&str> {
    if error.detail().is_some_and(is_elsewhere) { Some("TRYAGAIN") } else { error.code() }
}

fn is_elsewhere(detail: &str) -> bool {
    detail.contains("non local key")
}

/// Whether a server may have seen a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    No,
    Maybe,
}

/// Nobody answers there.
pub(crate) fn unreachable(location: &str) -> Error {
    Error::new(ErrorKind::Unreachable, format!("could not reach {location}"))
        .with_hint("is a Redis server running there, and does a firewall let you through?")
}

/// How a server begins that does not permit what a script does.
const NOT_IN_SCRIPTS: &str = "The user executing the script can't";

/// What a server says that answers and cannot serve now. It has changed nothing, and the same request may succeed later.
const TRANSIENT: [&str; 9] =
    ["ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "TRYAGAIN"];

/// What a server's error means: the first word of it, and the rest.
pub(crate) fn refused(location: &str, code: &str, detail: &str) -> Error {
    let (kind, message, hint) = match code {
        "NOAUTH" | "WRONGPASS" => (
            ErrorKind::Denied,
            format!("{location} does not accept this user and password"),
            "put them into the URL: redis://USER:PASSWORD@HOST, with special characters percent-encoded",
        ),
        "NOPERM" => (
            ErrorKind::Denied,
            format!("{location} does not permit this: {detail}"),
            "`fencepost rights` prints the rights that are needed",
        ),
        "OOM" => (
            ErrorKind::Backend,
            format!("{location} is out of memory"),
            "raise maxmemory; locks need little, and must not be evicted: keep maxmemory-policy at noeviction",
        ),
        "READONLY" => (
            ErrorKind::Unreachable,
            format!("{location} is a replica, and takes no locks"),
            "name the primary, or let sentinels find it: redis+sentinel://HOST,HOST/PRIMARY",
        ),
        "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "ASK" | "MOVED" => {
            (ErrorKind::Unreachable, format!("{location} cannot serve now: {code} {detail}"), "")
        }
        "MISCONF" => (
            ErrorKind::Unreachable,
            format!("{location} refuses to write: {code} {detail}"),
            "its last snapshot failed; look into its log and at its disk",
        ),
        "NOREPLICAS" => (
            ErrorKind::Unreachable,
            format!("{location} refuses to write: {code} {detail}"),
            "it has fewer replicas than its min-replicas-to-write; are they up, and do they keep up?",
        ),
        "NOPROTO" => (
            ErrorKind::Unsupported,
            format!("{location} is too old"),
            "Redis 6 or newer is needed, for RESP3 and ACLs",
        ),
        // Within a script the server says it in other words, and does not say which command it was.
        "ERR" if detail.starts_with(NOT_IN_SCRIPTS) => {
            return refused(location, "NOPERM", detail.split(" script: ").next().unwrap_or_default());
        }
        _ => (ErrorKind::Backend, format!("{location} answered: {code} {detail}"), ""),
    };
    let error = Error::new(kind, message);
    let error = if TRANSIENT.contains(&code) { error.transient() } else { error };
    if hint.is_empty() { error } else { error.with_hint(hint) }
}

/// The driver's own words. They tell of sockets and protocols, never of what was sent.
fn plain(error: &RedisError) -> String {
    error.to_string()
}

/// An error that a script caught: its first word is the code.
pub(crate) fn caught(location: &str, text: &str) -> Error {
    let (code, detail) = text.trim_start_matches('-').split_once(' ').unwrap_or((text, ""));
    let detail = detail.split(" script: ").next().unwrap_or_default();
    if code == "ERR" && is_elsewhere(detail) {
        return refused(location, "TRYAGAIN", detail);
    }
    refused(location, code, detail)
}
