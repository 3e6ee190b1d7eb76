//! Maps errors of the driver and the servers to [`Error`].

use fencepost_core::{Error, ErrorKind};
use zookeeper_client as zk;

/// Maps the error of a connect. No request was sent yet.
pub(crate) fn connect_failed(location: &str, error: &zk::Error) -> Error {
    match error {
        zk::Error::AuthFailed | zk::Error::NoAuth => failed(location, error),
        zk::Error::BadArguments(why) => {
            Error::new(ErrorKind::BadConfig, format!("could not connect to {location}: {why}"))
        }
        _ => unreachable(location).with_source(error.clone()),
    }
}

/// Returns the error for servers that cannot be reached.
pub(crate) fn unreachable(location: &str) -> Error {
    Error::new(ErrorKind::Unreachable, format!("could not reach {location}"))
        .with_hint("check that a ZooKeeper server is running there and that no firewall blocks it")
}

/// Maps the error of a request, which a server may have applied.
pub(crate) fn failed(location: &str, error: &zk::Error) -> Error {
    use zk::Error as Driver;
    let denied = |message: String, hint: &str| Error::new(ErrorKind::Denied, message).with_hint(hint);
    match error {
        Driver::AuthFailed => denied(
            format!("{location} does not accept this user and password"),
            "put them into the URL: zk://USER:PASSWORD@HOST, with special characters percent-encoded",
        ),
        Driver::NoAuth | Driver::InvalidAcl => denied(
            format!("{location} does not permit this: {error}"),
            "`fencepost rights` prints the rights that are needed",
        ),
        Driver::NotReadOnly | Driver::Throttled => {
            Error::new(ErrorKind::Unreachable, format!("{location} cannot serve requests now: {error}"))
        }
        Driver::Unimplemented => {
            Error::new(ErrorKind::Unsupported, format!("{location} is too old: {error}"))
                .with_hint("ZooKeeper 3.6 or newer is needed, for containers and recursive watches")
        }
        Driver::QuotaExceeded
        | Driver::NoNode
        | Driver::NodeExists
        | Driver::NotEmpty
        | Driver::BadVersion
        | Driver::NoChildrenForEphemerals
        | Driver::BadArguments(_)
        | Driver::MarshallingError
        | Driver::UnexpectedErrorCode(_) => {
            Error::new(ErrorKind::Backend, format!("{location} replied: {error}"))
        }
        _ => outcome_unknown(location).with_source(error.clone()),
    }
}

/// Returns the error for a request without a reply.
pub(crate) fn outcome_unknown(location: &str) -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        format!("the connection to {location} was lost before the reply; the request may have been applied"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_may_have_been_applied_is_not_unreachable() {
        for error in [
            zk::Error::ConnectionLoss,
            zk::Error::SessionExpired,
            zk::Error::ClientClosed,
            zk::Error::Timeout,
        ] {
            assert_eq!(failed("zk://a", &error).kind(), ErrorKind::OutcomeUnknown, "{error}");
            assert_eq!(connect_failed("zk://a", &error).kind(), ErrorKind::Unreachable, "{error}");
        }
        assert_eq!(failed("zk://a", &zk::Error::NoAuth).kind(), ErrorKind::Denied);
        assert_eq!(connect_failed("zk://a", &zk::Error::AuthFailed).kind(), ErrorKind::Denied);
        assert_eq!(failed("zk://a", &zk::Error::QuotaExceeded).kind(), ErrorKind::Backend);
    }
}
