//! One connection to one member, and the auth token.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use fencepost_core::clock::Moment;
use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::{Address, Stream};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};

use super::Common;
use crate::error::{ConnectionClosed, FailureClass, classify, not_authenticated, source_chain, unreachable};
use crate::proto::auth_client::AuthClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::{AuthenticateRequest, StatusRequest, StatusResponse};

/// The HTTP/2 flow-control window.
const WINDOW: u32 = 4 << 20;

/// The auth token that the server issues for user and password.
pub(super) type Token = MetadataValue<Ascii>;

/// The current auth token, which is valid at every member.
#[derive(Default)]
pub(super) struct Tokens {
    current: Mutex<Option<Token>>,
    /// Locked while a new token is requested.
    login: tokio::sync::Mutex<()>,
}

impl Tokens {
    pub(super) fn current(&self) -> Option<Token> {
        self.current.lock().ok().and_then(|token| token.clone())
    }

    fn set(&self, token: Token) {
        if let Ok(mut current) = self.current.lock() {
            *current = Some(token);
        }
    }
}

/// An open connection to one member.
pub(super) struct Connection {
    channel: Channel,
    common: Arc<Common>,
    close_state: Arc<CloseState>,
    /// When anything was last received from the server.
    received_at: AtomicU64,
}

impl Connection {
    /// Connects, and checks that the member has a leader.
    pub(super) async fn connect(common: &Arc<Common>, member: &Address) -> Result<Self> {
        let config = &common.config;
        let failed = || unreachable(&config.location).context(format_args!("could not connect to {member}"));
        let stream = Stream::open(member, config.encryption.as_ref(), failed).await?;
        let uri: Uri = format!("http://{member}").parse().map_err(|error| {
            Error::new(ErrorKind::BadConfig, format!("{member} is not a valid server address"))
                .with_source(error)
        })?;
        let close_state = Arc::new(CloseState::default());
        let mut stream = Some(TokioIo::new(TrackedStream { stream, close_state: close_state.clone() }));
        let take_stream = move |_: Uri| std::future::ready(stream.take().ok_or(ConnectionClosed));
        let channel = Endpoint::from(uri)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .connect_with_connector(tower::service_fn(take_stream))
            .await
            .map_err(|error| failed().with_source(error))?;
        let connection =
            Self { channel, common: common.clone(), close_state, received_at: AtomicU64::new(0) };
        connection.check_member().await?;
        if common.tokens.current().is_none() {
            connection.log_in(None).await?;
        }
        Ok(connection)
    }

    /// Fails if the member does not respond, has no leader, or is a learner.
    async fn check_member(&self) -> Result<()> {
        if self.status().await?.is_learner {
            return Err(unreachable(&self.common.config.location).with_source("the member is a learner"));
        }
        Ok(())
    }

    /// Returns the status of this member.
    pub(super) async fn status(&self) -> Result<StatusResponse> {
        let request = Self::with_metadata(StatusRequest {}, None);
        let status = MaintenanceClient::new(self.channel()).status(request).await;
        let status = status.map_err(|status| self.connect_error(&status))?.into_inner();
        self.common.check_cluster(status.header.as_ref())?;
        Ok(status)
    }

    /// Requests an auth token, unless there is a newer one than `stale`.
    pub(super) async fn log_in(&self, stale: Option<&Token>) -> Result<()> {
        let account = &self.common.config.account;
        let (Some(name), Some(password)) = (&account.user, &account.password) else {
            return Ok(());
        };
        let _login = self.common.tokens.login.lock().await;
        if self.common.tokens.current().as_ref() != stale {
            return Ok(());
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.0.clone() };
        match AuthClient::new(self.channel()).authenticate(Request::new(request)).await {
            Ok(response) => {
                let response = response.into_inner();
                self.common.check_cluster(response.header.as_ref())?;
                let token = Token::try_from(response.token).map_err(|_| {
                    Error::new(ErrorKind::Backend, "the auth token of the server is malformed")
                })?;
                self.common.tokens.set(token);
                Ok(())
            }
            // The URL may name an account although authentication is off.
            Err(status)
                if status.code() == Code::FailedPrecondition
                    && status.message().ends_with("is not enabled") =>
            {
                Ok(())
            }
            Err(status) => Err(self.connect_error(&status)),
        }
    }

    /// Returns the error of a call that failed while connecting.
    fn connect_error(&self, status: &Status) -> Error {
        let location = &self.common.config.location;
        let unreachable = || unreachable(location).with_source(source_chain(status));
        let is_of_driver = std::error::Error::source(status).is_some();
        let is_encrypted = self.common.config.encryption.is_some();
        match classify(location, status) {
            FailureClass::Refused(error) => error,
            FailureClass::StaleToken => not_authenticated(location, &self.common.config.account),
            _ if !is_of_driver => unreachable(),
            _ if !is_encrypted => {
                unreachable().with_hint("is it an etcd server, and does it require TLS? then use etcds://")
            }
            _ if self.close_state.has_received.load(Ordering::Relaxed) => unreachable(),
            // With TLS 1.3 a server rejects a client's certificate only after the client has sent data, and it may close
            // the connection so fast that its alert is lost.
            _ => fencepost_net::handshake_failed(source_chain(status)),
        }
    }

    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Adds the metadata that every request needs: the auth token, and that a member without a leader must reject it.
    pub(super) fn with_metadata<T>(message: T, token: Option<Token>) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = token {
            request.metadata_mut().insert("token", token);
        }
        request
    }

    pub(super) fn record_received(&self) {
        self.received_at.store(self.common.clock.now().as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn is_silent_since(&self, moment: Moment) -> bool {
        self.received_at.load(Ordering::Relaxed) <= moment.as_nanos()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.close_state.is_closed.load(Ordering::Acquire)
    }

    /// Closes the connection for new requests.
    pub(super) fn close(&self) {
        self.close_state.close();
    }

    /// Waits until the connection is closed.
    pub(super) async fn closed(&self) {
        let closed = self.close_state.closed.notified();
        if !self.is_closed() {
            closed.await;
        }
    }
}

/// Whether a connection is closed, and whether anything was received on it.
#[derive(Default)]
struct CloseState {
    is_closed: AtomicBool,
    closed: Notify,
    /// Whether the server has sent anything.
    has_received: AtomicBool,
}

impl CloseState {
    fn close(&self) {
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            self.closed.notify_waiters();
        }
    }
}

/// A stream that records whether anything was received, and when the driver drops it: the driver reports neither.
struct TrackedStream {
    stream: Stream,
    close_state: Arc<CloseState>,
}

impl Drop for TrackedStream {
    fn drop(&mut self) {
        self.close_state.close();
    }
}

impl AsyncRead for TrackedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, into);
        if into.filled().len() > before {
            this.close_state.has_received.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
