//! The calls: each one sent once, and again only if it surely had no effect.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Result};
use futures_util::stream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::Link;
use super::member::{Live, Token};
use crate::error::{Failure, Meaning, causes, meaning, stranger, unreachable};
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

/// How often a call asks for a new token: every change of anybody's rights makes the last one useless.
const LOGINS: usize = 8;

/// What becomes of a call that is sent and not answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Nothing that anybody could see.
    None,
    /// It may have had its effect.
    Some,
}

/// How a lease was kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptAlive {
    pub(crate) ttl_secs: u64,
    /// Of whoever answered, which may not be the leader any more.
    pub(crate) raft_term: u64,
}

/// An answer that says who gave it.
trait Answer {
    fn header(&self) -> Option<&ResponseHeader>;
}

macro_rules! answers {
    ($($answer:ty),* $(,)?) => {$(
        impl Answer for $answer {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header.as_ref()
            }
        }
    )*};
}

answers!(
    AlarmResponse,
    LeaseGrantResponse,
    LeaseKeepAliveResponse,
    LeaseRevokeResponse,
    LeaseTimeToLiveResponse,
    MemberListResponse,
    RangeResponse,
    TxnResponse,
);

type Answered<T> = Result<T, Failure>;

impl Link {
    /// A transaction. It counts as a write.
    pub(crate) async fn txn(&self, request: TxnRequest, patience: Duration) -> Answered<TxnResponse> {
        let call = async |channel, request| kv(channel).txn(request).await;
        self.call(Effect::Some, request, patience, call).await
    }

    /// Reads; linearizable, unless the request says otherwise.
    pub(crate) async fn range(&self, request: RangeRequest, patience: Duration) -> Answered<RangeResponse> {
        let call = async |channel, request| kv(channel).range(request).await;
        self.call(Effect::None, request, patience, call).await
    }

    /// A new lease, under an id that the server chooses if it is 0.
    pub(crate) async fn lease_grant(
        &self,
        ttl_secs: i64,
        id: i64,
        patience: Duration,
    ) -> Answered<LeaseGrantResponse> {
        let call = async |channel, request| LeaseClient::new(channel).lease_grant(request).await;
        self.call(Effect::Some, LeaseGrantRequest { ttl: ttl_secs, id }, patience, call).await
    }

    /// Ends a lease, and its keys with it.
    pub(crate) async fn lease_revoke(&self, id: i64, patience: Duration) -> Answered<LeaseRevokeResponse> {
        let call = async |channel, request| LeaseClient::new(channel).lease_revoke(request).await;
        self.call(Effect::Some, LeaseRevokeRequest { id }, patience, call).await
    }

    /// What is left of a lease.
    pub(crate) async fn lease_time_to_live(
        &self,
        id: i64,
        patience: Duration,
    ) -> Answered<LeaseTimeToLiveResponse> {
        let call = async |channel, request| LeaseClient::new(channel).lease_time_to_live(request).await;
        let request = LeaseTimeToLiveRequest { id, keys: false };
        let answer = self.call(Effect::None, request, patience, call).await?;
        if answer.ttl < 0 { Err(Failure::NoLease) } else { Ok(answer) }
    }

    /// Lets a lease begin anew, once.
    pub(crate) async fn keep_alive(&self, id: i64, patience: Duration) -> Answered<KeptAlive> {
        let call = async |channel, request: Request<LeaseKeepAliveRequest>| {
            let (metadata, extensions, request) = request.into_parts();
            let once = Request::from_parts(metadata, extensions, stream::iter([request]));
            let answers = LeaseClient::new(channel).lease_keep_alive(once).await?;
            let (metadata, mut answers, extensions) = answers.into_parts();
            let answer = answers.message().await?;
            let answer = answer.ok_or_else(|| Status::unavailable("the stream ended without an answer"))?;
            Ok(Response::from_parts(metadata, answer, extensions))
        };
        let answer = self.call(Effect::Some, LeaseKeepAliveRequest { id }, patience, call).await?;
        let ttl_secs = u64::try_from(answer.ttl).unwrap_or(0);
        if ttl_secs == 0 {
            return Err(Failure::NoLease);
        }
        Ok(KeptAlive { ttl_secs, raft_term: answer.header.map_or(0, |header| header.raft_term) })
    }

    /// What is wrong with the cluster.
    pub(crate) async fn alarms(&self, patience: Duration) -> Answered<AlarmResponse> {
        let call = async |channel, request| MaintenanceClient::new(channel).alarm(request).await;
        let request =
            AlarmRequest { action: AlarmAction::Get.into(), member_id: 0, alarm: AlarmType::None.into() };
        self.call(Effect::None, request, patience, call).await
    }

    /// Who is in the cluster.
    pub(crate) async fn members(&self, patience: Duration) -> Answered<MemberListResponse> {
        let call = async |channel, request| ClusterClient::new(channel).member_list(request).await;
        self.call(Effect::None, MemberListRequest {}, patience, call).await
    }

    async fn call<Q: Clone, A: Answer>(
        &self,
        effect: Effect,
        request: Q,
        patience: Duration,
        ask: impl AsyncFn(Channel, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Answered<A> {
        let clock = &self.common.clock;
        let deadline = clock.now() + patience;
        let (mut logins, mut moves) = (0, 0);
        // Once per member, and again with every new token.
        loop {
            let live = self.live_within(deadline.since(clock.now())).await?;
            let token = self.common.tokens.current();
            let dressed = Live::dress(request.clone(), token.clone());
            let sent = clock.now();
            let sending = tokio::time::timeout(deadline.since(sent), ask(live.channel(), dressed));
            let Ok(answer) = sending.await else {
                self.move_on(&live, sent);
                let why = format!("no answer within {patience:?}");
                return Err(self.unanswered(effect, why).into());
            };
            let status = match answer {
                Ok(answer) => {
                    live.has_heard();
                    let answer = answer.into_inner();
                    self.common.recognise(answer.header())?;
                    return Ok(answer);
                }
                Err(status) => status,
            };
            if std::error::Error::source(&status).is_none() {
                live.has_heard();
            }
            match meaning(self.location(), &status) {
                Meaning::NoLease => return Err(Failure::NoLease),
                Meaning::Refused(error) => return Err(error.into()),
                Meaning::StaleToken if logins == LOGINS || self.common.setup.account.user.is_none() => {
                    return Err(stranger(self.location(), &self.common.setup.account).into());
                }
                Meaning::StaleToken => {
                    logins += 1;
                    self.log_in_within(deadline.since(clock.now()), &live, token.as_ref()).await?;
                }
                Meaning::Elsewhere => {
                    self.move_on(&live, sent);
                    moves += 1;
                    let is_only = self.common.setup.members.len() == 1 && !live.is_over();
                    if is_only || moves > self.common.setup.members.len() {
                        return Err(unreachable(self.location()).with_source(causes(&status)).into());
                    }
                }
                Meaning::Unknown => {
                    self.move_on(&live, sent);
                    return Err(self.unanswered(effect, causes(&status)).into());
                }
            }
        }
    }

    async fn live_within(&self, patience: Duration) -> Result<std::sync::Arc<Live>> {
        let late = |_| Err(unreachable(self.location()).with_source("connecting takes too long"));
        tokio::time::timeout(patience, self.live()).await.unwrap_or_else(late)
    }

    async fn log_in_within(&self, patience: Duration, live: &Live, stale: Option<&Token>) -> Result<()> {
        let late = |_| {
            live.give_up();
            Err(unreachable(self.location()).with_source("logging in takes too long"))
        };
        tokio::time::timeout(patience, live.log_in(stale)).await.unwrap_or_else(late)
    }

    fn unanswered(&self, effect: Effect, why: String) -> Error {
        match effect {
            Effect::None => unreachable(self.location()).with_source(why),
            Effect::Some => {
                let message = format!("{} did not say whether it has done it", self.location());
                Error::new(ErrorKind::OutcomeUnknown, message).with_source(why)
            }
        }
    }
}

/// An answer is as long as it is: whatever was done is done.
fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}
