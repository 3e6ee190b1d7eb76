//! Encryption: one stream type for plain and encrypted connections, and whom to trust.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::{Error, ErrorKind, Result};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::Tls;

/// A connection, plain or encrypted.
pub(crate) enum Stream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// How to encrypt, with everything read from its files.
#[derive(Clone)]
pub(crate) struct Encryption {
    connector: TlsConnector,
    server_name: Option<String>,
}

impl Encryption {
    /// Reads the certificates.
    pub(crate) fn new(tls: &Tls) -> Result<Self> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| bad("TLS cannot be used").with_source(error))?;
        let builder = if tls.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        } else {
            builder.with_root_certificates(roots(tls)?)
        };
        let config = match &tls.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let key =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("key", key, &error))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    bad("the client's certificate and key do not go together").with_source(error)
                })?
            }
        };
        Ok(Self { connector: Arc::new(config).into(), server_name: tls.server_name.clone() })
    }

    /// Encrypts a connection to this host.
    pub(crate) async fn encrypt(&self, plain: TcpStream, host: &str) -> Result<Stream> {
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(|error| {
            bad("the server's name cannot be in a certificate")
                .with_hint("say which name is in it: ?tls_server_name=NAME")
                .with_source(error)
        })?;
        let encrypted = self.connector.connect(name, plain).await.map_err(not_agreed)?;
        Ok(Stream::Encrypted(Box::new(encrypted)))
    }
}

/// One of the two did not like what the other said about itself.
pub(crate) fn not_agreed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Denied, "no encrypted connection could be agreed on")
        .with_hint(
            "is it a TLS port, and who signed its certificate? ?tls_ca=FILE names a CA of your own, \
             ?tls_cert=FILE&tls_key=FILE is for servers that ask who you are",
        )
        .with_source(why)
}

fn roots(tls: &Tls) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let trusted = match &tls.ca {
        Some(ca) => certificates(ca)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = roots.add_parsable_certificates(trusted);
    if added == 0 {
        return Err(bad("there is no certificate to trust")
            .with_hint("install the system's CA certificates, or name a CA of your own: ?tls_ca=FILE"));
    }
    Ok(roots)
}

fn certificates(path: &std::path::Path) -> Result<Vec<CertificateDer<'static>>> {
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    chain.map_err(|error| unreadable("certificate", path, &error))
}

fn unreadable(what: &str, path: &std::path::Path, error: &dyn std::fmt::Display) -> Error {
    bad(format!("the {what} {} cannot be read", path.display())).with_source(error.to_string())
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadConfig, message)
}

/// Trusts every certificate, because it was told to.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

mod anybody {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    impl ServerCertVerifier for super::Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Self::Encrypted(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Encrypted(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Encrypted(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Encrypted(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
