//! What an etcd server can be started with.

use std::ffi::OsString;
use std::path::Path;

use super::{Certificates, TlsClients};

/// The password of the user `root`, where there are users.
pub(super) const ROOT_PASSWORD: &str = "root-secret";

/// How a server is set up: [`EtcdServerConfig::plain`], and what is added to it.
#[derive(Clone, Debug)]
pub struct EtcdServerConfig {
    options: Vec<String>,
    users: Vec<(String, String)>,
    tls: Option<TlsClients>,
    hanging_disk: bool,
}

/// Where a member listens, and who belongs to its cluster.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) peer_port: u16,
    /// In the words of `--initial-cluster`.
    pub(super) cluster: String,
}

impl Place {
    /// The words by which a cluster knows a member.
    pub(super) fn member(name: &str, peer_port: u16) -> String {
        format!("{name}=http://127.0.0.1:{peer_port}")
    }
}

impl EtcdServerConfig {
    /// A server without users, where a lease of one second is one of one second: by default it would be one of two.
    pub fn plain() -> Self {
        // A lease lasts at least one and a half times as long as an election may take, in whole seconds.
        let options = ["--heartbeat-interval=60", "--election-timeout=600"];
        Self { options: options.map(str::to_owned).into(), users: Vec::new(), tls: None, hanging_disk: false }
    }

    /// An option of the program, such as `--max-txn-ops=64`; later ones win.
    #[must_use]
    pub fn with_option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// There is this user, who may do nothing yet, and `root`, as whom `etcdctl` is run. Nobody else is let in.
    #[must_use]
    pub fn with_user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// What a user is given for its password is good for so many seconds after its last use.
    #[must_use]
    pub fn with_token_ttl(self, seconds: u32) -> Self {
        self.with_option(&format!("--auth-token-ttl={seconds}"))
    }

    /// The server also speaks TLS, on a port of its own.
    #[must_use]
    pub fn with_tls(mut self, clients: TlsClients) -> Self {
        self.tls = Some(clients);
        self
    }

    /// The disk can be made to hang under the running server.
    #[must_use]
    pub fn with_hanging_disk(mut self) -> Self {
        self.hanging_disk = true;
        self
    }

    pub(super) fn has_hanging_disk(&self) -> bool {
        self.hanging_disk
    }

    pub(super) fn users(&self) -> &[(String, String)] {
        &self.users
    }

    pub(super) fn password_of(&self, user: &str) -> Option<&str> {
        self.users.iter().find(|(name, _)| name == user).map(|(_, password)| password.as_str())
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn command(
        &self,
        folder: &Path,
        place: &Place,
        tls: Option<&(u16, Certificates)>,
    ) -> Vec<OsString> {
        let (client, peer) = (http(place.port), http(place.peer_port));
        let mut words = vec!["etcd".into(), format!("--name={}", place.name)];
        words.push(format!("--data-dir={}", folder.join("data").display()));
        words.push(format!("--advertise-client-urls={client}"));
        words.push(format!("--listen-peer-urls={peer}"));
        words.push(format!("--initial-advertise-peer-urls={peer}"));
        words.push(format!("--initial-cluster={}", place.cluster));
        // Clusters of two processes on the same ports, one after the other, take no notice of each other.
        words.push(format!("--initial-cluster-token={}-{}", std::process::id(), place.cluster));
        // Words that can be relied on, and nothing that tests do not use. Passwords need not be expensive.
        words.extend(["--logger=zap", "--enable-grpc-gateway=false", "--bcrypt-cost=4"].map(str::to_owned));
        let mut listen = vec![client];
        if let Some((port, made)) = tls {
            listen.push(format!("https://127.0.0.1:{port}"));
            words.push(format!("--cert-file={}", made.server_cert.display()));
            words.push(format!("--key-file={}", made.server_key.display()));
            if self.tls == Some(TlsClients::WithCertificate) {
                words.push(format!("--trusted-ca-file={}", made.ca.display()));
                words.push("--client-cert-auth".to_owned());
            }
        }
        words.push(format!("--listen-client-urls={}", listen.join(",")));
        words.iter().chain(&self.options).map(OsString::from).collect()
    }
}

fn http(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}
