//! One client's way to the cluster: pinned to one member, and to the next when that one fails.

mod calls;
mod each;
mod member;
mod stream;
#[cfg(test)]
mod tests;
mod watchers;

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::{Account, Address, CONNECT_TIMEOUT, Coalesced, Encryption};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::error::unreachable;
use crate::proto::ResponseHeader;
use member::{Live, Tokens};
use stream::Command;

pub(crate) use watchers::{Change, WatchEvent, WatchId, Watched};

/// Where the cluster is, and who we are there.
pub(crate) struct Setup {
    pub(crate) members: Vec<Address>,
    pub(crate) account: Account,
    /// One that speaks `h2`.
    pub(crate) encryption: Option<Encryption>,
    /// The URL without secrets.
    pub(crate) location: String,
}

/// What a link and its stream share.
struct Common {
    setup: Setup,
    clock: Clock,
    /// The cluster that answered first: no other will do.
    cluster: OnceLock<u64>,
    tokens: Tokens,
    /// The term of the newest answer.
    term: AtomicU64,
}

impl Common {
    /// Makes sure that it is still the same cluster that answers. Some answers do not say (etcd 3.4's of alarms); but nobody
    /// is asked anything who has not said it once.
    fn recognise(&self, header: Option<&ResponseHeader>) -> Result<()> {
        // Some answers do not say it.
        if let Some(header) = header.filter(|header| header.raft_term > 0) {
            self.term.store(header.raft_term, Ordering::Relaxed);
        }
        if header.is_none_or(|header| *self.cluster.get_or_init(|| header.cluster_id) == header.cluster_id) {
            return Ok(());
        }
        let message = format!("another cluster answers at {}", self.setup.location);
        Err(Error::new(ErrorKind::Backend, message).with_hint(
            "tokens of different clusters have no order; connect again once you are sure it is right",
        ))
    }
}

/// One client's way to the cluster. It ends when it is dropped, and keeps no lease alive by itself.
pub(crate) struct Link {
    common: Arc<Common>,
    live: Coalesced<Arc<Live>>,
    /// The member to try next.
    next: AtomicUsize,
    commands: UnboundedSender<Command>,
    last_watch: AtomicI64,
}

impl Link {
    /// Connects to the first member that answers. What happens to the keys that are watched goes to `events`. The link lives
    /// on the runtime in which it is made.
    ///
    /// # Errors
    /// If no member answers, or lets us in.
    pub(crate) async fn open(setup: Setup, events: UnboundedSender<WatchEvent>) -> Result<Arc<Self>> {
        let (commands, orders) = unbounded_channel();
        let link = Arc::new(Self {
            common: Arc::new(Common {
                setup,
                clock: Clock::system(),
                cluster: OnceLock::new(),
                tokens: Tokens::default(),
                term: AtomicU64::new(0),
            }),
            live: Coalesced::default(),
            next: AtomicUsize::new(0),
            commands,
            last_watch: AtomicI64::new(0),
        });
        link.live().await?;
        tokio::spawn(stream::tend(Arc::downgrade(&link), link.common.clone(), orders, events));
        Ok(link)
    }

    /// The URL without secrets.
    pub(crate) fn location(&self) -> &str {
        &self.common.setup.location
    }

    /// Returns the term of the newest answer.
    pub(crate) fn term(&self) -> u64 {
        self.common.term.load(Ordering::Relaxed)
    }

    /// Watches a key, or all from it to before `range_end`. Returns at once; if the stream is lost, it is made again and goes on
    /// where it was.
    pub(crate) fn watch(&self, watched: Watched) -> WatchId {
        let id = WatchId(self.last_watch.fetch_add(1, Ordering::Relaxed) + 1);
        // If nobody listens any more, the runtime is going away.
        let _ = self.commands.send(Command::Watch(id, watched));
        id
    }

    /// Ends a watch. Returns at once; what is on its way still arrives.
    pub(crate) fn unwatch(&self, id: WatchId) {
        let _ = self.commands.send(Command::Unwatch(id));
    }

    /// The connection, which is made if there is none: to the first member that answers, those that failed last being tried
    /// last.
    async fn live(&self) -> Result<Arc<Live>> {
        self.live.get(|live| !live.is_over(), || self.connect()).await
    }

    async fn connect(&self) -> Result<Arc<Live>> {
        let members = &self.common.setup.members;
        let mut worst = None;
        for _ in members {
            // Beforehand: if this caller gives up, the next one does not wait for the same member.
            let at = self.next.fetch_add(1, Ordering::Relaxed) % members.len();
            match tokio::time::timeout(CONNECT_TIMEOUT, Live::connect(&self.common, &members[at])).await {
                Ok(Ok(live)) => return Ok(Arc::new(live)),
                Ok(Err(error)) => note(&mut worst, error),
                Err(_) => note(&mut worst, self.silent(&members[at])),
            }
        }
        Err(worst.unwrap_or_else(|| unreachable(self.location())))
    }

    fn silent(&self, member: &Address) -> Error {
        let why = format!("no answer from {member} within {CONNECT_TIMEOUT:?}");
        let late = unreachable(self.location()).with_source(why);
        // A server that does not expect TLS waits for more.
        if self.common.setup.encryption.is_some() { late.with_hint("is it a TLS port?") } else { late }
    }

    /// A member did not do what it should: another may do better, if there is one. If there is none, only a connection that is
    /// dead is worth another.
    fn move_on(&self, live: &Live, sent: Moment) {
        if self.common.setup.members.len() > 1 || live.is_silent_since(sent) {
            live.give_up();
        }
    }
}

/// Of several errors the one that says more than that nobody is there.
fn note(worst: &mut Option<Error>, error: Error) {
    if worst.as_ref().is_none_or(|known| known.kind() == ErrorKind::Unreachable) {
        *worst = Some(error);
    }
}
