//! Asking every member that the URL names, for those who want to know how the whole cluster is.

use fencepost_core::Result;
use fencepost_net::{Address, CONNECT_TIMEOUT};
use futures_util::future::join_all;

use super::Link;
use super::member::Live;
use crate::proto::StatusResponse;

impl Link {
    /// How each member is, or why it does not say so. Each is asked over a connection of its own, all at once.
    pub(crate) async fn each(&self) -> Vec<(Address, Result<StatusResponse>)> {
        let asked = self.common.setup.members.iter().map(async |member| {
            let asking = async { Live::connect(&self.common, member).await?.status().await };
            let status = tokio::time::timeout(CONNECT_TIMEOUT, asking).await;
            (member.clone(), status.unwrap_or_else(|_| Err(self.silent(member))))
        });
        join_all(asked).await
    }

    /// Whether a password was asked for.
    pub(crate) fn is_logged_in(&self) -> bool {
        self.common.tokens.current().is_some()
    }
}
