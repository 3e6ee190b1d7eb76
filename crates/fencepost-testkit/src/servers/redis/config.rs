//! The configuration of a Redis server.

use std::fmt::Write;
use std::path::Path;

use super::{Certificates, TlsClients};

/// The configuration of a server: [`RedisServerConfig::plain`], with additions.
#[derive(Clone, Debug)]
pub struct RedisServerConfig {
    program: &'static str,
    ready_message: &'static str,
    lines: Vec<String>,
    password: Option<String>,
    users: Vec<(String, String)>,
    tls: Option<TlsClients>,
    movable_clock: bool,
}

impl RedisServerConfig {
    /// A server without persistence and password, and with the `DEBUG` command.
    pub fn plain() -> Self {
        let lines =
            ["save \"\"", "appendonly no", "enable-debug-command local", "repl-diskless-sync-delay 0"];
        Self::of("redis-server", "Ready to accept connections", &lines)
    }

    /// A sentinel.
    pub(super) fn sentinel() -> Self {
        Self::of("redis-sentinel", "Sentinel ID is", &[])
    }

    fn of(program: &'static str, ready_message: &'static str, lines: &[&str]) -> Self {
        Self {
            program,
            ready_message,
            lines: lines.iter().map(ToString::to_string).collect(),
            password: None,
            users: Vec::new(),
            tls: None,
            movable_clock: false,
        }
    }

    /// Sets the password of the user `default`, also for replication.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.with_config(&format!("requirepass {password}")).with_config(&format!("masterauth {password}"))
    }

    /// Adds a user with these ACL rules: `~fencepost:* &fencepost:* +eval`.
    #[must_use]
    pub fn with_user(mut self, name: &str, password: &str, rights: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self.with_config(&format!("user {name} on >{password} {rights}"))
    }

    /// Adds a port for TLS.
    #[must_use]
    pub fn with_tls(mut self, clients: TlsClients) -> Self {
        self.tls = Some(clients);
        self
    }

    /// Adds a line of the configuration file, such as `maxmemory 10mb`; later ones win.
    #[must_use]
    pub fn with_config(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Lets tests move the wall clock of the server: [`RedisServer::shift_clock`](super::RedisServer::shift_clock).
    #[must_use]
    pub fn with_movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    pub(super) fn program(&self) -> &'static str {
        self.program
    }

    /// The log message that says that the server accepts connections.
    pub(super) fn ready_message(&self) -> &'static str {
        self.ready_message
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
