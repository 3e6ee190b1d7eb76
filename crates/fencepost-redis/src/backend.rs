//! The [`Backend`] of one Redis client: sends flights as script calls, and forwards the servers' pushes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::push::{self, Pushes};
use fencepost_core::{Error, ErrorKind, Finding, LockName, Options, Result, request_timeout};
use fencepost_net::Encryption;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use redis::{Cmd, Value};

use crate::batch::{Batch, keys_of_locks};
use crate::config;
use crate::decode;
use crate::diagnose;
use crate::dialect::{self, tracking::Tracking};
use crate::encode;
use crate::listing;
use crate::node::{READ_TIMEOUT, ScriptCall, ScriptReply};
use crate::route::Route;
use crate::script::Script;
use crate::state::ClientState;

/// How many operations one script call executes: few enough that the server is not blocked for long.
const MAX_BATCH: usize = 128;
/// How many flights may be in flight at once.
const MAX_FLIGHTS: usize = 8;
/// How many further calls a flight makes to finish the hand-overs that its first call has left unfinished.
const MAX_FINISHING_CALLS: usize = 1000;

/// The backend of one client.
pub(crate) struct RedisBackend {
    pub(crate) state: Arc<ClientState>,
    route: Route,
    /// Watches keys that a foreign client holds; only with a dialect.
    pub(crate) tracking: Option<Tracking>,
    pushes: Pushes,
}

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(url: &str, options: &Options) -> Result<RedisBackend> {
    let config = config::parse(url)?;
    let encryption = config.tls.as_ref().map(Encryption::new).transpose()?;
    let (pusher, wakeups) = push::channel();
    let state = Arc::new(ClientState::new(config, encryption, options.is_only_existing(), pusher));
    let route = Route::open(&state).await?;
    Ok(RedisBackend { state, route, tracking: None, pushes: wakeups })
}

impl RedisBackend {
    /// Executes a flight in a cluster: one call per slot and kind of operation, all calls concurrently.
    async fn execute_by_slot(&self, ops: &[Op]) -> Vec<Result<Reply>> {
        let mut replies: Vec<Option<Result<Reply>>> = ops.iter().map(|_| None).collect();
        let (batches, errors) = Batch::group(&self.state.layout, ops);
        for (index, error) in errors {
            replies[index] = Some(Err(error));
        }
        let batch_replies = join_all(batches.iter().map(|batch| self.execute_batch(batch, ops))).await;
        for (batch, batch_replies) in batches.iter().zip(batch_replies) {
            for (index, reply) in batch.indices.iter().zip(batch_replies) {
                replies[*index] = Some(reply);
            }
        }
        let missing = || Err(decode::unexpected_reply(&self.state.location));
        replies.into_iter().map(|reply| reply.unwrap_or_else(missing)).collect()
    }

    /// Executes one batch in one call of `execute.lua`. Returns a reply for each of its operations.
    async fn execute_batch(&self, batch: &Batch, ops: &[Op]) -> Vec<Result<Reply>> {
        let ops: Vec<&Op> = batch.indices.iter().map(|index| &ops[*index]).collect();
        let timeout = ops.iter().filter_map(|op| op.ttl()).min().map_or(READ_TIMEOUT, request_timeout);
        let call = ScriptCall {
            script: Script::Execute,
            prefix: &batch.prefix,
            keys: if self.state.is_cluster() { batch.declared_keys(&ops) } else { Vec::new() },
            min_replicas: self.state.config.replicas,
            timeout,
        };
        let reply =
            self.route.call_script(&call, |command| self.add_arguments(command, &batch.prefix, &ops)).await;
        let location = &self.state.location;
        let unexpected = || ops.iter().map(|_| Err(decode::unexpected_reply(location))).collect();
        let (mut values, confirmed) = match reply {
            Ok(ScriptReply { value: Value::Array(values), confirmed_replicas }) => {
                (values, confirmed_replicas)
            }
            Ok(_) => return unexpected(),
            Err(error) => return ops.iter().map(|_| Err(error.clone())).collect(),
        };
        let unfinished = decode::unfinished_locks(&mut values, ops.len());
        if values.len() != ops.len() {
            return unexpected();
        }
        self.finish_hand_overs(&batch.prefix, unfinished, timeout).await;
        let pairs = ops.iter().zip(&values);
        if let Some(tracking) = &self.tracking {
            pairs.clone().for_each(|(op, value)| tracking.on_reply(op, value));
        }
        let replies = pairs.map(|(op, value)| decode::op_reply(location, op, value));
        let replies: Vec<_> = replies.map(|reply| self.require_replicas(reply?, confirmed)).collect();
        self.record_largest_token(&replies);
        replies
    }

    /// Continues the hand-overs of these locks, call by call, until none is unfinished: no single call may block the server
    /// for long. If a call fails, the next call of any client for these locks continues.
    async fn finish_hand_overs(&self, prefix: &str, mut names: Vec<String>, timeout: Duration) {
        let clock = Clock::system();
        // The flight's replies are returned after this, and must not be late.
        let deadline = clock.now() + timeout;
        for _ in 0..MAX_FINISHING_CALLS {
            if names.is_empty() || clock.now() > deadline {
                return;
            }
            let call = ScriptCall {
                script: Script::Execute,
                prefix,
                keys: if self.state.is_cluster() { keys_of_locks(prefix, &names) } else { Vec::new() },
                min_replicas: 0,
                timeout: READ_TIMEOUT,
            };
            let reply = self.route.call_script(&call, |command| {
                self.add_header(command, prefix);
                encode::add_finish_hand_overs(command, &names);
            });
            names = match reply.await {
                Ok(ScriptReply { value: Value::Array(mut values), .. }) => {
                    decode::unfinished_locks(&mut values, 1)
                }
                _ => return,
            };
        }
    }

    /// Turns a grant or renewal that too few replicas have confirmed into an error.
    fn require_replicas(&self, reply: Reply, confirmed: u32) -> Result<Reply> {
        let wanted = self.state.config.replicas;
        match reply {
            Reply::Granted(_) | Reply::Renewed { .. } if confirmed < wanted => {
                let message =
                    format!("only {confirmed} of {wanted} replicas of {} confirmed", self.state.location);
                Err(Error::new(ErrorKind::OutcomeUnknown, message).with_hint(
                    "are the replicas up? ?replicas= is how many must confirm a grant before it counts",
                ))
            }
            reply => Ok(reply),
        }
    }

    fn add_arguments(&self, command: &mut Cmd, prefix: &str, ops: &[&Op]) {
        if let Some(dialect) = &self.state.layout.dialect {
            return dialect::encode::add_arguments(command, dialect, &self.state, ops);
        }
        self.add_header(command, prefix);
        for op in ops {
            encode::add_op(command, op, &self.state.client_id);
        }
    }

    /// Adds the arguments that precede those of the operations.
    fn add_header(&self, command: &mut Cmd, prefix: &str) {
        let ClientState { client_id, layout, config, largest_token, .. } = &*self.state;
        let retention = if self.state.is_cluster() { config.token_retention.as_millis() } else { 0 };
        let offer_only = u8::from(config.replicas > 0);
        command.arg(prefix).arg(client_id).arg(layout.channels());
        command.arg(largest_token.load(Ordering::Relaxed)).arg(retention.to_string()).arg(offer_only);
    }

    fn record_largest_token(&self, replies: &[Result<Reply>]) {
        let token = |reply: &Result<Reply>| match reply {
            Ok(Reply::Granted(award) | Reply::AlreadyGranted(award)) => Some(award.token),
            _ => None,
        };
        if let Some(largest) = replies.iter().filter_map(token).max() {
            self.state.record_token(largest);
        }
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn info(&self) -> BackendInfo {
        let mut info =
            BackendInfo::new("redis", self.state.location.clone(), Scope::Fleet, self.route.identity().id());
        info.min_ttl = Duration::from_millis(100);
        info.max_flights = MAX_FLIGHTS;
        info.max_batch = MAX_BATCH;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        if self.state.is_cluster() {
            return self.execute_by_slot(&ops).await;
        }
        self.execute_batch(&Batch::all(&self.state.layout, ops.len()), &ops).await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.pushes.stream()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let mut found = listing::inspect(&self.state, &self.route, std::slice::from_ref(name)).await?;
        found.pop().ok_or_else(|| decode::unexpected_reply(&self.state.location))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        listing::list(&self.state, &self.route, prefix, &page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        diagnose::diagnose(&self.state, &self.route).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        diagnose::locate(&self.state, &self.route, name).await
    }

    async fn close(&self) {
        self.route.close().await;
    }
}
