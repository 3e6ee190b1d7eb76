//! Encryption: whom to trust, and who we are.

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

use crate::{Address, Stream, bad};

/// How a connection is encrypted, as the options of a URL say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whom to trust, instead of those whom the system trusts.
    pub ca: Option<PathBuf>,
    /// Who we are: certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it is not the host's.
    pub server_name: Option<String>,
    /// Trust anybody.
    pub insecure: bool,
}

impl Tls {
    pub(crate) const OPTIONS: [&str; 5] =
        ["tls_ca", "tls_cert", "tls_key", "tls_server_name", "tls_insecure"];

    /// Reads these options, which are all of ours.
    pub(crate) fn read<'a>(options: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let mut tls = Self::default();
        for (key, value) in options {
            match key {
                "tls_ca" => tls.ca = Some(value.into()),
                "tls_cert" => tls.identity.get_or_insert_default().0 = value.into(),
                "tls_key" => tls.identity.get_or_insert_default().1 = value.into(),
                "tls_server_name" => tls.server_name = Some(value.into()),
                _ if value == "true" => tls.insecure = true,
                _ => return Err(bad("tls_insecure is either absent or true")),
            }
        }
        Ok(tls)
    }
}

/// Says for the doctor whether the way to these servers is encrypted. `advice` is how to make it so.
pub fn encryption_finding(tls: Option<&Tls>, servers: &[Address], advice: &str) -> Finding {
    let finding = |found| Finding::ok("encryption", found);
    let warning = |found| Finding::warning("encryption", found);
    match tls {
        Some(Tls { insecure: true, .. }) => {
            warning("TLS, but with any server that answers: tls_insecure=true")
                .with_advice("name who signed the servers' certificates: tls_ca=FILE")
        }
        Some(_) => finding("TLS"),
        None if servers.iter().all(Address::is_local) => finding("none, and none is needed on one host"),
        None => warning("none: names, labels, cells and passwords can be read and changed on the way")
            .with_advice(advice),
    }
}

/// How to encrypt, with everything read from its files.
#[derive(Clone)]
pub struct Encryption {
    connector: TlsConnector,
    server_name: Option<String>,
}

impl Encryption {
    /// Reads the certificates.
    pub fn new(tls: &Tls) -> Result<Self> {
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

    /// The same, for those who agree on this protocol (ALPN): `h2`.
    #[must_use]
    pub fn speaking(self, protocol: &str) -> Self {
        let mut config = ClientConfig::clone(self.connector.config());
        config.alpn_protocols = vec![protocol.into()];
        Self { connector: Arc::new(config).into(), ..self }
    }

    /// Encrypts a connection to this host.
    pub(crate) async fn encrypt(&self, plain: TcpStream, host: &str) -> Result<Stream> {
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(|error| {
            bad("the server's name cannot be in a certificate")
                .with_hint("say which name is in it: ?tls_server_name=NAME")
                .with_source(error)
        })?;
        let encrypted = self.connector.connect(name, plain).await.map_err(|error| {
            // What is not about TLS is about the network, or about a server that goes away.
            if error.kind() == io::ErrorKind::InvalidData { not_agreed(error) } else { ended(error) }
        })?;
        Ok(Stream::Encrypted(Box::new(encrypted)))
    }
}

/// The other side has hung up before anything was agreed on.
fn ended(why: io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, "the connection ended before it was encrypted")
        .with_hint("is it a TLS port?")
        .with_source(why)
}

/// One of the two did not like what the other said about itself.
pub fn not_agreed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
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

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    chain.map_err(|error| unreadable("certificate", path, &error))
}

fn unreadable(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Error {
    bad(format!("the {what} {} cannot be read", path.display())).with_source(error.to_string())
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
