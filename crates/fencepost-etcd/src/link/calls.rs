//! The calls to the cluster: each is sent once, and again only if it is known to have had no effect.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Result};
use futures_util::stream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::Link;
use super::connection::{Connection, Token};
use crate::error::{Failure, FailureClass, classify, not_authenticated, source_chain, unreachable};
use crate::proto::alarm_request::AlarmAction;
use crate::proto::cluster_client::ClusterClient;
use crate::proto::kv_client::KvClient;
use crate::proto::lease_client::LeaseClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::{
    AlarmRequest, AlarmResponse, AlarmType, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, MemberListRequest, MemberListResponse, RangeRequest, RangeResponse,
    ResponseHeader, TxnRequest, TxnResponse,
};

/// The maximum number of new auth tokens per call: every change of a user or role invalidates all tokens.
const MAX_LOGINS: usize = 8;

/// Whether a call without a response may have had an effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// It has no effect.
    ReadOnly,
    /// It may have been applied.
    Write,
}

/// The response to a keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptAlive {
    pub(crate) ttl_secs: u64,
    /// The term of the member that responded, which may not be the leader any more.
    pub(crate) raft_term: u64,
}

/// A response with a header.
trait HasHeader {
    fn header(&self) -> Option<&ResponseHeader>;
}

macro_rules! has_header {
    ($($response:ty),* $(,)?) => {$(
        impl HasHeader for $response {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header.as_ref()
            }
        }
    )*};
}

has_header!(
    AlarmResponse,
    LeaseGrantResponse,
    LeaseKeepAliveResponse,
    LeaseRevokeResponse,
    LeaseTimeToLiveResponse,
    MemberListResponse,
    RangeResponse,
    TxnResponse,
);

type CallResult<T> = Result<T, Failure>;

impl Link {
    /// Sends a transaction, which counts as a write.
    pub(crate) async fn txn(&self, request: TxnRequest, timeout: Duration) -> CallResult<TxnResponse> {
        let call = async |channel, request| kv(channel).txn(request).await;
        self.call(Effect::Write, request, timeout, call).await
    }

    /// Sends a read, which is linearizable unless the request says otherwise.
    pub(crate) async fn range(&self, request: RangeRequest, timeout: Duration) -> CallResult<RangeResponse> {
        let call = async |channel, request| kv(channel).range(request).await;
        self.call(Effect::ReadOnly, request, timeout, call).await
    }

    /// Grants a lease; the server chooses the id if it is 0.
    pub(crate) async fn lease_grant(
        &self,
        ttl_secs: i64,
        id: i64,
        timeout: Duration,
    ) -> CallResult<LeaseGrantResponse> {
        let call = async |channel, request| LeaseClient::new(channel).lease_grant(request).await;
        self.call(Effect::Write, LeaseGrantRequest { ttl: ttl_secs, id }, timeout, call).await
    }

    /// Revokes a lease, which deletes its keys.
    pub(crate) async fn lease_revoke(&self, id: i64, timeout: Duration) -> CallResult<LeaseRevokeResponse> {
        let call = async |channel, request| LeaseClient::new(channel).lease_revoke(request).await;
        self.call(Effect::Write, LeaseRevokeRequest { id }, timeout, call).await
    }

    /// Returns the remaining ttl of a lease.
    pub(crate) async fn lease_time_to_live(
        &self,
        id: i64,
        timeout: Duration,
    ) -> CallResult<LeaseTimeToLiveResponse> {
        let call = async |channel, request| LeaseClient::new(channel).lease_time_to_live(request).await;
        let request = LeaseTimeToLiveRequest { id, keys: false };
        let response = self.call(Effect::ReadOnly, request, timeout, call).await?;
        if response.ttl < 0 { Err(Failure::NoLease) } else { Ok(response) }
    }

    /// Keeps a lease alive once: restarts its ttl.
    pub(crate) async fn keep_alive(&self, id: i64, timeout: Duration) -> CallResult<KeptAlive> {
        let call = async |channel, request: Request<LeaseKeepAliveRequest>| {
            let (metadata, extensions, request) = request.into_parts();
            let once = Request::from_parts(metadata, extensions, stream::iter([request]));
            let responses = LeaseClient::new(channel).lease_keep_alive(once).await?;
            let (metadata, mut responses, extensions) = responses.into_parts();
            let response = responses.message().await?;
            let response =
                response.ok_or_else(|| Status::unavailable("the stream ended without a response"))?;
            Ok(Response::from_parts(metadata, response, extensions))
        };
        let response = self.call(Effect::Write, LeaseKeepAliveRequest { id }, timeout, call).await?;
        let ttl_secs = u64::try_from(response.ttl).unwrap_or(0);
        if ttl_secs == 0 {
            return Err(Failure::NoLease);
        }
        Ok(KeptAlive { ttl_secs, raft_term: response.header.map_or(0, |header| header.raft_term) })
    }

    /// Returns the raised alarms.
    pub(crate) async fn alarms(&self, timeout: Duration) -> CallResult<AlarmResponse> {
        let call = async |channel, request| MaintenanceClient::new(channel).alarm(request).await;
        let request =
            AlarmRequest { action: AlarmAction::Get.into(), member_id: 0, alarm: AlarmType::None.into() };
        self.call(Effect::ReadOnly, request, timeout, call).await
    }

    /// Returns the members of the cluster.
    pub(crate) async fn members(&self, timeout: Duration) -> CallResult<MemberListResponse> {
        let call = async |channel, request| ClusterClient::new(channel).member_list(request).await;
        self.call(Effect::ReadOnly, MemberListRequest {}, timeout, call).await
    }

    async fn call<Q: Clone, R: HasHeader>(
        &self,
        effect: Effect,
        request: Q,
        timeout: Duration,
        send: impl AsyncFn(Channel, Request<Q>) -> Result<Response<R>, Status>,
    ) -> CallResult<R> {
        let (clock, config) = (&self.common.clock, &self.common.config);
        let deadline = clock.now() + timeout;
        let (mut logins, mut failovers) = (0, 0);
        // Once per member, and again with every new auth token.
        loop {
            let connection = self.connection_within(deadline.since(clock.now())).await?;
            let token = self.common.tokens.current();
            let with_metadata = Connection::with_metadata(request.clone(), token.clone());
            let sent_at = clock.now();
            let call = send(connection.channel(), with_metadata);
            let Ok(result) = tokio::time::timeout(deadline.since(sent_at), call).await else {
                self.fail_over(&connection, sent_at);
                let reason = format!("no response within {timeout:?}");
                return Err(self.no_reply(effect, reason).into());
            };
            let status = match result {
                Ok(response) => {
                    connection.record_received();
                    let response = response.into_inner();
                    self.common.check_cluster(response.header())?;
                    return Ok(response);
                }
                Err(status) => status,
            };
            if std::error::Error::source(&status).is_none() {
                connection.record_received();
            }
            match classify(self.location(), &status) {
                FailureClass::NoLease => return Err(Failure::NoLease),
                FailureClass::Refused(error) => return Err(error.into()),
                FailureClass::StaleToken if logins == MAX_LOGINS || config.account.user.is_none() => {
                    return Err(not_authenticated(self.location(), &config.account).into());
                }
                FailureClass::StaleToken => {
                    logins += 1;
                    self.log_in_within(deadline.since(clock.now()), &connection, token.as_ref()).await?;
                }
                FailureClass::OtherMember => {
                    self.fail_over(&connection, sent_at);
                    failovers += 1;
                    let is_only = config.members.len() == 1 && !connection.is_closed();
                    if is_only || failovers > config.members.len() {
                        return Err(unreachable(self.location()).with_source(source_chain(&status)).into());
                    }
                }
                FailureClass::OutcomeUnknown => {
                    self.fail_over(&connection, sent_at);
                    return Err(self.no_reply(effect, source_chain(&status)).into());
                }
            }
        }
    }

    async fn connection_within(&self, timeout: Duration) -> Result<std::sync::Arc<Connection>> {
        let timed_out = |_| Err(unreachable(self.location()).with_source("the connection attempt timed out"));
        tokio::time::timeout(timeout, self.connection()).await.unwrap_or_else(timed_out)
    }

    async fn log_in_within(
        &self,
        timeout: Duration,
        connection: &Connection,
        stale: Option<&Token>,
    ) -> Result<()> {
        let timed_out = |_| {
            connection.close();
            Err(unreachable(self.location()).with_source("the authentication timed out"))
        };
        tokio::time::timeout(timeout, connection.log_in(stale)).await.unwrap_or_else(timed_out)
    }

    fn no_reply(&self, effect: Effect, reason: String) -> Error {
        match effect {
            Effect::ReadOnly => unreachable(self.location()).with_source(reason),
            Effect::Write => {
                let message = format!("no reply from {}; the request may have been applied", self.location());
                Error::new(ErrorKind::OutcomeUnknown, message).with_source(reason)
            }
        }
    }
}

/// Returns a client without a limit for responses: the request is applied however long its response is.
fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}
