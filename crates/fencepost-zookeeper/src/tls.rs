//! Encryption as the driver wants it: everything as text.

use std::path::Path;

use fencepost_core::Result;
use fencepost_net::{Tls, bad};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use zookeeper_client::TlsOptions;

/// Where systems keep whom they trust.
const SYSTEM_CA_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Reads the certificates.
pub(crate) fn options(tls: &Tls) -> Result<TlsOptions> {
    if CryptoProvider::get_default().is_none() {
        // The driver panics if there are several and none was chosen. Whoever was faster has chosen one.
        let _ = aws_lc_rs::default_provider().install_default();
    }
    let ca = match &tls.ca {
        Some(ca) => read(ca)?,
        None => system_ca()?,
    };
    let options = TlsOptions::new()
        .with_pem_ca(&ca)
        .map_err(|error| bad("no certificate to trust").with_source(error))?;
    match &tls.identity {
        None => Ok(options),
        Some((certificate, key)) => options
            .with_pem_identity(&read(certificate)?, &read(key)?)
            .map_err(|error| bad("the client's certificate and key do not go together").with_source(error)),
    }
}

/// Whom this system trusts.
fn system_ca() -> Result<String> {
    let named = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    let found = named
        .or_else(|| SYSTEM_CA_FILES.iter().map(Path::new).find(|path| path.exists()).map(Path::to_owned));
    let hint = "say whom to trust: ?tls=true&tls_ca=FILE";
    read(&found.ok_or_else(|| bad("this system does not say whom it trusts").with_hint(hint))?)
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file)
        .map_err(|error| bad(format!("could not read {}", file.display())).with_source(error))
}
