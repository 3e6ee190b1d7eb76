//! One connection to one member, and the token that opens it.

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
use crate::error::{Meaning, Over, causes, meaning, stranger, unreachable};
use crate::proto::auth_client::AuthClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::{AuthenticateRequest, StatusRequest, StatusResponse};

/// How much may be under way to us before the server has to wait.
const WINDOW: u32 = 4 << 20;

/// What the server gave us for the password.
pub(super) type Token = MetadataValue<Ascii>;

/// The token, which is good at every member, and who gets the next.
#[derive(Default)]
pub(super) struct Tokens {
    current: Mutex<Option<Token>>,
    turn: tokio::sync::Mutex<()>,
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

/// A connection that stands.
pub(super) struct Live {
    channel: Channel,
    common: Arc<Common>,
    end: Arc<End>,
    /// When anything was last heard from the server.
    heard: AtomicU64,
}

impl Live {
    /// Connects, and makes sure that a member is there which is in touch with a leader.
    pub(super) async fn connect(common: &Arc<Common>, member: &Address) -> Result<Self> {
        let setup = &common.setup;
        let away = || unreachable(&setup.location).context(format_args!("could not connect to {member}"));
        let stream = Stream::open(member, setup.encryption.as_ref(), away).await?;
        let uri: Uri = format!("http://{member}").parse().map_err(|error| {
            Error::new(ErrorKind::BadConfig, format!("{member} cannot be a server")).with_source(error)
        })?;
        let end = Arc::new(End::default());
        let mut stream = Some(TokioIo::new(Tied { stream, end: end.clone() }));
        let once = move |_: Uri| std::future::ready(stream.take().ok_or(Over));
        let channel = Endpoint::from(uri)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .connect_with_connector(tower::service_fn(once))
            .await
            .map_err(|error| away().with_source(error))?;
        let live = Self { channel, common: common.clone(), end, heard: AtomicU64::new(0) };
        live.greet().await?;
        if common.tokens.current().is_none() {
            live.log_in(None).await?;
        }
        Ok(live)
    }

    /// A member that stands still, has no leader or only learns says so here, before anything depends on it.
    async fn greet(&self) -> Result<()> {
        if self.status().await?.is_learner {
            return Err(unreachable(&self.common.setup.location).with_source("the member is a learner"));
        }
        Ok(())
    }

    /// How this member is.
    pub(super) async fn status(&self) -> Result<StatusResponse> {
        let request = Self::dress(StatusRequest {}, None);
        let status = MaintenanceClient::new(self.channel()).status(request).await;
        let status = status.map_err(|status| self.not_let_in(&status))?.into_inner();
        self.common.recognise(status.header.as_ref())?;
        Ok(status)
    }

    /// Gets a token, unless somebody got one since `stale` was used.
    pub(super) async fn log_in(&self, stale: Option<&Token>) -> Result<()> {
        let account = &self.common.setup.account;
        let (Some(name), Some(password)) = (&account.user, &account.password) else {
            return Ok(());
        };
        let _turn = self.common.tokens.turn.lock().await;
        if self.common.tokens.current().as_ref() != stale {
            return Ok(());
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.0.clone() };
        match AuthClient::new(self.channel()).authenticate(Request::new(request)).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                self.common.recognise(answer.header.as_ref())?;
                let token = Token::try_from(answer.token)
                    .map_err(|_| Error::new(ErrorKind::Backend, "the server's token makes no sense"))?;
                self.common.tokens.set(token);
                Ok(())
            }
            // Whoever needs no password may have one.
            Err(status)
                if status.code() == Code::FailedPrecondition
                    && status.message().ends_with("is not enabled") =>
            {
                Ok(())
            }
            Err(status) => Err(self.not_let_in(&status)),
        }
    }

    /// What a failure means before anybody depends on the connection.
    fn not_let_in(&self, status: &Status) -> Error {
        let location = &self.common.setup.location;
        let away = || unreachable(location).with_source(causes(status));
        let is_of_driver = std::error::Error::source(status).is_some();
        let is_encrypted = self.common.setup.encryption.is_some();
        match meaning(location, status) {
            Meaning::Refused(error) => error,
            Meaning::StaleToken => stranger(location, &self.common.setup.account),
            _ if !is_of_driver => away(),
            _ if !is_encrypted => away()
                .with_hint("is it an etcd server, and does it want TLS? etcds:// is for servers that do"),
            _ if self.end.has_spoken.load(Ordering::Relaxed) => away(),
            // With TLS 1.3 a server refuses a client's certificate only after the client has begun to talk, and it may hang up so
            // fast that its reasons get lost.
            _ => fencepost_net::handshake_failed(causes(status)),
        }
    }

    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A request as the server wants it: who asks, and that a member without a leader shall not pretend.
    pub(super) fn dress<T>(message: T, token: Option<Token>) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = token {
            request.metadata_mut().insert("token", token);
        }
        request
    }

    pub(super) fn has_heard(&self) {
        self.heard.store(self.common.clock.now().as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn is_silent_since(&self, moment: Moment) -> bool {
        self.heard.load(Ordering::Relaxed) <= moment.as_nanos()
    }

    pub(super) fn is_over(&self) -> bool {
        self.end.is_over.load(Ordering::Acquire)
    }

    /// Nobody begins anything on it any more.
    pub(super) fn give_up(&self) {
        self.end.come();
    }

    /// Waits until it is over.
    pub(super) async fn over(&self) {
        let rung = self.end.bell.notified();
        if !self.is_over() {
            rung.await;
        }
    }
}

/// The end of a connection.
#[derive(Default)]
struct End {
    is_over: AtomicBool,
    bell: Notify,
    /// Whether the server has said anything at all.
    has_spoken: AtomicBool,
}

impl End {
    fn come(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            self.bell.notify_waiters();
        }
    }
}

/// A stream that tells whether anything came, and when the driver lets go of it: the driver keeps both to itself.
struct Tied {
    stream: Stream,
    end: Arc<End>,
}

impl Drop for Tied {
    fn drop(&mut self) {
        self.end.come();
    }
}

impl AsyncRead for Tied {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, into);
        if into.filled().len() > before {
            this.end.has_spoken.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Tied {
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
