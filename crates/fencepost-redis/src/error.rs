//! Maps errors of the driver and of the server to [`Error`].

use fencepost_core::{Error, ErrorKind};
use redis::RedisError;

/// Returns the first server error of a pipeline, or the error itself: the driver wraps those of a pipeline in a list and
/// shows less of them.
pub(crate) fn first_server_error(error: RedisError) -> RedisError {
    let errors = error.clone().into_server_errors();
    let first = errors.and_then(|errors| errors.first().map(|(_, first)| first.clone()));
    first.map_or(error, RedisError::from)
}

/// Maps the error of a failed call. `sent` is whether the server may have received it.
pub(crate) fn call_failed(location: &str, error: &RedisError, sent: Sent) -> Error {
    let error = &first_server_error(error.clone());
    match (error_code(error), sent) {
        (Some(code), _) => server_error(location, code, error.detail().unwrap_or_default()),
        (None, Sent::Maybe) => {
            let message = format!("the connection to {location} ended before the reply");
            Error::new(ErrorKind::OutcomeUnknown, message).with_source(driver_message(error))
        }
        (None, Sent::No) => unreachable(location).with_source(driver_message(error)),
    }
}

/// Returns the code of a server error, its first word. A script that read a key of a slot that is migrating failed with
/// `ERR`: that is mapped to `TRYAGAIN`.
pub(crate) fn error_code(error: &RedisError) -> Option<&str> {
    if error.detail().is_some_and(is_on_another_node) { Some("TRYAGAIN") } else { error.code() }
}

fn is_on_another_node(detail: &str) -> bool {
    detail.contains("non local key")
}

/// Whether a server may have received a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    No,
    Maybe,
}

/// The error for a server that does not answer.
pub(crate) fn unreachable(location: &str) -> Error {
    Error::new(ErrorKind::Unreachable, format!("could not reach {location}"))
        .with_hint("is a Redis server running there, and does a firewall block the connection?")
}

/// The beginning of the error for a script that runs a command or uses a key that its user has no right to.
const SCRIPT_NOT_PERMITTED: &str = "The user executing the script can't";

/// The codes of a server that cannot serve now. It has changed nothing, and the same request may succeed later.
const TRANSIENT: [&str; 9] =
    ["ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "TRYAGAIN"];

/// Maps a server error: its code, which is the first word, and the rest.
pub(crate) fn server_error(location: &str, code: &str, detail: &str) -> Error {
    let (kind, message, hint) = match code {
        "NOAUTH" | "WRONGPASS" => (
            ErrorKind::Denied,
            format!("{location} does not accept this user and password"),
            "give them in the URL: redis://USER:PASSWORD@HOST, with special characters percent-encoded",
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
            format!("{location} is a replica, and accepts no writes"),
            "use the primary's address, or let sentinels find it: redis+sentinel://HOST,HOST/PRIMARY",
        ),
        "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "ASK" | "MOVED" => {
            (ErrorKind::Unreachable, format!("{location} cannot serve now: {code} {detail}"), "")
        }
        "MISCONF" => (
            ErrorKind::Unreachable,
            format!("{location} refuses to write: {code} {detail}"),
            "its last snapshot failed; check its log and its disk",
        ),
        "NOREPLICAS" => (
            ErrorKind::Unreachable,
            format!("{location} refuses to write: {code} {detail}"),
            "it has fewer replicas than its min-replicas-to-write; are they up, and is their lag small?",
        ),
        "NOPROTO" => (
            ErrorKind::Unsupported,
            format!("{location} is too old"),
            "Redis 6 or newer is needed, for RESP3 and ACLs",
        ),
        // Within a script the code is ERR, and the text does not name the command.
        "ERR" if detail.starts_with(SCRIPT_NOT_PERMITTED) => {
            return server_error(location, "NOPERM", detail.split(" script: ").next().unwrap_or_default());
        }
        _ => (ErrorKind::Backend, format!("{location} replied with an error: {code} {detail}"), ""),
    };
    let error = Error::new(kind, message);
    let error = if TRANSIENT.contains(&code) { error.transient() } else { error };
    if hint.is_empty() { error } else { error.with_hint(hint) }
}

/// Returns the driver's message. It is about sockets and the protocol, and never contains what was sent.
fn driver_message(error: &RedisError) -> String {
    error.to_string()
}

/// Maps an error that a script caught with `pcall`: its first word is the code.
pub(crate) fn script_error(location: &str, text: &str) -> Error {
    let (code, detail) = text.trim_start_matches('-').split_once(' ').unwrap_or((text, ""));
    let detail = detail.split(" script: ").next().unwrap_or_default();
    if code == "ERR" && is_on_another_node(detail) {
        return server_error(location, "TRYAGAIN", detail);
    }
    server_error(location, code, detail)
}
