//! The status of every member that the URL names, for the doctor.

use fencepost_core::Result;
use fencepost_net::{Address, CONNECT_TIMEOUT};
use futures_util::future::join_all;

use super::Link;
use super::connection::Connection;
use crate::proto::StatusResponse;

impl Link {
    /// Returns the status of each member, or why it could not be read. Uses one connection per member, concurrently.
    pub(crate) async fn member_statuses(&self) -> Vec<(Address, Result<StatusResponse>)> {
        let statuses = self.common.config.members.iter().map(async |member| {
            let status = async { Connection::connect(&self.common, member).await?.status().await };
            let status = tokio::time::timeout(CONNECT_TIMEOUT, status).await;
            (member.clone(), status.unwrap_or_else(|_| Err(self.connect_timeout(member))))
        });
        join_all(statuses).await
    }

    /// Returns whether the cluster has issued an auth token.
    pub(crate) fn is_logged_in(&self) -> bool {
        self.common.tokens.current().is_some()
    }
}
