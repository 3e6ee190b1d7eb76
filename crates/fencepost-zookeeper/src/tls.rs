//! TLS options for the driver, which takes certificates as PEM text.

use std::path::Path;

use fencepost_core::Result;
use fencepost_net::{Tls, bad};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use zookeeper_client::TlsOptions;

/// The CA bundles of common systems.
const SYSTEM_CA_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Reads the certificates and the key that the URL names.
pub(crate) fn options(tls: &Tls) -> Result<TlsOptions> {
    if CryptoProvider::get_default().is_none() {
        // The driver panics if there are several providers and no default. The call fails if another thread has set
        // one.
        let _ = aws_lc_rs::default_provider().install_default();
    }
    let ca = match &tls.ca {
        Some(ca) => read(ca)?,
        None => system_ca()?,
    };
    let options = TlsOptions::new()
        .with_pem_ca(&ca)
        .map_err(|error| bad("the CA file contains no certificate that can be used").with_source(error))?;
    match &tls.identity {
        None => Ok(options),
        Some((certificate, key)) => options
            .with_pem_identity(&read(certificate)?, &read(key)?)
            .map_err(|error| bad("the client certificate and key do not match").with_source(error)),
    }
}

/// Reads the CA bundle of this system.
fn system_ca() -> Result<String> {
    let named = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    let found = named
        .or_else(|| SYSTEM_CA_FILES.iter().map(Path::new).find(|path| path.exists()).map(Path::to_owned));
    let hint = "name a file with CA certificates: ?tls=true&tls_ca=FILE";
    read(&found.ok_or_else(|| bad("no file with CA certificates was found on this system").with_hint(hint))?)
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file)
        .map_err(|error| bad(format!("could not read {}", file.display())).with_source(error))
}
