//! Maps the errors of the server and of the driver to Fencepost's errors.

use fencepost_core::{Error, ErrorKind};
use fencepost_net::Account;
use tonic::{Code, Status};

/// The reason why a call failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The lease does not exist; the request was not applied.
    NoLease,
    /// Any other error.
    Failed(Error),
}

impl Failure {
    /// Returns whether the server has rejected the request: parts of it, sent separately, may be accepted.
    pub(crate) fn is_definite(&self) -> bool {
        match self {
            Self::NoLease => true,
            Self::Failed(error) => {
                !matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown)
            }
        }
    }

    /// Converts to an error, for callers that do not handle a missing lease.
    pub(crate) fn into_error(self, location: &str) -> Error {
        match self {
            Self::NoLease => {
                Error::new(ErrorKind::Backend, format!("the lease does not exist in {location} any more"))
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

/// What a failed call means for the caller.
#[derive(Debug)]
pub(crate) enum FailureClass {
    /// Not applied, because the auth token is not or no longer valid.
    StaleToken,
    /// Not applied; another member may accept it.
    OtherMember,
    /// It may have been applied.
    OutcomeUnknown,
    /// Not applied, because the lease does not exist.
    NoLease,
    /// Not applied, and a retry would not be applied either.
    Refused(Error),
}

/// Returns the error of a cluster of which no member is reachable.
pub(crate) fn unreachable(location: &str) -> Error {
    Error::new(ErrorKind::Unreachable, format!("{location} is not reachable")).with_hint(
        "check that etcd is running at these endpoints, that the port is its client port (2379 by default), \
         and the scheme: etcd:// without TLS, etcds:// with TLS",
    )
}

/// Classifies an error status of the server, or of the driver if there was no response.
pub(crate) fn classify(location: &str, status: &Status) -> FailureClass {
    // A status of the driver has a source. Whatever it is, the request may have been sent.
    if std::error::Error::source(status).is_some() {
        return if was_not_sent(status) { FailureClass::OtherMember } else { FailureClass::OutcomeUnknown };
    }
    let text = status.message();
    match text.strip_prefix("etcdserver: ").unwrap_or(text) {
        // The server checks these before it proposes the request.
        "no leader" | "not capable" | "rpc not supported for learner" | "too many requests" => {
            FailureClass::OtherMember
        }
        "invalid auth token" | "user name is empty" | "revision of auth store is old" => {
            FailureClass::StaleToken
        }
        "requested lease not found" => FailureClass::NoLease,
        other => refusal(location, status.code(), other)
            .map_or(FailureClass::OutcomeUnknown, FailureClass::Refused),
    }
}

/// Returns the error of a client without a valid auth token.
pub(crate) fn not_authenticated(location: &str, account: &Account) -> Error {
    let error = |message: &str| Error::new(ErrorKind::Denied, format!("{location} {message}"));
    match account.user {
        None => error("requires authentication")
            .with_hint("add user and password to the URL: etcd://USER:PASSWORD@HOST"),
        Some(_) => error("rejects the auth token that it has issued"),
    }
}

fn refusal(location: &str, code: Code, text: &str) -> Option<Error> {
    let error = |kind, message: &str| Error::new(kind, format!("{location} {message}"));
    let refused = match (code, text) {
        (_, "mvcc: database space exceeded") => error(ErrorKind::Backend, "is full: it accepts no writes").with_hint(
            "free space (etcdctl compact, etcdctl defrag) or raise --quota-backend-bytes, then run etcdctl alarm disarm",
        ),
        (Code::DataLoss, _) | (_, "corrupt cluster") => error(ErrorKind::Backend, "has lost data").with_hint(
            "the data of its members differs: see etcdctl alarm list",
        ),
        (_, "authentication failed, invalid user ID or password") => {
            error(ErrorKind::Denied, "rejects the user or the password")
        }
        (Code::PermissionDenied, _) => error(ErrorKind::Denied, "denies the account permission")
            .with_hint("`fencepost rights` prints the permissions to grant"),
        (Code::Unauthenticated, _) => error(ErrorKind::Denied, "rejects the client: not authenticated"),
        (Code::Unimplemented, _) => error(ErrorKind::BadConfig, "does not implement the request")
            .with_hint("is it an etcd server, of version 3.4 or later?"),
        (
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::NotFound
            | Code::ResourceExhausted,
            _,
        ) => error(ErrorKind::BadConfig, "rejects the request"),
        _ => return None,
    };
    Some(refused.with_source(text.to_owned()))
}

/// The error of a connection that was closed before the request was sent.
#[derive(Debug)]
pub(crate) struct ConnectionClosed;

impl std::fmt::Display for ConnectionClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is closed")
    }
}

impl std::error::Error for ConnectionClosed {}

fn was_not_sent(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(source) = cause {
        if source.is::<ConnectionClosed>() {
            return true;
        }
        cause = source.source();
    }
    false
}

/// Returns the sources of a driver status: its own message says little.
pub(crate) fn source_chain(status: &Status) -> String {
    let mut chain = String::new();
    let mut cause = std::error::Error::source(status);
    while let Some(source) = cause {
        let message = source.to_string();
        if !chain.contains(&message) {
            chain = if chain.is_empty() { message } else { format!("{chain}: {message}") };
        }
        cause = source.source();
    }
    if chain.is_empty() { status.message().to_owned() } else { chain }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(code: Code, text: &str) -> FailureClass {
        classify("etcd://h", &Status::new(code, text))
    }

    #[test]
    fn requests_that_were_not_applied_are_told_from_those_that_may_have_been() {
        let not_applied = [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
        ];
        for (code, text) in not_applied {
            assert!(matches!(class(code, text), FailureClass::OtherMember), "{text}");
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
            assert!(matches!(class(code, text), FailureClass::OutcomeUnknown), "{text}");
        }
    }

    #[test]
    fn an_unreachable_cluster_has_a_hint_about_endpoints_port_and_scheme() {
        let error = unreachable("etcd://h:2380");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let hint = error.hint().unwrap();
        assert!(["endpoints", "2379", "etcds://"].iter().all(|word| hint.contains(word)), "{hint}");
    }

    #[test]
    fn rejections_have_their_error_kinds() {
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
            let FailureClass::Refused(error) = class(code, text) else { panic!("{text}") };
            assert_eq!(error.kind(), kind, "{text}");
        }
        assert!(matches!(
            class(Code::NotFound, "etcdserver: requested lease not found"),
            FailureClass::NoLease
        ));
        assert!(matches!(
            class(Code::Unauthenticated, "etcdserver: invalid auth token"),
            FailureClass::StaleToken
        ));
    }

    #[test]
    fn a_status_of_the_driver_is_not_a_response_of_the_server() {
        let lost = Status::from_error(std::io::Error::other("etcdserver: no leader").into());
        assert!(matches!(classify("etcd://h", &lost), FailureClass::OutcomeUnknown));
        let closed = Status::from_error(Box::new(ConnectionClosed));
        assert!(matches!(classify("etcd://h", &closed), FailureClass::OtherMember));
    }
}
