//! What the driver and the servers say, in our words.

use fencepost_core::{Error, ErrorKind};
use zookeeper_client as zk;

/// What a failed connect means: nothing was asked for yet.
pub(crate) fn connect_failed(location: &str, error: &zk::Error) -> Error {
    match error {
        zk::Error::AuthFailed | zk::Error::NoAuth => failed(location, error),
        zk::Error::BadArguments(why) => {
            Error::new(ErrorKind::BadConfig, format!("could not connect to {location}: {why}"))
        }
        _ => unreachable(location).with_source(error.clone()),
    }
}

/// Nobody answers there.
pub(crate) fn unreachable(location: &str) -> Error {
    Error::new(ErrorKind::Unreachable, format!("could not reach {location}"))
        .with_hint("is a ZooKeeper server running there, and does a firewall let you through?")
}

/// What a failed request means, which a server may have seen.
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
            Error::new(ErrorKind::Unreachable, format!("{location} cannot serve now: {error}"))
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
            Error::new(ErrorKind::Backend, format!("{location} answered: {error}"))
        }
        _ => outcome_unknown(location).with_source(error.clone()),
    }
}

/// A request that may or may not have had its effect.
pub(crate) fn outcome_unknown(location: &str) -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        format!("the connection to {location} ended before the answer came"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_certainly_did_nothing_is_unreachable() {
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
