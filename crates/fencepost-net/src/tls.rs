//! TLS: which certificates to trust, and the client's own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fencepost_core::{Error, ErrorKind, Finding, Result};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{Address, Stream, Url, bad};

/// The TLS options of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// CA certificates to trust instead of the system store.
    pub ca: Option<PathBuf>,
    /// Client certificate and key (mTLS).
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it differs from the host's.
    pub server_name: Option<String>,
    /// Accept any certificate.
    pub insecure: bool,
}

impl Tls {
    pub(crate) const OPTIONS: [&str; 5] =
        ["tls_ca", "tls_cert", "tls_key", "tls_server_name", "tls_insecure"];

    /// Reads the options listed in [`Self::OPTIONS`].
    pub(crate) fn from_url(url: &Url) -> Result<Self> {
        let mut tls = Self::default();
        for (key, value) in url.tls_options() {
            match key {
                "tls_ca" => tls.ca = Some(value.into()),
                "tls_cert" => tls.identity.get_or_insert_default().0 = value.into(),
                "tls_key" => tls.identity.get_or_insert_default().1 = value.into(),
                "tls_server_name" => tls.server_name = Some(value.into()),
                _ if value == "true" => tls.insecure = true,
                _ => return Err(url.unknown_value((key, value), &["true"], "certificates are verified")),
            }
        }
        Ok(tls)
    }
}

/// Returns the doctor's finding about encryption between the client and these servers. `advice` says how to switch it on.
pub fn encryption_finding(tls: Option<&Tls>, servers: &[Address], advice: &str) -> Finding {
    let finding = |found| Finding::ok("encryption", found);
    let warning = |found| Finding::warning("encryption", found);
    match tls {
        Some(Tls { insecure: true, .. }) => {
            warning("TLS without verifying the server's certificate: tls_insecure=true")
                .with_advice("name the CA of the servers' certificates: tls_ca=FILE")
        }
        Some(_) => finding("TLS"),
        None if servers.iter().all(Address::is_local) => finding("none; not needed on the same host"),
        None => warning("none: names, labels, cells and passwords can be read and changed in transit")
            .with_advice(advice),
    }
}

/// A TLS configuration, with certificates and keys loaded.
#[derive(Clone)]
pub struct Encryption {
    connector: TlsConnector,
    server_name: Option<String>,
}

impl Encryption {
    /// Loads the certificates and keys.
    ///
    /// # Errors
    /// If a file cannot be read, or there is no certificate to trust.
    pub fn new(tls: &Tls) -> Result<Self> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| bad("TLS is not available").with_source(error))?;
        let builder = if tls.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
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
                    bad("the client's certificate and key do not match").with_source(error)
                })?
            }
        };
        Ok(Self { connector: Arc::new(config).into(), server_name: tls.server_name.clone() })
    }

    /// Returns the same configuration that offers this protocol (ALPN), such as `h2`.
    #[must_use]
    pub fn with_alpn(self, protocol: &str) -> Self {
        let mut config = ClientConfig::clone(self.connector.config());
        config.alpn_protocols = vec![protocol.into()];
        Self { connector: Arc::new(config).into(), ..self }
    }

    /// Returns the configuration, for a driver that performs the handshake itself.
    pub fn client_config(&self) -> ClientConfig {
        ClientConfig::clone(self.connector.config())
    }

    /// Returns the name that the certificate of this host must have.
    pub fn server_name<'a>(&'a self, host: &'a str) -> &'a str {
        self.server_name.as_deref().unwrap_or(host)
    }

    /// Performs the TLS handshake with this host.
    pub(crate) async fn encrypt(&self, plain: TcpStream, host: &str) -> Result<Stream> {
        let name = self.server_name(host).to_owned();
        let name = ServerName::try_from(name).map_err(|error| {
            bad("the host's name is not valid in a certificate")
                .with_hint("give the name in the server's certificate: ?tls_server_name=NAME")
                .with_source(error)
        })?;
        let encrypted = self.connector.connect(name, plain).await.map_err(|error| {
            // `InvalidData` is a TLS error; any other comes from the network or a server that shuts down.
            if error.kind() == io::ErrorKind::InvalidData { handshake_failed(error) } else { closed(error) }
        })?;
        Ok(Stream::Encrypted(Box::new(encrypted)))
    }
}

/// Returns the error for a connection that the server closed during the handshake.
fn closed(cause: io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, "the server closed the connection during the TLS handshake")
        .with_hint("is it a TLS port?")
        .with_source(cause)
}

/// Returns the error for a TLS handshake that one of the two sides rejected.
pub fn handshake_failed(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Denied, "the TLS handshake failed")
        .with_hint(
            "is it a TLS port, and which CA signed its certificate? ?tls_ca=FILE trusts a CA of your own, \
             ?tls_cert=FILE&tls_key=FILE is the client certificate that some servers require",
        )
        .with_source(cause)
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

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    chain.map_err(|error| unreadable("certificate", path, &error))
}

fn unreadable(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Error {
    bad(format!("the {what} {} cannot be read", path.display())).with_source(error.to_string())
}

/// Accepts every certificate (`tls_insecure=true`).
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

mod accept_any {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    impl ServerCertVerifier for super::AcceptAny {
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
