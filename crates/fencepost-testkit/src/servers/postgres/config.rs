//! The configuration of a PostgreSQL server.

use std::fmt::Write;

use super::template::SUPERUSER;
use super::{Certificates, TlsClients};

/// The configuration of a server: [`PostgresServerConfig::plain`], with additions.
#[derive(Clone, Debug)]
pub struct PostgresServerConfig {
    settings: Vec<(String, String)>,
    password: Option<String>,
    users: Vec<(String, String)>,
    tls: Option<TlsClients>,
    encrypted_only: bool,
    shim: Option<Shim>,
}

/// The library that is preloaded into the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shim {
    MovableClock,
    FillableDisk,
}

impl PostgresServerConfig {
    /// A server that trusts all clients. A commit is written when it is confirmed, as in production, but not synced: it
    /// outlives the server's processes, not the machine.
    pub fn plain() -> Self {
        let settings = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("max_connections", "500"),
            ("shared_buffers", "16MB"),
            ("huge_pages", "off"),
            ("fsync", "off"),
            ("synchronous_commit", "on"),
            ("timezone", "UTC"),
            ("lc_messages", "C"),
            // Others would remain outside of the server's directory when it is killed.
            ("dynamic_shared_memory_type", "mmap"),
        ];
        Self {
            settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            password: None,
            users: Vec::new(),
            tls: None,
            encrypted_only: false,
            shim: None,
        }
    }

    /// A server that syncs each commit to the disk, with the memory of a small production server: for benchmarks.
    pub fn durable() -> Self {
        Self::plain().with_setting("fsync", "on").with_setting("shared_buffers", "128MB")
    }

    /// Sets a server setting, such as `deadlock_timeout` and `100ms`; later ones win.
    #[must_use]
    pub fn with_setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the password of the superuser `postgres`; clients without a password are rejected.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user without rights of its own. Where there is one, clients without a password are rejected; the superuser's
    /// is `postgres-secret` unless [`with_password`](Self::with_password) sets another.
    #[must_use]
    pub fn with_user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self.password.get_or_insert_with(|| "postgres-secret".to_owned());
        self
    }

    /// Accepts TLS on the same port, from these clients. Unencrypted connections are accepted as well.
    #[must_use]
    pub fn with_tls(mut self, clients: TlsClients) -> Self {
        self.tls = Some(clients);
        self
    }

    /// Rejects unencrypted connections; accepts TLS from all clients unless [`with_tls`](Self::with_tls) says otherwise.
    #[must_use]
    pub fn with_tls_only(mut self) -> Self {
        self.tls.get_or_insert(TlsClients::All);
        self.encrypted_only = true;
        self
    }

    /// Lets tests move the wall clock of the server: [`PostgresServer::shift_clock`](super::PostgresServer::shift_clock).
    ///
    /// # Panics
    /// If it has a disk that can be filled.
    #[must_use]
    pub fn with_movable_clock(self) -> Self {
        self.with_shim(Shim::MovableClock)
    }

    /// Lets tests fill the disk of the server: [`PostgresServer::fill_disk`](super::PostgresServer::fill_disk).
    ///
    /// # Panics
    /// If it has a movable clock.
    #[must_use]
    pub fn with_fillable_disk(self) -> Self {
        self.with_shim(Shim::FillableDisk)
    }

    fn with_shim(mut self, shim: Shim) -> Self {
        assert!(self.shim.is_none_or(|other| other == shim), "only one library is preloaded");
        self.shim = Some(shim);
        self
    }

    pub(super) fn shim(&self) -> Option<Shim> {
        self.shim
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn is_encrypted_only(&self) -> bool {
        self.encrypted_only
    }

    /// Returns the password of a user, if clients need one.
    pub(super) fn password_of(&self, user: &str) -> Option<&str> {
        if user == SUPERUSER {
            return self.password.as_deref();
        }
        self.users.iter().find(|(name, _)| name == user).map(|(_, password)| password.as_str())
    }

    /// Returns all users, with their password if they need one.
    pub(super) fn users(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let users = self.users.iter().map(|(name, password)| (name.as_str(), Some(password.as_str())));
        [(SUPERUSER, self.password.as_deref())].into_iter().chain(users)
    }

    /// Returns the statements that create the users, a line each.
    pub(super) fn statements(&self) -> String {
        let superuser =
            self.password.iter().map(|word| format!("ALTER USER {SUPERUSER} PASSWORD {};\n", quoted(word)));
        let users = self.users.iter().map(|(name, word)| {
            let name = name.replace('"', "\"\"");
            format!("CREATE USER \"{name}\" PASSWORD {};\n", quoted(word))
        });
        superuser.chain(users).collect()
    }

    /// Returns the text of `postgresql.conf`.
    pub(super) fn config_file(&self, port: u16, tls: Option<&Certificates>) -> String {
        let mut file = format!("port = {port}\n");
        for (name, value) in &self.settings {
            let _ = writeln!(file, "{name} = {}", quoted(value));
        }
        if let Some(made) = tls {
            let _ = writeln!(file, "ssl = on\nssl_cert_file = '{}'", made.server_cert.display());
            let _ = writeln!(file, "ssl_key_file = '{}'", made.server_key.display());
            let _ = writeln!(file, "ssl_ca_file = '{}'", made.ca.display());
        }
        file
    }

    /// Returns the text of `pg_hba.conf`: who may connect.
    pub(super) fn access_file(&self) -> String {
        let method = if self.password.is_some() { "scram-sha-256" } else { "trust" };
        let certificate = match self.tls {
            Some(TlsClients::WithCertificate) => " clientcert=verify-ca",
            _ => "",
        };
        let mut file = String::new();
        for database in ["all", "replication"] {
            if self.has_tls() {
                let _ = writeln!(file, "hostssl {database} all 127.0.0.1/32 {method}{certificate}");
            }
            if !self.encrypted_only {
                let _ = writeln!(file, "hostnossl {database} all 127.0.0.1/32 {method}");
            }
        }
        file
    }
}

/// Returns a value in the quotes of SQL and of the configuration file.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}
