//! Certificates for servers with TLS, created by the `openssl` command.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Paths of the certificates and keys of a server and its clients: PEM files, all signed by one authority.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The certificate of the authority.
    pub ca: PathBuf,
    /// The server's certificate, for `localhost` and `127.0.0.1`.
    pub server_cert: PathBuf,
    /// The server's key.
    pub server_key: PathBuf,
    /// A client's certificate.
    pub client_cert: PathBuf,
    /// The client's key.
    pub client_key: PathBuf,
    /// The certificate of an authority that has signed none of the above.
    pub other_ca: PathBuf,
}

/// The clients that a server with TLS accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsClients {
    /// All clients.
    All,
    /// Clients with a certificate of the authority.
    WithCertificate,
}

impl Certificates {
    /// Creates them in the directory.
    pub(crate) fn make(folder: &Path) -> Self {
        super::require("openssl");
        let maker = Maker { folder };
        let ca = maker.authority("ca");
        let other_ca = maker.authority("other-ca");
        let names = "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth";
        let (server_cert, server_key) = maker.signed("server", names);
        let (client_cert, client_key) = maker.signed("client", "extendedKeyUsage=clientAuth");
        Self { ca, server_cert, server_key, client_cert, client_key, other_ca }
    }
}

struct Maker<'a> {
    folder: &'a Path,
}

impl Maker<'_> {
    fn authority(&self, name: &str) -> PathBuf {
        let (subject, key, cert) = (format!("/CN={name}"), format!("{name}.key"), format!("{name}.crt"));
        self.openssl(&[
            &["req", "-x509", "-days", "2", "-subj", &subject, "-keyout", &key, "-out", &cert],
            &["-addext", "keyUsage=critical,keyCertSign,cRLSign"],
            &KEY,
        ]);
        self.folder.join(cert)
    }

    /// Creates a certificate that is signed by the authority `ca`, and its key.
    fn signed(&self, name: &str, extensions: &str) -> (PathBuf, PathBuf) {
        let file = |ending: &str| format!("{name}.{ending}");
        let (subject, key, request, cert) = (format!("/CN={name}"), file("key"), file("csr"), file("crt"));
        self.openssl(&[&["req", "-subj", &subject, "-keyout", &key, "-out", &request], &KEY]);
        let described = file("ext");
        std::fs::write(self.folder.join(&described), extensions).expect("the folder can be written");
        self.openssl(&[
            &["x509", "-req", "-days", "2", "-in", &request, "-out", &cert, "-extfile", &described],
            &["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"],
        ]);
        (self.folder.join(cert), self.folder.join(key))
    }

    fn openssl(&self, args: &[&[&str]]) {
        let done = Command::new("openssl").args(args.concat()).current_dir(self.folder).output();
        let done = done.expect("openssl can be started");
        assert!(done.status.success(), "openssl: {}", String::from_utf8_lossy(&done.stderr));
    }
}

/// Options for an unencrypted key that is created quickly.
const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
