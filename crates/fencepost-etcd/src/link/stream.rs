//! The one watch stream of a link: opened with the first watch, opened again when it breaks, and probed regularly.
//!
//! The server treats HTTP/2 pings that are more frequent than every five seconds as an attack. A progress request on the
//! stream is not a ping, and proves more.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::clock::Moment;
use fencepost_net::Backoff;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::connection::{Connection, Token};
use super::watchers::{Action, Change, WatchEvent, WatchId, WatchTarget, Watchers, probe};
use super::{Common, Link};
use crate::error::{FailureClass, classify};
use crate::proto::watch_client::WatchClient;
use crate::proto::{WatchRequest, WatchResponse};

/// How often a stream with watches is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// A stream without a response for this long after a request is dead.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A command of the link to the stream.
pub(super) enum Command {
    Watch(WatchId, WatchTarget),
    Unwatch(WatchId),
}

/// The auth token that the server has rejected, or `None` if there was none.
struct RejectedToken(Option<Token>);

/// The reason why a stream ended.
enum StreamEnd {
    /// The link was dropped.
    LinkDropped,
    Broken,
    /// The server has rejected the auth token with which it was opened.
    TokenRejected(RejectedToken),
}

/// Keeps the stream open until the link is dropped.
pub(super) async fn run(
    link: Weak<Link>,
    common: Arc<Common>,
    mut commands: UnboundedReceiver<Command>,
    events: UnboundedSender<WatchEvent>,
) {
    let mut watchers = Watchers::default();
    let mut backoff = Backoff::default();
    let mut rejected = None;
    loop {
        while watchers.is_empty() {
            let Some(command) = commands.recv().await else {
                return;
            };
            apply_offline(&mut watchers, command);
        }
        let connection = match link.upgrade() {
            Some(link) => link.connection().await,
            None => return,
        };
        if let Ok(connection) = connection {
            let mut stream = Stream::new(&common, &connection, &mut watchers);
            match stream.run(&mut watchers, &mut commands, &events, rejected.take()).await {
                StreamEnd::LinkDropped => return,
                StreamEnd::Broken => {}
                StreamEnd::TokenRejected(token) => rejected = Some(token),
            }
            if stream.has_response {
                backoff = Backoff::default();
            }
        }
        backoff.wait(&common.clock).await;
    }
}

/// Applies a command while there is no stream.
fn apply_offline(watchers: &mut Watchers, command: Command) {
    match command {
        Command::Watch(id, target) => watchers.add(id, target),
        Command::Unwatch(id) => drop(watchers.remove(id)),
    }
}

/// One stream, on one connection.
struct Stream<'a> {
    common: &'a Common,
    connection: &'a Connection,
    requests: UnboundedSender<WatchRequest>,
    request_receiver: Option<UnboundedReceiver<WatchRequest>>,
    /// The number of the last watch that was created when the stream was opened.
    last_initial_number: i64,
    /// When the oldest unanswered request was sent.
    requested_at: Option<Moment>,
    has_response: bool,
}

impl<'a> Stream<'a> {
    fn new(common: &'a Common, connection: &'a Connection, watchers: &mut Watchers) -> Self {
        let (requests, request_receiver) = unbounded_channel();
        let mut stream = Self {
            common,
            connection,
            requests,
            request_receiver: Some(request_receiver),
            last_initial_number: 0,
            requested_at: None,
            has_response: false,
        };
        for request in watchers.create_all() {
            stream.send(request);
        }
        stream.last_initial_number = watchers.last_number();
        stream
    }

    fn send(&mut self, request: WatchRequest) {
        self.requested_at.get_or_insert_with(|| self.common.clock.now());
        // Without a receiver, the stream is about to end.
        let _ = self.requests.send(request);
    }

    /// Runs the stream until it ends. `rejected` is the auth token of the previous stream, if that was rejected.
    async fn run(
        &mut self,
        watchers: &mut Watchers,
        commands: &mut UnboundedReceiver<Command>,
        events: &UnboundedSender<WatchEvent>,
        rejected: Option<RejectedToken>,
    ) -> StreamEnd {
        let is_new_token = rejected.is_some();
        if let Some(rejected) = rejected
            && !self.replace_token(&rejected).await
        {
            return StreamEnd::TokenRejected(rejected);
        }
        let token = self.common.tokens.current();
        let mut messages = match self.open(token.clone()).await {
            Ok(messages) => messages,
            Err(Some(status)) => return self.failed(&status, token),
            Err(None) => return self.close_connection(),
        };
        let Ok(mut timer) = self.common.clock.timer() else {
            return StreamEnd::Broken;
        };
        timer.arm(self.common.clock.now() + PROBE_INTERVAL);
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.apply(watchers, command),
                    None => return StreamEnd::LinkDropped,
                },
                message = messages.message() => match message {
                    Ok(Some(message)) => {
                        let actions = match self.on_response(watchers, message) {
                            Ok(actions) => actions,
                            Err(ended) => return ended,
                        };
                        for action in actions {
                            if let Some(ended) = self.perform(watchers, events, action, is_new_token, token.as_ref()) {
                                return ended;
                            }
                        }
                    }
                    Ok(None) => return StreamEnd::Broken,
                    Err(status) => return self.failed(&status, token),
                },
                () = timer.fired() => {
                    if self.is_dead() {
                        return self.close_connection();
                    }
                    if !watchers.is_empty() {
                        self.send(probe());
                    }
                    timer.arm(self.common.clock.now() + PROBE_INTERVAL);
                }
                () = self.connection.closed() => return StreamEnd::Broken,
            }
        }
    }

    /// Requests a new auth token. Returns whether there is one.
    async fn replace_token(&self, rejected: &RejectedToken) -> bool {
        let login = self.connection.log_in(rejected.0.as_ref());
        matches!(tokio::time::timeout(RESPONSE_TIMEOUT, login).await, Ok(Ok(())))
    }

    /// Opens the stream: the response starts with the first message of the server.
    async fn open(&mut self, token: Option<Token>) -> Result<Streaming<WatchResponse>, Option<Status>> {
        let requests = self.request_receiver.take().map(UnboundedReceiverStream::new).ok_or(None)?;
        let request = Connection::with_metadata(requests, token);
        let mut client = WatchClient::new(self.connection.channel()).max_decoding_message_size(usize::MAX);
        let opening = tokio::time::timeout(RESPONSE_TIMEOUT, client.watch(request));
        opening.await.map_err(|_| None)?.map(tonic::Response::into_inner).map_err(Some)
    }

    fn apply(&mut self, watchers: &mut Watchers, command: Command) {
        let request = match command {
            Command::Watch(id, target) => {
                watchers.add(id, target);
                watchers.create(id)
            }
            Command::Unwatch(id) => watchers.remove(id),
        };
        if let Some(request) = request {
            self.send(request);
        }
    }

    fn on_response(
        &mut self,
        watchers: &mut Watchers,
        message: WatchResponse,
    ) -> Result<Vec<Action>, StreamEnd> {
        self.requested_at = None;
        self.has_response = true;
        self.connection.record_received();
        if self.common.check_cluster(message.header.as_ref()).is_err() {
            return Err(self.close_connection());
        }
        Ok(watchers.on_response(message))
    }

    fn perform(
        &mut self,
        watchers: &mut Watchers,
        events: &UnboundedSender<WatchEvent>,
        action: Action,
        is_new_token: bool,
        token: Option<&Token>,
    ) -> Option<StreamEnd> {
        match action {
            // Without a receiver, the client is being dropped.
            Action::Emit(event) => drop(events.send(event)),
            Action::Send(request) => self.send(request),
            Action::Reopen => return Some(StreamEnd::Broken),
            // Older servers send the same response for a missing permission and for an expired auth token.
            Action::Refused { number, .. }
                if token.is_some() && !(is_new_token && number <= self.last_initial_number) =>
            {
                return Some(StreamEnd::TokenRejected(RejectedToken(token.cloned())));
            }
            Action::Refused { id, .. } => {
                watchers.remove(id);
                let _ = events.send(WatchEvent { id, change: Change::Refused });
            }
        }
        None
    }

    fn is_dead(&self) -> bool {
        self.requested_at
            .is_some_and(|requested_at| self.common.clock.now().since(requested_at) >= RESPONSE_TIMEOUT)
    }

    fn failed(&self, status: &Status, token: Option<Token>) -> StreamEnd {
        match classify(&self.common.config.location, status) {
            FailureClass::StaleToken => StreamEnd::TokenRejected(RejectedToken(token)),
            // The only member may have a leader again soon.
            _ if self.common.config.members.len() > 1 => self.close_connection(),
            _ => StreamEnd::Broken,
        }
    }

    fn close_connection(&self) -> StreamEnd {
        self.connection.close();
        StreamEnd::Broken
    }
}
