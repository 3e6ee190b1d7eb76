//! The configuration of an etcd server.

use std::ffi::OsString;
use std::path::Path;

use super::{Certificates, TlsClients};

/// The password of the user `root`, where there are users.
pub(super) const ROOT_PASSWORD: &str = "root-secret";

/// The configuration of a server: [`EtcdServerConfig::plain`], with additions.
#[derive(Clone, Debug)]
pub struct EtcdServerConfig {
    options: Vec<String>,
    users: Vec<(String, String)>,
    tls: Option<TlsClients>,
    hanging_disk: bool,
}

/// Where a member listens, and the members of its cluster.
#[derive(Clone, Debug)]
pub(super) struct MemberAddress {
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) peer_port: u16,
    /// In the syntax of `--initial-cluster`.
    pub(super) cluster: String,
}

impl MemberAddress {
    /// Returns a member in the syntax of `--initial-cluster`.
    pub(super) fn member(name: &str, peer_port: u16) -> String {
        format!("{name}=http://127.0.0.1:{peer_port}")
    }
}

impl EtcdServerConfig {
    /// A server without users, where a lease of one second lasts one second: by default it would last two.
    pub fn plain() -> Self {
        // A lease lasts at least one and a half times as long as an election may take, in whole seconds.
        let options = ["--heartbeat-interval=60", "--election-timeout=600"];
        Self { options: options.map(str::to_owned).into(), users: Vec::new(), tls: None, hanging_disk: false }
    }

    /// Adds an option of the program, such as `--max-txn-ops=64`; later ones win.
    #[must_use]
    pub fn with_option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// Adds a user without rights, and `root`, as which `etcdctl` is run. Other clients are rejected.
    #[must_use]
    pub fn with_user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Sets how many seconds an auth token is valid after its last use.
    #[must_use]
    pub fn with_token_ttl(self, seconds: u32) -> Self {
        self.with_option(&format!("--auth-token-ttl={seconds}"))
    }

    /// Adds a port for TLS.
    #[must_use]
    pub fn with_tls(mut self, clients: TlsClients) -> Self {
        self.tls = Some(clients);
        self
    }

    /// Lets tests make the disk hang under the running server.
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
        address: &MemberAddress,
        tls: Option<&(u16, Certificates)>,
    ) -> Vec<OsString> {
        let (client, peer) = (http(address.port), http(address.peer_port));
        let mut args = vec!["etcd".into(), format!("--name={}", address.name)];
        args.push(format!("--data-dir={}", folder.join("data").display()));
        args.push(format!("--advertise-client-urls={client}"));
        args.push(format!("--listen-peer-urls={peer}"));
        args.push(format!("--initial-advertise-peer-urls={peer}"));
        args.push(format!("--initial-cluster={}", address.cluster));
        // Clusters of two processes on the same ports, one after the other, ignore each other.
        args.push(format!("--initial-cluster-token={}-{}", std::process::id(), address.cluster));
        // A stable log format, no features that tests do not use, and cheap password hashes.
        args.extend(["--logger=zap", "--enable-grpc-gateway=false", "--bcrypt-cost=4"].map(str::to_owned));
        let mut listen = vec![client];
        if let Some((port, made)) = tls {
            listen.push(format!("https://127.0.0.1:{port}"));
            args.push(format!("--cert-file={}", made.server_cert.display()));
            args.push(format!("--key-file={}", made.server_key.display()));
            if self.tls == Some(TlsClients::WithCertificate) {
                args.push(format!("--trusted-ca-file={}", made.ca.display()));
                args.push("--client-cert-auth".to_owned());
            }
        }
        args.push(format!("--listen-client-urls={}", listen.join(",")));
        args.iter().chain(&self.options).map(OsString::from).collect()
    }
}

fn http(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}
