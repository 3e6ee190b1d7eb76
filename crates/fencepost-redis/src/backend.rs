//! One client of Redis: sends flights, and passes on what the servers push.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::push::{self, Pushes};
use fencepost_core::{Error, ErrorKind, Finding, LockName, Mode, Options, Result, request_timeout};
use fencepost_net::Encryption;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use redis::{Cmd, Value};

use crate::config;
use crate::decode;
use crate::diagnose;
use crate::dialect::{self, tracking::Tracking};
use crate::encode;
use crate::listing;
use crate::node::{Answer, Call, LOOK_TIMEOUT};
use crate::route::Route;
use crate::script::Script;
use crate::setup::Setup;

/// How many operations travel in one call: few enough not to occupy the server for long.
const BATCH: usize = 128;
/// How many calls may be under way at once.
const FLIGHTS: usize = 8;
/// In how many further calls a flight goes on with what its call has left undone, before it is answered.
const FURTHER: usize = 1000;

pub(crate) struct RedisBackend {
    pub(crate) setup: Arc<Setup>,
    route: Route,
    /// If locks are in the form of another library.
    pub(crate) tracking: Option<Tracking>,
    pushes: Pushes,
}

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(url: &str, options: &Options) -> Result<RedisBackend> {
    let config = config::parse(url)?;
    let encryption = config.tls.as_ref().map(Encryption::new).transpose()?;
    let (push, pushes) = push::channel();
    let setup = Arc::new(Setup::new(config, encryption, options.wants_existing(), push));
    let route = Route::open(&setup).await?;
    Ok(RedisBackend { setup, route, tracking: None, pushes })
}

impl RedisBackend {
    /// The prefix of all keys that an operation is about.
    fn prefix(&self, op: &Op) -> Result<String> {
        let mut prefixes = op.names().map(|name| self.setup.layout.prefix(name.as_str()));
        let first = prefixes.next().unwrap_or_default();
        if prefixes.all(|prefix| prefix == first) { Ok(first) } else { Err(scattered(op)) }
    }

    /// Sends what has the same prefix together, and everything at once.
    async fn send_all(&self, ops: &[Op]) -> Vec<Result<Reply>> {
        let mut replies: Vec<Option<Result<Reply>>> = ops.iter().map(|_| None).collect();
        let mut parts: Vec<Part> = Vec::new();
        for (at, op) in ops.iter().enumerate() {
            let prefix = match self.prefix(op) {
                Ok(prefix) => prefix,
                Err(error) => {
                    replies[at] = Some(Err(error));
                    continue;
                }
            };
            let company = Company::of(op);
            let fits = |part: &&mut Part| {
                part.prefix == prefix && part.company == company && company != Company::Nobody
            };
            match parts.iter_mut().find(fits) {
                Some(part) => part.ops.push(at),
                None => parts.push(Part { prefix, ops: vec![at], company }),
            }
        }
        let answers = join_all(parts.iter().map(|part| self.send(part, ops))).await;
        for (part, answers) in parts.iter().zip(answers) {
            for (at, answer) in part.ops.iter().zip(answers) {
                replies[*at] = Some(answer);
            }
        }
        let unanswered = || Err(decode::nonsense(&self.setup.location));
        replies.into_iter().map(|reply| reply.unwrap_or_else(unanswered)).collect()
    }

    async fn send(&self, part: &Part, ops: &[Op]) -> Vec<Result<Reply>> {
        let ops: Vec<&Op> = part.ops.iter().map(|at| &ops[*at]).collect();
        let patience = ops.iter().filter_map(|op| op.ttl()).min().map_or(LOOK_TIMEOUT, request_timeout);
        let call = Call {
            script: Script::Execute,
            prefix: &part.prefix,
            keys: if self.setup.is_cluster() { keys(part, &ops) } else { Vec::new() },
            replicas: self.setup.config.replicas,
            patience,
        };
        let answer = self.route.invoke(&call, |command| self.arguments(command, &part.prefix, &ops)).await;
        let location = &self.setup.location;
        let nonsense = || ops.iter().map(|_| Err(decode::nonsense(location))).collect();
        let (mut answers, replicas) = match answer {
            Ok(Answer { value: Value::Array(answers), replicas }) => (answers, replicas),
            Ok(_) => return nonsense(),
            Err(error) => return ops.iter().map(|_| Err(error.clone())).collect(),
        };
        let unsettled = decode::unsettled(&mut answers, ops.len());
        if answers.len() != ops.len() {
            return nonsense();
        }
        self.settle(&part.prefix, unsettled, patience).await;
        let pairs = ops.iter().zip(&answers);
        if let Some(tracking) = &self.tracking {
            pairs.clone().for_each(|(op, answer)| tracking.note(op, answer));
        }
        let replies = pairs.map(|(op, answer)| decode::reply(location, op, answer));
        let replies: Vec<_> = replies.map(|reply| self.replicated(reply?, replicas)).collect();
        self.remember(&replies);
        replies
    }

    /// Goes on with these locks, call by call, until nothing is left undone: no call may occupy the server for long. If it
    /// fails, the next call for these locks goes on.
    async fn settle(&self, prefix: &str, mut names: Vec<String>, patience: Duration) {
        let clock = Clock::system();
        // The flight is answered afterwards, and its answers must not come too late.
        let give_up = clock.now() + patience;
        for _ in 0..FURTHER {
            if names.is_empty() || clock.now() > give_up {
                return;
            }
            let call = Call {
                script: Script::Execute,
                prefix,
                keys: if self.setup.is_cluster() { keys_of_locks(prefix, &names) } else { Vec::new() },
                replicas: 0,
                patience: LOOK_TIMEOUT,
            };
            let answer = self.route.invoke(&call, |command| {
                self.head(command, prefix);
                encode::settle(command, &names);
            });
            names = match answer.await {
                Ok(Answer { value: Value::Array(mut answers), .. }) => decode::unsettled(&mut answers, 1),
                _ => return,
            };
        }
    }

    /// A lease counts only if enough replicas have it.
    fn replicated(&self, reply: Reply, replicas: u32) -> Result<Reply> {
        let wanted = self.setup.config.replicas;
        match reply {
            Reply::Granted(_) | Reply::Renewed { .. } if replicas < wanted => {
                let message =
                    format!("only {replicas} of {wanted} replicas of {} confirmed", self.setup.location);
                Err(Error::new(ErrorKind::OutcomeUnknown, message).with_hint(
                    "are the replicas up? ?replicas= says how many must have a grant before it counts",
                ))
            }
            reply => Ok(reply),
        }
    }

    fn arguments(&self, command: &mut Cmd, prefix: &str, ops: &[&Op]) {
        if let Some(dialect) = &self.setup.layout.dialect {
            return dialect::encode::arguments(command, dialect, &self.setup, ops);
        }
        self.head(command, prefix);
        for op in ops {
            encode::words(command, op, &self.setup.client);
        }
    }

    /// The arguments before those of the operations.
    fn head(&self, command: &mut Cmd, prefix: &str) {
        let Setup { client, layout, config, largest, .. } = &*self.setup;
        let retention = if self.setup.is_cluster() { config.token_retention.as_millis() } else { 0 };
        let is_soft = u8::from(config.replicas > 0);
        command.arg(prefix).arg(client).arg(layout.channels());
        command.arg(largest.load(Ordering::Relaxed)).arg(retention.to_string()).arg(is_soft);
    }

    fn remember(&self, replies: &[Result<Reply>]) {
        let token = |reply: &Result<Reply>| match reply {
            Ok(Reply::Granted(award) | Reply::AlreadyGranted(award)) => Some(award.token),
            _ => None,
        };
        if let Some(largest) = replies.iter().filter_map(token).max() {
            self.setup.has_seen(largest);
        }
    }
}

/// What one call carries.
struct Part {
    prefix: String,
    /// Which of the flight's operations.
    ops: Vec<usize>,
    company: Company,
}

/// With whom an operation travels in a cluster. While a slot moves, a node answers only if it has all keys of a call or
/// none: whoever keeps something that is there should not travel with those who make something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    /// A renewal names no key but its lock's: that is always somewhere.
    Nobody,
    /// Those who keep their places.
    Waiters,
    Others,
}

impl Company {
    fn of(op: &Op) -> Self {
        match op {
            Op::Renew(_) => Self::Nobody,
            Op::Check(_) => Self::Waiters,
            _ => Self::Others,
        }
    }
}

/// The keys that a cluster must know to be in one place: all without which something would be taken for gone that has
/// only not moved yet.
fn keys(part: &Part, ops: &[&Op]) -> Vec<String> {
    let names = ops.iter().flat_map(|op| op.names());
    let Part { prefix, .. } = part;
    if part.company == Company::Nobody {
        return names.map(|name| format!("{prefix}l:{name}")).collect();
    }
    let mut keys = keys_of_locks(prefix, names);
    // The holders of what several may hold have an index.
    let shared = ops.iter().flat_map(|op| op.wants()).filter(|want| want.mode != Mode::Exclusive);
    keys.extend(shared.map(|want| format!("{prefix}d:{}", want.name)));
    keys.extend(ops.iter().filter_map(|op| match op {
        Op::ReadCell(name) | Op::WriteCell { name, .. } => Some(format!("{prefix}v:{name}")),
        Op::Check(attempt) | Op::Leave(attempt) => Some(format!("{prefix}t:{}", attempt.owner.to_hex())),
        _ => None,
    }));
    keys.sort();
    keys.dedup();
    keys
}

fn keys_of_locks(prefix: &str, names: impl IntoIterator<Item: std::fmt::Display>) -> Vec<String> {
    let of_locks = names.into_iter().flat_map(|name| ["l", "q"].map(|kind| format!("{prefix}{kind}:{name}")));
    of_locks.chain([format!("{prefix}c")]).collect()
}

fn scattered(op: &Op) -> Error {
    let names: Vec<String> = op.names().map(|name| format!("{name:?}")).collect();
    let message = format!("locks {} are not in one slot of the Redis cluster", names.join(", "));
    Error::new(ErrorKind::Unsupported, message)
        .with_hint("give names that are taken together a common hash tag: {order42}/pay, {order42}/ship")
}

#[async_trait]
impl Backend for RedisBackend {
    fn info(&self) -> BackendInfo {
        let mut info =
            BackendInfo::new("redis", self.setup.location.clone(), Scope::Fleet, self.route.identity().id());
        info.min_ttl = Duration::from_millis(100);
        info.flights = FLIGHTS;
        info.batch = BATCH;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        if self.setup.is_cluster() {
            return self.send_all(&ops).await;
        }
        let prefix = self.setup.layout.prefix("");
        self.send(&Part { prefix, ops: (0..ops.len()).collect(), company: Company::Others }, &ops).await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.pushes.stream()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let mut found = listing::inspect(&self.setup, &self.route, std::slice::from_ref(name)).await?;
        found.pop().ok_or_else(|| decode::nonsense(&self.setup.location))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        listing::list(&self.setup, &self.route, prefix, &page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        diagnose::diagnose(&self.setup, &self.route).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        diagnose::locate(&self.setup, &self.route, name).await
    }

    async fn close(&self) {
        self.route.close().await;
    }
}
