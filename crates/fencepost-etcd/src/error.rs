//! What the server says when it does not do what it is asked, in our words.

use fencepost_core::{Error, ErrorKind};
use fencepost_net::Account;
use tonic::{Code, Status};

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The lease that was named is not there; nothing was done.
    NoLease,
    /// Anything else.
    Failed(Error),
}

impl Failure {
    /// Whether the server has understood the request and does not do it: a part of it may still be done.
    pub(crate) fn is_definite(&self) -> bool {
        match self {
            Self::NoLease => true,
            Self::Failed(error) => {
                !matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown)
            }
        }
    }

    /// For callers to whom a missing lease is a failure like any other.
    pub(crate) fn into_error(self, location: &str) -> Error {
        match self {
            Self::NoLease => {
                Error::new(ErrorKind::Backend, format!("the lease is not in {location} any more"))
            }
            Self::Failed(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What a failed call means for what comes next.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// Nothing was done, because the token is not valid (any more).
    StaleToken,
    /// Nothing was done; another member may do better.
    Elsewhere,
    /// It may have been done.
    Unknown,
    /// Nothing was done, because there is no such lease.
    NoLease,
    /// Nothing was done, and nothing will be if it is asked again.
    Refused(Error),
}

/// Nobody answers there.
pub(crate) fn unreachable(location: &str) -> Error {
    Error::new(ErrorKind::Unreachable, format!("{location} is not reachable"))
}

/// What the server's answer means, or the driver's that there is none.
pub(crate) fn meaning(location: &str, status: &Status) -> Meaning {
    // What the driver says by itself has a cause, and whatever it is: the request may have been sent.
    if std::error::Error::source(status).is_some() {
        return if was_not_sent(status) { Meaning::Elsewhere } else { Meaning::Unknown };
    }
    let text = status.message();
    match text.strip_prefix("etcdserver: ").unwrap_or(text) {
        // Said before anything is proposed.
        "no leader" | "not capable" | "rpc not supported for learner" | "too many requests" => {
            Meaning::Elsewhere
        }
        "invalid auth token" | "user name is empty" | "revision of auth store is old" => Meaning::StaleToken,
        "requested lease not found" => Meaning::NoLease,
        other => refusal(location, status.code(), other).map_or(Meaning::Unknown, Meaning::Refused),
    }
}

/// We have no token that is accepted, and get none.
pub(crate) fn stranger(location: &str, account: &Account) -> Error {
    let error = |message: &str| Error::new(ErrorKind::Denied, format!("{location} {message}"));
    match account.user {
        None => error("lets nobody in without an account").with_hint("name one: etcd://USER:PASSWORD@HOST"),
        Some(_) => error("does not accept the token that it gave us"),
    }
}

fn refusal(location: &str, code: Code, text: &str) -> Option<Error> {
    let error = |kind, message: &str| Error::new(kind, format!("{location} {message}"));
    let refused = match (code, text) {
        (_, "mvcc: database space exceeded") => error(ErrorKind::Backend, "is full: nothing can be written").with_hint(
            "make room (etcdctl compact, etcdctl defrag) or raise --quota-backend-bytes, then etcdctl alarm disarm",
        ),
        (Code::DataLoss, _) | (_, "corrupt cluster") => error(ErrorKind::Backend, "has lost data").with_hint(
            "its members do not agree on what they have stored: see etcdctl alarm list",
        ),
        (_, "authentication failed, invalid user ID or password") => {
            error(ErrorKind::Denied, "does not accept the user and the password")
        }
        (Code::PermissionDenied, _) => error(ErrorKind::Denied, "does not permit that")
            .with_hint("`fencepost rights` says what to grant"),
        (Code::Unauthenticated, _) => error(ErrorKind::Denied, "does not let us in"),
        (Code::Unimplemented, _) => error(ErrorKind::BadConfig, "does not know what we ask for")
            .with_hint("is it an etcd server, of version 3.4 or later?"),
        (
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::NotFound
            | Code::ResourceExhausted,
            _,
        ) => error(ErrorKind::BadConfig, "refuses the request"),
        _ => return None,
    };
    Some(refused.with_source(text.to_owned()))
}

/// Said by a connection that is over before it is asked to carry anything.
#[derive(Debug)]
pub(crate) struct Over;

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is over")
    }
}

impl std::error::Error for Over {}

fn was_not_sent(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(found) = cause {
        if found.is::<Over>() {
            return true;
        }
        cause = found.source();
    }
    false
}

/// The causes of what the driver says; its own words are the least of it.
pub(crate) fn causes(status: &Status) -> String {
    let mut text = String::new();
    let mut cause = std::error::Error::source(status);
    while let Some(found) = cause {
        let said = found.to_string();
        if !text.contains(&said) {
            text = if text.is_empty() { said } else { format!("{text}: {said}") };
        }
        cause = found.source();
    }
    if text.is_empty() { status.message().to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: Code, text: &str) -> Meaning {
        meaning("etcd://h", &Status::new(code, text))
    }

    #[test]
    fn what_was_surely_not_done_is_told_from_what_may_have_been() {
        let elsewhere = [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
        ];
        for (code, text) in elsewhere {
            assert!(matches!(said(code, text), Meaning::Elsewhere), "{text}");
        }
        let unknown = [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unknown, "no leader, perhaps"),
            (Code::Internal, "what"),
            (Code::Cancelled, "context canceled"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
        ];
        for (code, text) in unknown {
            assert!(matches!(said(code, text), Meaning::Unknown), "{text}");
        }
    }

    #[test]
    fn refusals_have_their_kinds() {
        let kinds = [
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", ErrorKind::Backend),
            (Code::DataLoss, "etcdserver: corrupt cluster", ErrorKind::Backend),
            (Code::PermissionDenied, "etcdserver: permission denied", ErrorKind::Denied),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                ErrorKind::Denied,
            ),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", ErrorKind::BadConfig),
            (Code::Unimplemented, "unknown service", ErrorKind::BadConfig),
        ];
        for (code, text, kind) in kinds {
            let Meaning::Refused(error) = said(code, text) else { panic!("{text}") };
            assert_eq!(error.kind(), kind, "{text}");
        }
        assert!(matches!(said(Code::NotFound, "etcdserver: requested lease not found"), Meaning::NoLease));
        assert!(matches!(said(Code::Unauthenticated, "etcdserver: invalid auth token"), Meaning::StaleToken));
    }

    #[test]
    fn what_the_driver_says_is_no_answer_of_the_server() {
        let lost = Status::from_error(std::io::Error::other("etcdserver: no leader").into());
        assert!(matches!(meaning("etcd://h", &lost), Meaning::Unknown));
        let over = Status::from_error(Box::new(Over));
        assert!(matches!(meaning("etcd://h", &over), Meaning::Elsewhere));
    }
}
