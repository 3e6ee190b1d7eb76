//! The configuration of a MariaDB server.

use std::ffi::OsString;
use std::path::Path;

use super::super::free_port;
use super::template::Medium;
use super::{Certificates, TlsClients};

/// The library of Galera, of Debian's package `galera-4`, which `mariadb-server` depends on.
const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

/// The administrator of all servers.
pub(super) const ADMINISTRATOR: &str = "root";

/// A library that is preloaded into the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shim {
    MovableClock,
    FillableDisk,
}

/// The configuration of a server: [`MariadbServerConfig::plain`], with additions.
#[derive(Clone, Debug)]
pub struct MariadbServerConfig {
    options: Vec<String>,
    password: Option<String>,
    users: Vec<(String, String)>,
    tls: Option<TlsClients>,
    shim: Option<Shim>,
    galera: bool,
    medium: Medium,
}

impl MariadbServerConfig {
    /// A server with an administrator without a password, and without a binary log. A commit is written when it is
    /// confirmed, as in production, but not synced: it outlives the server's process, not the machine.
    pub fn plain() -> Self {
        let options = [
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--max-connections=1000",
            "--performance-schema=off",
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-method=nosync",
            "--default-time-zone=+00:00",
            "--log-warnings=1",
        ];
        Self {
            options: options.map(str::to_owned).into(),
            password: None,
            users: Vec::new(),
            tls: None,
            shim: None,
            galera: false,
            medium: Medium::Memory,
        }
    }

    /// A server that syncs each commit to the disk, with the memory of a small production server: for benchmarks.
    pub fn durable() -> Self {
        Self { medium: Medium::Disk, ..Self::plain() }
            .with_option("--innodb-flush-method=fsync")
            .with_option("--innodb-buffer-pool-size=128M")
            .with_option("--innodb-log-file-size=96M")
    }

    /// Adds an option of the program, such as `--read-only`; later ones win.
    #[must_use]
    pub fn with_option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// Sets the password of the administrator.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user without rights.
    #[must_use]
    pub fn with_user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Accepts TLS on the same port. Unencrypted connections are accepted as well, unless clients need a certificate.
    #[must_use]
    pub fn with_tls(mut self, clients: TlsClients) -> Self {
        self.tls = Some(clients);
        self
    }

    /// Lets tests move the wall clock of the server: [`MariadbServer::shift_clock`](super::MariadbServer::shift_clock).
    ///
    /// # Panics
    /// If it has a disk that can be filled.
    #[must_use]
    pub fn with_movable_clock(self) -> Self {
        self.with_shim(Shim::MovableClock)
    }

    /// Lets tests fill the disk of the server: [`MariadbServer::fill_disk`](super::MariadbServer::fill_disk).
    ///
    /// # Panics
    /// If it has a movable clock.
    #[must_use]
    pub fn with_fillable_disk(self) -> Self {
        self.with_shim(Shim::FillableDisk)
    }

    fn with_shim(mut self, shim: Shim) -> Self {
        assert!(self.shim.is_none_or(|other| other == shim), "one library at a time");
        self.shim = Some(shim);
        self
    }

    /// Makes the server the only node of a new Galera cluster.
    #[must_use]
    pub fn with_galera(mut self) -> Self {
        self.galera = true;
        self
    }

    pub(super) fn shim(&self) -> Option<Shim> {
        self.shim
    }

    pub(super) fn medium(&self) -> Medium {
        self.medium
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn password_of(&self, user: &str) -> Option<&str> {
        if user == ADMINISTRATOR {
            return self.password.as_deref();
        }
        self.users.iter().find(|(name, _)| name == user).map(|(_, password)| password.as_str())
    }

    /// Returns the statements that the server runs when it starts, a line each.
    pub(super) fn init_file(&self) -> String {
        let password = self.password.as_deref().unwrap_or("");
        let require = match self.tls {
            Some(TlsClients::WithCertificate) => " REQUIRE X509",
            _ => "",
        };
        let mut file = format!(
            "CREATE OR REPLACE USER {ADMINISTRATOR}@'127.0.0.1' IDENTIFIED BY {}{require};\n\
             GRANT ALL ON *.* TO {ADMINISTRATOR}@'127.0.0.1' WITH GRANT OPTION;\n\
             CREATE DATABASE IF NOT EXISTS app;\n",
            quoted(password)
        );
        for (name, password) in &self.users {
            let (name, password) = (quoted(name), quoted(password));
            let statement =
                format!("CREATE USER IF NOT EXISTS {name}@'127.0.0.1' IDENTIFIED BY {password}{require};\n");
            file.push_str(&statement);
        }
        file
    }

    pub(super) fn command(&self, folder: &Path, port: u16, tls: Option<&Certificates>) -> Vec<OsString> {
        let path = |option: &str, name: &str| format!("--{option}={}", folder.join(name).display());
        let mut args = vec!["mariadbd".into(), "--no-defaults".into(), format!("--port={port}")];
        args.extend(["--user=mysql".to_owned(), path("datadir", "data"), path("socket", "socket")]);
        args.extend([path("pid-file", "pid"), path("init-file", "init.sql")]);
        // A server that starts removes the temporary tables of all others in the same directory.
        args.push(format!("--tmpdir={}", folder.display()));
        if let Some(made) = tls {
            args.push(format!("--ssl-ca={}", made.ca.display()));
            args.push(format!("--ssl-cert={}", made.server_cert.display()));
            args.push(format!("--ssl-key={}", made.server_key.display()));
        }
        if self.galera {
            let group = free_port();
            args.extend(["--wsrep-on=ON", "--wsrep-cluster-address=gcomm://"].map(str::to_owned));
            args.extend(["--wsrep-node-address=127.0.0.1", "--binlog-format=ROW"].map(str::to_owned));
            args.push(format!("--wsrep-provider={GALERA}"));
            args.push(format!(
                "--wsrep-provider-options=base_port={group};gmcast.listen_addr=tcp://127.0.0.1:{group}"
            ));
        }
        args.iter().chain(&self.options).map(OsString::from).collect()
    }
}

/// Returns a value in the quotes of SQL.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "''"))
}
