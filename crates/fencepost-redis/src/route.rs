//! Where a call goes: to the one server, or to that node of a cluster which has the slot.

mod cluster;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Error, Result};
use fencepost_net::Address;
use redis::{Cmd, Value};

use crate::link::{Failure, Link, Live};
use crate::setup::Setup;
use cluster::Cluster;

/// The servers of a client.
pub(crate) enum Route {
    One { setup: Arc<Setup>, link: Arc<Link> },
    Cluster(Arc<Cluster>),
}

/// Which script to call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Script {
    Execute,
    Inspect,
}

/// One call of a script.
pub(crate) struct Call<'a> {
    pub(crate) script: Script,
    /// What its keys begin with.
    pub(crate) prefix: &'a str,
    /// The keys that it names.
    pub(crate) keys: Vec<String>,
    /// How many replicas to wait for.
    pub(crate) replicas: u32,
    /// How long to wait for the answer.
    pub(crate) patience: Duration,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// How many replicas have it, if that was asked.
    pub(crate) replicas: u32,
}

impl Route {
    pub(crate) fn one(setup: Arc<Setup>, link: Arc<Link>) -> Self {
        Self::One { setup, link }
    }

    pub(crate) fn cluster(setup: Arc<Setup>, seeds: &[Address]) -> Self {
        Self::Cluster(Cluster::new(setup, seeds))
    }

    /// Connects for the first time.
    pub(crate) async fn open(&self) -> Result<()> {
        match self {
            Self::One { link, .. } => link.live().await.map(drop),
            Self::Cluster(cluster) => cluster.open().await,
        }
    }

    /// Calls a script; `arguments` adds its arguments.
    pub(crate) async fn invoke(&self, call: &Call<'_>, arguments: impl Fn(&mut Cmd)) -> Result<Answer> {
        match self {
            Self::One { setup, link } => {
                let answer = invoke(link, call, &arguments, Asking::No).await;
                answer.map_err(|failure| failure.into_error(&setup.location))
            }
            Self::Cluster(cluster) => cluster.invoke(call, &arguments).await,
        }
    }

    /// A link to each server that has keys.
    pub(crate) async fn links(&self) -> Result<Vec<Arc<Link>>> {
        match self {
            Self::One { link, .. } => Ok(vec![link.clone()]),
            Self::Cluster(cluster) => cluster.links().await,
        }
    }

    /// A link to the server that has this key.
    pub(crate) async fn link_of(&self, key: &str) -> Result<Arc<Link>> {
        match self {
            Self::One { link, .. } => Ok(link.clone()),
            Self::Cluster(cluster) => cluster.link_of_key(key).await,
        }
    }

    /// Lets go of all connections.
    pub(crate) async fn close(&self) {
        for link in self.links().await.unwrap_or_default() {
            link.close().await;
        }
    }
}

/// Whether to go where a slot is moving to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    No,
    Yes,
}

/// Calls a script on this server. One that the server has forgotten is told to it again.
async fn invoke(
    link: &Link,
    call: &Call<'_>,
    arguments: &impl Fn(&mut Cmd),
    asking: Asking,
) -> Result<Answer, Failure> {
    let live = link.live().await.map_err(Failure::Failed)?;
    match send(link, &live, call, arguments, asking).await {
        Err(failure) if failure.code() == Some("NOSCRIPT") => {
            link.tell_scripts(&live, call.patience).await?;
            send(link, &live, call, arguments, asking).await
        }
        answer => answer,
    }
}

async fn send(
    link: &Link,
    live: &Live,
    call: &Call<'_>,
    arguments: &impl Fn(&mut Cmd),
    asking: Asking,
) -> Result<Answer, Failure> {
    let script = match call.script {
        Script::Execute => &live.scripts.execute,
        Script::Inspect => &live.scripts.inspect,
    };
    let mut command = redis::cmd("EVALSHA");
    command.arg(script).arg(call.keys.len()).arg(&call.keys);
    arguments(&mut command);
    if call.replicas == 0 && asking == Asking::No {
        let value = link.call(live, &command, call.patience).await?;
        return Ok(Answer { value, replicas: 0 });
    }
    let mut commands = redis::pipe();
    if asking == Asking::Yes {
        commands.cmd("ASKING").ignore();
    }
    commands.add_command(command);
    let needed = commands.len();
    if call.replicas > 0 {
        // Half of the time, so that an answer comes back also if the replicas do not answer.
        let wait = u64::try_from((call.patience / 2).as_millis()).unwrap_or(u64::MAX);
        commands.cmd("WAIT").arg(call.replicas).arg(wait);
    }
    let values = link.call_all(live, &commands, needed, call.patience).await?;
    let mut values = values.into_iter().skip(usize::from(asking == Asking::Yes));
    let value = values.next().unwrap_or(Value::Nil);
    let replicas = match values.next() {
        Some(Value::Int(replicas)) => u32::try_from(replicas).unwrap_or_default(),
        _ => 0,
    };
    Ok(Answer { value, replicas })
}

/// An error of which nothing is known but that there was no time left.
fn out_of_time(setup: &Setup, last: Option<Failure>) -> Error {
    match last {
        Some(failure) => failure.into_error(&setup.location),
        None => crate::error::unreachable(&setup.location),
    }
}
