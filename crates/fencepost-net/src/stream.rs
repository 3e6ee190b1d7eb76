//! One type for plain and encrypted connections.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use fencepost_core::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::{Address, Encryption};

/// A connection, plain or encrypted.
pub enum Stream {
    /// TCP without TLS.
    Plain(TcpStream),
    /// TLS over TCP.
    Encrypted(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Connects, with TLS if there is an `encryption`. `unreachable` makes the error if the address does not answer.
    ///
    /// # Errors
    /// If the address does not answer, or the TLS handshake fails.
    ///
    /// # Cancel safety
    /// If the future is dropped, no connection remains.
    pub async fn open(
        address: &Address,
        encryption: Option<&Encryption>,
        unreachable: impl Fn() -> Error,
    ) -> Result<Self> {
        let failed = |error: io::Error| unreachable().with_source(error);
        let tcp = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(failed)?;
        // Without it, small requests wait for the acknowledgement of earlier ones.
        tcp.set_nodelay(true).map_err(failed)?;
        match encryption {
            None => Ok(Self::Plain(tcp)),
            Some(encryption) => encryption.encrypt(tcp, &address.host).await,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Self::Encrypted(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Encrypted(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Encrypted(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Encrypted(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
