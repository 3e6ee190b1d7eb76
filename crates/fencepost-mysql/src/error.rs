//! Converts errors of the server and of the driver.

use fencepost_core::{Error, ErrorKind};
use fencepost_net::handshake_failed;
use mysql_async::{DriverError, IoError, ServerError};

/// The row is locked by another transaction: the wait for it ended.
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;
/// MariaDB's `max_statement_time` has passed.
const STATEMENT_TIMEOUT: u16 = 1969;
/// MySQL's error of `NOWAIT`.
const NOWAIT: u16 = 3572;
/// The statement was interrupted by `KILL QUERY`.
const INTERRUPTED: u16 = 1317;
/// MySQL's error for a deadlock of named locks; MariaDB reports [`DEADLOCK`].
const USER_LOCK_DEADLOCK: u16 = 3058;
/// The connection was closed by the server: shutdown, `KILL`, idle transaction.
const CLOSED: [u16; 5] = [1053, 1152, 1927, 4030, 4031];
/// A value is out of the range of its type.
const OUT_OF_RANGE: u16 = 1690;
const NO_SUCH_TABLE: u16 = 1146;
const UNKNOWN_COLUMN: u16 = 1054;

/// Why statements failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server rejected a statement; those before it were executed, those after it were not.
    Rejected {
        error: ServerError,
        /// The index of the statement.
        at: usize,
    },
    /// There was no reply: the statements may have been executed or not.
    NoReply(Error),
}

impl Failure {
    pub(crate) fn new(location: &str, error: mysql_async::Error, at: usize) -> Self {
        match error {
            mysql_async::Error::Server(error) => Self::Rejected { error, at },
            other => Self::NoReply(driver_error(location, other)),
        }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Rejected { error, .. } => Some(error.code),
            Self::NoReply(_) => None,
        }
    }

    pub(crate) fn is_deadlock(&self) -> bool {
        self.code() == Some(DEADLOCK)
    }

    /// Whether another transaction has a row locked.
    pub(crate) fn is_locked(&self) -> bool {
        self.code().is_some_and(|code| [LOCK_WAIT_TIMEOUT, STATEMENT_TIMEOUT, NOWAIT].contains(&code))
    }

    /// Whether a number overflowed: the request has found that its operations are not plain.
    pub(crate) fn is_not_plain(&self) -> bool {
        self.code() == Some(OUT_OF_RANGE)
    }

    /// Whether the server rejected a statement before this one, so that this one was not executed.
    pub(crate) fn is_before(&self, statement: usize) -> bool {
        matches!(self, Self::Rejected { at, .. } if *at < statement)
    }

    pub(crate) fn is_missing_table(&self) -> bool {
        self.code() == Some(NO_SUCH_TABLE)
    }

    pub(crate) fn is_unknown_column(&self) -> bool {
        self.code() == Some(UNKNOWN_COLUMN)
    }

    /// Whether the statement was ended by `KILL QUERY`.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.code() == Some(INTERRUPTED)
    }

    /// Whether a connection to be killed does not exist any more.
    pub(crate) fn is_missing_connection(&self) -> bool {
        self.code() == Some(1094)
    }

    /// Whether the connection can no longer be used.
    pub(crate) fn is_connection_lost(&self) -> bool {
        self.code().is_none_or(|code| CLOSED.contains(&code))
    }

    /// Returns the error of statements that were not committed.
    pub(crate) fn into_error(self, location: &str) -> Error {
        match self {
            Self::NoReply(error) => error,
            Self::Rejected { error, .. } => server_error(location, &error),
        }
    }

    /// Returns the error of statements of which the last, with this index, is the commit.
    pub(crate) fn into_commit_error(self, location: &str, commit: usize) -> Error {
        match self {
            Self::NoReply(error) => {
                Error::new(ErrorKind::OutcomeUnknown, format!("no reply from {location} to a commit"))
                    .with_source(error)
            }
            Self::Rejected { error, at } if at >= commit => Error::new(
                ErrorKind::OutcomeUnknown,
                format!("{location} failed during a commit: {}", error.message),
            ),
            rejected @ Self::Rejected { .. } => rejected.into_error(location),
        }
    }
}

/// The error for a server that does not answer.
pub(crate) fn unreachable(location: &str) -> Error {
    Error::new(ErrorKind::Unreachable, format!("could not reach {location}"))
        .with_hint("is a MariaDB or MySQL server running there, and does a firewall block the connection?")
}

/// Converts an error of the driver: the server did not reply, or there is no connection.
fn driver_error(location: &str, error: mysql_async::Error) -> Error {
    match error {
        mysql_async::Error::Server(error) => server_error(location, &error),
        mysql_async::Error::Io(IoError::Tls(error)) => handshake_failed(error),
        mysql_async::Error::Io(IoError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
            handshake_failed(error)
        }
        mysql_async::Error::Driver(DriverError::NoClientSslFlagFromServer) => Error::new(
            ErrorKind::BadConfig,
            format!("{location} does not accept TLS"),
        )
        .with_hint(
            "configure the server's certificate (ssl_cert, ssl_key), or remove tls=true in a trusted network",
        ),
        mysql_async::Error::Driver(DriverError::PacketTooLarge) => {
            Error::new(ErrorKind::Backend, format!("a request is too large for {location}"))
                .with_hint("raise max_allowed_packet on the server")
        }
        other => unreachable(location).with_source(other),
    }
}

/// Converts the server's rejection of a connection or a statement. Its message quotes names and values of statements, never a
/// password.
pub(crate) fn server_error(location: &str, error: &ServerError) -> Error {
    let (kind, what, hint) = classified(error.code, &error.message);
    let converted = Error::new(kind, format!("{location} {what}"));
    let converted = converted.with_source(format!("{}: {}", error.code, error.message));
    let converted = if kind == ErrorKind::Unreachable { converted.transient() } else { converted };
    if hint.is_empty() { converted } else { converted.with_hint(hint) }
}

const NO_INNODB: Class = (
    ErrorKind::Unsupported,
    "does not allow the storage engine InnoDB",
    "enable InnoDB, and unset enforce_storage_engine: other engines have no transactions",
);

/// The kind of an error, what the server did, and what to do.
type Class = (ErrorKind, &'static str, &'static str);

/// Returns the class of an error that says what the account may not do.
fn denial(code: u16) -> Option<Class> {
    let (what, hint) = match code {
        1045 | 1698 | 1524 | 2059 | 1251 | 3955 | 4151 => (
            "does not accept this user and password",
            "give them in the URL: mysql://USER:PASSWORD@HOST/DATABASE, with special characters percent-encoded; \
             the account must exist for the client's host, and may require TLS",
        ),
        1044 | 1142 | 1143 | 1227 | 1370 => {
            ("denies the account permission", "`fencepost rights` prints the rights to grant")
        }
        1130 | 1129 => (
            "does not accept connections of this host",
            "create the account for it: USER@HOST; FLUSH HOSTS unblocks one after many failed logins",
        ),
        1095 => (
            "does not let the account end the connection of another one",
            "connect as the same user, or GRANT CONNECTION ADMIN (MySQL: CONNECTION_ADMIN) ON *.* TO …",
        ),
        _ => return None,
    };
    Some((ErrorKind::Denied, what, hint))
}

fn classified(code: u16, message: &str) -> Class {
    if let Some(denial) = denial(code) {
        return denial;
    }
    match code {
        1059 | 3057 => (
            ErrorKind::BadName,
            "does not accept the name of the lock",
            "use key=sha256, the default of mode=named",
        ),
        1049 => (
            ErrorKind::Missing,
            "does not exist: no such database",
            "create it, or name another one: mysql://USER:PASSWORD@HOST/DATABASE",
        ),
        1286 => NO_INNODB,
        1290 if message.contains("NO_ENGINE_SUBSTITUTION") => NO_INNODB,
        1290 | 1792 | 1836 | 1036 => (
            ErrorKind::Unreachable,
            "is a replica or read-only, and accepts no writes",
            "locks need the primary: use its address",
        ),
        1021 | 1026 | 1114 | 3 | 28 => {
            (ErrorKind::Backend, "has no space left on its disk", "free space; nothing was changed")
        }
        1040 | 1203 | 1226 => (
            ErrorKind::Unreachable,
            "has no connection left for this account",
            "raise max_connections, or max_user_connections of the account: a client needs up to 4, with mode=named one for \
             each lock",
        ),
        1665 => (
            ErrorKind::Unsupported,
            "cannot write its binary log",
            "set binlog_format = ROW or MIXED: STATEMENT cannot log transactions with READ COMMITTED",
        ),
        LOCK_WAIT_TIMEOUT | STATEMENT_TIMEOUT | NOWAIT | DEADLOCK => (
            ErrorKind::Unreachable,
            "has the lock's row in use by another transaction",
            "`fencepost doctor` names the transaction",
        ),
        NO_SUCH_TABLE | UNKNOWN_COLUMN | 1364 => (
            ErrorKind::Backend,
            "lacks Fencepost's tables, or a part of them",
            "`fencepost schema` with this URL prints the statements that create them",
        ),
        INTERRUPTED => (ErrorKind::Unreachable, "has cancelled the statement", ""),
        USER_LOCK_DEADLOCK => (ErrorKind::Unreachable, "has found a deadlock of named locks", ""),
        code if CLOSED.contains(&code) => (ErrorKind::Unreachable, "has closed the connection", ""),
        _ => (ErrorKind::Backend, "replied with an error", ""),
    }
}

/// Converts the error of a failed connect.
pub(crate) fn connect_error(location: &str, error: mysql_async::Error) -> Error {
    driver_error(location, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(code: u16, at: usize) -> Failure {
        let error = ServerError { code, message: "text".into(), state: "HY000".into() };
        Failure::Rejected { error, at }
    }

    #[test]
    fn what_failed_before_the_commit_was_not_applied() {
        let kind = |failure: Failure| failure.into_commit_error("mysql://h/app", 3).kind();
        assert_eq!(kind(rejected(1114, 2)), ErrorKind::Backend);
        assert_eq!(kind(rejected(1317, 2)), ErrorKind::Unreachable);
        assert_eq!(kind(rejected(1180, 3)), ErrorKind::OutcomeUnknown);
        assert_eq!(kind(Failure::NoReply(unreachable("x"))), ErrorKind::OutcomeUnknown);
    }

    #[test]
    fn errors_say_what_to_do() {
        for (code, kind, hint) in [
            (1045, ErrorKind::Denied, "PASSWORD"),
            (1142, ErrorKind::Denied, "fencepost rights"),
            (1049, ErrorKind::Missing, "create it"),
            (1290, ErrorKind::Unreachable, "primary"),
            (1114, ErrorKind::Backend, "free space"),
            (1040, ErrorKind::Unreachable, "max_connections"),
            (1665, ErrorKind::Unsupported, "binlog_format"),
        ] {
            let error = rejected(code, 0).into_error("mysql://h/app");
            assert_eq!(error.kind(), kind, "{code}");
            assert!(error.hint().unwrap().contains(hint), "{error:?}");
        }
    }
}
