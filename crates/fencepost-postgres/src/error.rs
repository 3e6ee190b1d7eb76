//! Maps the errors of the server and of the driver to Fencepost's errors.

use fencepost_core::{Error, ErrorKind};
use fencepost_net::handshake_failed;
use tokio_postgres::error::{DbError, Severity};

/// The oldest server with the function that creates the storage id (`gen_random_uuid`).
pub(crate) const MIN_SERVER_VERSION: i32 = 130_000;

/// The error for a server that does not answer.
pub(crate) fn unreachable(location: &str) -> Error {
    Error::new(ErrorKind::Unreachable, format!("could not reach {location}"))
        .with_hint("is a PostgreSQL server running there, and does a firewall block the connection?")
}

/// Maps the error of a connection that could not be opened: nothing was applied.
pub(crate) fn open_failed(location: &str, error: &tokio_postgres::Error) -> Error {
    let Some(reply) = error.as_db_error() else { return not_opened(location, error) };
    let code = pooler_code(reply.message()).filter(|_| reply.code().code() == "08P01");
    let mapped = server_error(location, code.unwrap_or(reply.code().code()), reply);
    if mapped.kind() == ErrorKind::OutcomeUnknown {
        return unreachable(location).with_source(reply_text(reply));
    }
    mapped
}

/// Maps the error of a failed statement. If the connection ended before the reply, it may have been applied.
pub(crate) fn call_failed(location: &str, error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        // The session is over. The transaction was rolled back, unless it was just waiting for a standby.
        Some(reply) if is_fatal(reply) => lost_connection(location).with_source(reply_text(reply)),
        Some(reply) => server_error(location, reply.code().code(), reply),
        None if is_about_the_connection(error) => lost_connection(location).with_source(chain(error)),
        None => Error::new(ErrorKind::Backend, format!("could not understand a reply of {location}"))
            .with_source(chain(error)),
    }
}

fn is_fatal(reply: &DbError) -> bool {
    matches!(reply.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
        || ["FATAL", "PANIC"].contains(&reply.severity())
}

/// Returns the error of a statement whose connection ended before the reply.
pub(crate) fn lost_connection(location: &str) -> Error {
    let message = format!("the connection to {location} ended before the reply");
    Error::new(ErrorKind::OutcomeUnknown, message)
}

/// Returns whether Fencepost's schema, or a part of it, does not exist.
pub(crate) fn is_without_schema(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| MISSING_OBJECT.contains(&code.code()))
}

/// No such schema, table, function.
const MISSING_OBJECT: [&str; 3] = ["3F000", "42P01", "42883"];

/// Whether the connection is of no use any more, and the outcome unknown. The driver's own errors have private kinds, and these
/// messages.
fn is_about_the_connection(error: &tokio_postgres::Error) -> bool {
    const MESSAGES: [&str; 3] = [
        "error communicating with the server",
        "error parsing response from server",
        "unexpected message from server",
    ];
    error.is_closed() || MESSAGES.contains(&error.to_string().as_str())
}

fn not_opened(location: &str, error: &tokio_postgres::Error) -> Error {
    match (error.to_string().as_str(), std::error::Error::source(error)) {
        ("error performing TLS handshake", Some(cause)) => match cause.downcast_ref::<std::io::Error>() {
            // `InvalidData` is a TLS error; any other comes from the network or a server that shuts down.
            Some(cause) if cause.kind() == std::io::ErrorKind::InvalidData => {
                handshake_failed(cause.to_string()).context(format!("could not connect to {location}"))
            }
            Some(_) => unreachable(location).with_source(chain(error)),
            None => Error::new(ErrorKind::BadConfig, format!("{location} does not accept TLS"))
                .with_hint("enable ssl in postgresql.conf, or use sslmode=disable in a trusted network")
                .with_source(chain(error)),
        },
        ("authentication error" | "invalid configuration", _) => {
            let hint = if chain(error).contains("password missing") {
                "the server asks for a password: postgres://USER:PASSWORD@HOST/DATABASE"
            } else {
                "a login with a password (scram-sha-256, md5), with a certificate, or without either is supported"
            };
            let message = format!("{location} does not accept the login");
            Error::new(ErrorKind::Denied, message).with_hint(hint).with_source(chain(error))
        }
        _ => unreachable(location).with_source(chain(error)),
    }
}

/// Maps an error that the server replied with.
fn server_error(location: &str, code: &str, reply: &DbError) -> Error {
    let other = || Error::new(ErrorKind::Backend, format!("{location} replied with an error"));
    classified(location, code, reply.message()).unwrap_or_else(other).with_source(reply_text(reply))
}

/// Returns the code of a server's error that `PgBouncer` reports: it has one code for all.
fn pooler_code(message: &str) -> Option<&'static str> {
    let codes = [
        ("authentication failed", "28P01"),
        ("no such user", "28P01"),
        ("no such database", "3D000"),
        ("does not exist", "3D000"),
        ("no more connections allowed", "53300"),
        ("SSL required", "28000"),
    ];
    codes.iter().find(|(text, _)| message.contains(text)).map(|(_, code)| *code)
}

/// Returns the server's message with its code. It quotes names and values of statements, never a password.
fn reply_text(reply: &DbError) -> String {
    format!("{}: {}", reply.code().code(), reply.message())
}

/// Returns the error for the codes that are told apart.
fn classified(location: &str, code: &str, message: &str) -> Option<Error> {
    let error = |kind, message: &str, hint: &str| {
        let error = Error::new(kind, format!("{location} {message}"));
        if hint.is_empty() { error } else { error.with_hint(hint) }
    };
    Some(match code {
        "28P01" => error(
            ErrorKind::Denied,
            "does not accept this user and password",
            "give them in the URL: postgres://USER:PASSWORD@HOST/DATABASE, with special characters percent-encoded",
        ),
        "28000" => error(ErrorKind::Denied, "does not accept the login", login_hint(message)),
        "42501" => error(
            ErrorKind::Denied,
            "denies the account permission",
            "`fencepost rights` prints the permissions to grant",
        ),
        "3D000" => error(
            ErrorKind::Missing,
            "does not exist: no such database",
            "create it, or name another one: postgres://USER:PASSWORD@HOST/DATABASE",
        ),
        _ if MISSING_OBJECT.contains(&code) => error(
            ErrorKind::Backend,
            "lacks Fencepost's schema, or a part of it",
            "`fencepost schema` with this URL prints the statements that create it",
        ),
        "25006" => standby(location),
        "53100" => {
            error(ErrorKind::Backend, "has no space left on its disk", "free space; nothing was changed")
        }
        "53200" => error(ErrorKind::Backend, "is out of memory", "").transient(),
        "53300" => too_many_connections(location),
        "55P03" => {
            error(ErrorKind::Backend, "has the lock's row in use by another transaction", "").transient()
        }
        "40P01" | "40001" => {
            error(ErrorKind::Backend, "has rolled back the transaction in favour of another one", "")
                .transient()
        }
        "57014" => error(
            ErrorKind::Backend,
            "has cancelled the statement",
            "is the statement_timeout of the account or the database too short?",
        )
        .transient(),
        "57P03" => error(ErrorKind::Unreachable, "does not accept connections now", "").transient(),
        "57P01" | "57P02" | "57P05" => lost_connection(location),
        code if code.starts_with("08") => lost_connection(location),
        "0A000" if message.contains("isolation level") => error(
            ErrorKind::Unsupported,
            "has another isolation level than READ COMMITTED",
            "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
        ),
        "0A000" => error(ErrorKind::Unsupported, "does not support this", ""),
        _ => return None,
    })
}

fn login_hint(message: &str) -> &'static str {
    if message.contains("no encryption") || message.contains("SSL required") {
        "it may require TLS: add ?sslmode=require; or pg_hba.conf has no entry for this user, database and host"
    } else if message.contains("client certificate") {
        "it requires a client certificate: ?sslmode=require&tls_cert=FILE&tls_key=FILE"
    } else {
        "the user may not exist or may not log in, or pg_hba.conf has no entry for this user, database and host"
    }
}

/// Returns the error for a server that is not the primary.
pub(crate) fn standby(location: &str) -> Error {
    let message = format!("{location} is a standby or read-only, and accepts no writes");
    Error::new(ErrorKind::Unreachable, message)
        .with_hint(
            "locks need the primary: use its address, or name all servers: postgres://USER:PASSWORD@HOST,HOST/DATABASE; \
             if it is the primary, an administrator has set default_transaction_read_only",
        )
        .transient()
}

fn too_many_connections(location: &str) -> Error {
    let message = format!("{location} has no connection left for this account");
    Error::new(ErrorKind::Unreachable, message)
        .with_hint(
            "raise max_connections, or the limit of the role or the database, or close idle connections",
        )
        .transient()
}

/// Returns the messages of a driver error and its causes. They are about sockets, TLS and the protocol, and never contain
/// what was sent.
fn chain(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(found) = cause {
        let said = found.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = found.source();
    }
    text
}
