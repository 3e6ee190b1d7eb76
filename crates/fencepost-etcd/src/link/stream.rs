//! The one stream of watches: made when somebody watches, made again when it breaks, and asked whether it still lives.
//!
//! The server counts pings of HTTP/2 as an attack if they come more often than every five seconds. A question on the stream is
//! none, and it proves more.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::clock::Moment;
use fencepost_net::Backoff;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::member::{Live, Token};
use super::watchers::{Change, Todo, WatchEvent, WatchId, Watched, Watchers, probe};
use super::{Common, Link};
use crate::error::{Meaning, meaning};
use crate::proto::watch_client::WatchClient;
use crate::proto::{WatchRequest, WatchResponse};

/// How often a stream that somebody listens to is asked whether it lives.
const PROBE: Duration = Duration::from_secs(1);
/// A stream that says nothing for so long after it was asked is dead.
const SILENCE: Duration = Duration::from_secs(2);

/// What the link wants of the stream.
pub(super) enum Command {
    Watch(WatchId, Watched),
    Unwatch(WatchId),
}

/// A token that is not accepted, or that there was none.
struct Stale(Option<Token>);

/// Why a stream ended.
enum Ended {
    /// So has the link.
    WithLink,
    Broken,
    /// The server does not accept the token with which it was opened.
    StaleToken(Stale),
}

/// Keeps the stream going for as long as there is the link.
pub(super) async fn tend(
    link: Weak<Link>,
    common: Arc<Common>,
    mut commands: UnboundedReceiver<Command>,
    events: UnboundedSender<WatchEvent>,
) {
    let mut watchers = Watchers::default();
    let mut backoff = Backoff::default();
    let mut stale = None;
    loop {
        while watchers.is_empty() {
            let Some(command) = commands.recv().await else {
                return;
            };
            note(&mut watchers, command);
        }
        let live = match link.upgrade() {
            Some(link) => link.live().await,
            None => return,
        };
        if let Ok(live) = live {
            let mut stream = Stream::new(&common, &live, &mut watchers);
            match stream.run(&mut watchers, &mut commands, &events, stale.take()).await {
                Ended::WithLink => return,
                Ended::Broken => {}
                Ended::StaleToken(token) => stale = Some(token),
            }
            if stream.has_spoken {
                backoff = Backoff::default();
            }
        }
        backoff.wait(&common.clock).await;
    }
}

/// While there is no stream.
fn note(watchers: &mut Watchers, command: Command) {
    match command {
        Command::Watch(id, watched) => watchers.add(id, watched),
        Command::Unwatch(id) => drop(watchers.remove(id)),
    }
}

/// One stream, on one connection.
struct Stream<'a> {
    common: &'a Common,
    live: &'a Live,
    requests: UnboundedSender<WatchRequest>,
    unsent: Option<UnboundedReceiver<WatchRequest>>,
    /// The last of those that were made as soon as it was there.
    first_numbers: i64,
    /// Since when an answer is overdue.
    asked: Option<Moment>,
    has_spoken: bool,
}

impl<'a> Stream<'a> {
    fn new(common: &'a Common, live: &'a Live, watchers: &mut Watchers) -> Self {
        let (requests, unsent) = unbounded_channel();
        let mut stream = Self {
            common,
            live,
            requests,
            unsent: Some(unsent),
            first_numbers: 0,
            asked: None,
            has_spoken: false,
        };
        for request in watchers.create_all() {
            stream.send(request);
        }
        stream.first_numbers = watchers.last_number();
        stream
    }

    fn send(&mut self, request: WatchRequest) {
        self.asked.get_or_insert_with(|| self.common.clock.now());
        // If nobody takes it, the stream is about to end.
        let _ = self.requests.send(request);
    }

    /// Runs until it ends. `stale` is the token that the last one failed with, if that was it.
    async fn run(
        &mut self,
        watchers: &mut Watchers,
        commands: &mut UnboundedReceiver<Command>,
        events: &UnboundedSender<WatchEvent>,
        stale: Option<Stale>,
    ) -> Ended {
        let is_fresh = stale.is_some();
        if let Some(stale) = stale
            && !matches!(tokio::time::timeout(SILENCE, self.live.log_in(stale.0.as_ref())).await, Ok(Ok(())))
        {
            return Ended::StaleToken(stale);
        }
        let token = self.common.tokens.current();
        let mut messages = match self.opened(token.clone()).await {
            Ok(messages) => messages,
            Err(Some(status)) => return self.failed(&status, token),
            Err(None) => return self.given_up(),
        };
        let Ok(mut timer) = self.common.clock.timer() else {
            return Ended::Broken;
        };
        timer.arm(self.common.clock.now() + PROBE);
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.obey(watchers, command),
                    None => return Ended::WithLink,
                },
                message = messages.message() => match message {
                    Ok(Some(message)) => {
                        let todo = match self.heard(watchers, message) {
                            Ok(todo) => todo,
                            Err(ended) => return ended,
                        };
                        for todo in todo {
                            if let Some(ended) = self.act(watchers, events, todo, is_fresh, token.as_ref()) {
                                return ended;
                            }
                        }
                    }
                    Ok(None) => return Ended::Broken,
                    Err(status) => return self.failed(&status, token),
                },
                () = timer.fired() => {
                    if self.is_dead() {
                        return self.given_up();
                    }
                    if !watchers.is_empty() {
                        self.send(probe());
                    }
                    timer.arm(self.common.clock.now() + PROBE);
                }
                () = self.live.over() => return Ended::Broken,
            }
        }
    }

    /// The server's side of the stream begins with its first message.
    async fn opened(&mut self, token: Option<Token>) -> Result<Streaming<WatchResponse>, Option<Status>> {
        let requests = self.unsent.take().map(UnboundedReceiverStream::new).ok_or(None)?;
        let request = Live::dress(requests, token);
        let mut client = WatchClient::new(self.live.channel()).max_decoding_message_size(usize::MAX);
        let opening = tokio::time::timeout(SILENCE, client.watch(request));
        opening.await.map_err(|_| None)?.map(tonic::Response::into_inner).map_err(Some)
    }

    fn obey(&mut self, watchers: &mut Watchers, command: Command) {
        let request = match command {
            Command::Watch(id, watched) => {
                watchers.add(id, watched);
                watchers.create(id)
            }
            Command::Unwatch(id) => watchers.remove(id),
        };
        if let Some(request) = request {
            self.send(request);
        }
    }

    fn heard(&mut self, watchers: &mut Watchers, message: WatchResponse) -> Result<Vec<Todo>, Ended> {
        self.asked = None;
        self.has_spoken = true;
        self.live.has_heard();
        if self.common.recognise(message.header.as_ref()).is_err() {
            return Err(self.given_up());
        }
        Ok(watchers.take(message))
    }

    fn act(
        &mut self,
        watchers: &mut Watchers,
        events: &UnboundedSender<WatchEvent>,
        todo: Todo,
        is_fresh: bool,
        token: Option<&Token>,
    ) -> Option<Ended> {
        match todo {
            // If nobody listens any more, the client is going away.
            Todo::Tell(event) => drop(events.send(event)),
            Todo::Send(request) => self.send(request),
            Todo::Reopen => return Some(Ended::Broken),
            // Older servers say the same of a right that is missing and of a token that has expired.
            Todo::Refused { number, .. }
                if token.is_some() && !(is_fresh && number <= self.first_numbers) =>
            {
                return Some(Ended::StaleToken(Stale(token.cloned())));
            }
            Todo::Refused { id, .. } => {
                watchers.remove(id);
                let _ = events.send(WatchEvent { id, what: Change::Refused });
            }
        }
        None
    }

    fn is_dead(&self) -> bool {
        self.asked.is_some_and(|asked| self.common.clock.now().since(asked) >= SILENCE)
    }

    fn failed(&self, status: &Status, token: Option<Token>) -> Ended {
        match meaning(&self.common.setup.location, status) {
            Meaning::StaleToken => Ended::StaleToken(Stale(token)),
            // The only member there is may have a leader again in a moment.
            _ if self.common.setup.members.len() > 1 => self.given_up(),
            _ => Ended::Broken,
        }
    }

    fn given_up(&self) -> Ended {
        self.live.give_up();
        Ended::Broken
    }
}
