//! What a Redis server can be started with.

use std::fmt::Write;
use std::path::Path;

use super::{Certificates, TlsClients};

/// How a server is set up: [`RedisServerConfig::plain`], and what is added to it.
#[derive(Clone, Debug)]
pub struct RedisServerConfig {
    program: &'static str,
    ready_words: &'static str,
    lines: Vec<String>,
    password: Option<String>,
    users: Vec<(String, String)>,
    tls: Option<TlsClients>,
    movable_clock: bool,
}

impl RedisServerConfig {
    /// A server that keeps nothing on disk, without password, and that may be debugged.
    pub fn plain() -> Self {
        let lines =
            ["save \"\"", "appendonly no", "enable-debug-command local", "repl-diskless-sync-delay 0"];
        Self::of("redis-server", "Ready to accept connections", &lines)
    }

    /// A sentinel.
    pub(super) fn sentinel() -> Self {
        Self::of("redis-sentinel", "Sentinel ID is", &[])
    }

    fn of(program: &'static str, ready_words: &'static str, lines: &[&str]) -> Self {
        Self {
            program,
            ready_words,
            lines: lines.iter().map(ToString::to_string).collect(),
            password: None,
            users: Vec::new(),
            tls: None,
            movable_clock: false,
        }
    }

    /// The user `default` has this password; replicas know it too.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.with_config(&format!("requirepass {password}")).with_config(&format!("masterauth {password}"))
    }

    /// There is this user too, with rights in the words of an ACL: `~fencepost:* &fencepost:* +eval`.
    #[must_use]
    pub fn with_user(mut self, name: &str, password: &str, rights: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self.with_config(&format!("user {name} on >{password} {rights}"))
    }

    /// The server also speaks TLS, on a port of its own.
    #[must_use]
    pub fn with_tls(mut self, clients: TlsClients) -> Self {
        self.tls = Some(clients);
        self
    }

    /// A line of the server's configuration, such as `maxmemory 10mb`; later ones win.
    #[must_use]
    pub fn with_config(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// The server's wall clock can be moved: [`RedisServer::shift_clock`](super::RedisServer::shift_clock).
    #[must_use]
    pub fn with_movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    pub(super) fn program(&self) -> &'static str {
        self.program
    }

    /// What the server says when it takes connections.
    pub(super) fn ready_words(&self) -> &'static str {
        self.ready_words
    }

    pub(super) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    pub(super) fn password_of(&self, user: &str) -> Option<&str> {
        self.users.iter().find(|(name, _)| name == user).map(|(_, password)| password.as_str())
    }

    pub(super) fn tls(&self) -> Option<TlsClients> {
        self.tls
    }

    pub(super) fn has_movable_clock(&self) -> bool {
        self.movable_clock
    }

    pub(super) fn config_file(&self, folder: &Path, port: u16, tls: Option<&(u16, Certificates)>) -> String {
        let mut file = format!("bind 127.0.0.1\nport {port}\ndaemonize no\ndir {}\n", folder.display());
        for line in &self.lines {
            let _ = writeln!(file, "{line}");
        }
        if let Some((port, made)) = tls {
            let _ = writeln!(file, "tls-port {port}\ntls-ca-cert-file {}", made.ca.display());
            let _ = writeln!(file, "tls-cert-file {}", made.server_cert.display());
            let _ = writeln!(file, "tls-key-file {}", made.server_key.display());
            let only_known = self.tls == Some(TlsClients::WithCertificate);
            let _ = writeln!(file, "tls-auth-clients {}", if only_known { "yes" } else { "no" });
        }
        file
    }
}
