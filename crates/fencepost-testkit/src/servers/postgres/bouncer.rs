//! `PgBouncer` in front of a server.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::super::{free_port, require_file};
use super::psql::Login;
use super::{PostgresServer, SUPERUSER, Supervised, Supervisor, programs, start_together, temporary_folder};

/// Debian's package installs it here, which is not on the `PATH` of all users.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A running `pgbouncer`, which stops when this is dropped or the process ends.
///
/// It has the users of its server, who log in with the same passwords.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    password: Option<String>,
    supervisor: Supervisor,
}

impl Supervised for PgBouncer {
    fn program(&self) -> &'static str {
        "pgbouncer"
    }

    fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    fn is_ready(&self) -> bool {
        self.supervisor.output().contains("process up")
    }
}

impl PgBouncer {
    /// Starts it with `pool_mode = transaction`: each transaction may run on another connection of the server.
    ///
    /// # Panics
    /// If it cannot be started, with its output.
    pub fn start(server: &PostgresServer) -> Self {
        Self::start_with(server, &[])
    }

    /// Like [`PgBouncer::start`], with further lines of the configuration, such as `default_pool_size = 1`; later ones win.
    ///
    /// # Panics
    /// If it cannot be started, with its output.
    pub fn start_with(server: &PostgresServer, lines: &[&str]) -> Self {
        require_file(Path::new(PROGRAM));
        let [bouncer] = start_together(|| [Self::prepare(server, lines)]);
        bouncer
    }

    pub(super) fn prepare(server: &PostgresServer, lines: &[&str]) -> Self {
        let (folder, port) = (temporary_folder(), free_port());
        let write = |name: &str, text: String| -> PathBuf {
            let file = folder.join(name);
            std::fs::write(&file, text).expect("it can be written");
            file
        };
        let users = write("users", users(server));
        let config = write("pgbouncer.ini", config_file(server, port, &users, lines));
        programs::give(&folder);
        let command = programs::server_prefix().into_iter().chain([PROGRAM.into(), config.into()]);
        let password = server.config.password_of(SUPERUSER).map(str::to_owned);
        Self { port, password, supervisor: Supervisor::new(folder, command) }
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of a database of the server, for the superuser `postgres`, with its password if it has one.
    pub fn url(&self, database: &str) -> String {
        let password = self.password.as_ref().map(|word| format!(":{word}")).unwrap_or_default();
        format!("postgres://{SUPERUSER}{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs statements with `psql`, as [`PostgresServer::try_psql`] does. The database `pgbouncer` knows `SHOW POOLS` and the
    /// like.
    ///
    /// # Errors
    /// The error that the server, `pgbouncer` or `psql` reports.
    ///
    /// # Panics
    /// If `psql` cannot be started.
    pub fn try_psql(&self, database: &str, sql: &str) -> Result<String, String> {
        let login = Login { port: self.port, user: SUPERUSER, password: self.password.as_deref(), tls: None };
        login.run(database, sql)
    }

    /// Returns the process id.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.supervisor.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns the log since it was started.
    pub fn log(&self) -> String {
        self.supervisor.output()
    }

    /// Stops the process with SIGSTOP; its connections stay open.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pause(&self) {
        self.supervisor.pause();
    }

    /// Continues the process.
    ///
    /// # Panics
    /// If it was killed.
    pub fn resume(&self) {
        self.supervisor.signal(Signal::CONT);
    }

    /// Kills the process with SIGKILL. It has ended when this returns.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Restarts it on the same port.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.restart_server();
    }
}

/// Returns the text of the file with the users and their passwords.
fn users(server: &PostgresServer) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut file = String::new();
    for (name, word) in server.config.users() {
        let _ = writeln!(file, "{} {}", quoted(name), quoted(word.unwrap_or_default()));
    }
    file
}

fn config_file(server: &PostgresServer, port: u16, users: &Path, lines: &[&str]) -> String {
    let has_passwords = server.config.password_of(SUPERUSER).is_some();
    let mut file = format!("[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\n", server.port());
    let _ = writeln!(file, "listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =");
    let _ = writeln!(file, "auth_type = {}", if has_passwords { "scram-sha-256" } else { "trust" });
    let _ = writeln!(file, "auth_file = {}\nadmin_users = {SUPERUSER}", users.display());
    let _ = writeln!(file, "pool_mode = transaction\nmax_client_conn = 500");
    let tls = if server.config.is_encrypted_only() { "require" } else { "disable" };
    let _ = writeln!(file, "server_tls_sslmode = {tls}");
    for line in lines {
        let _ = writeln!(file, "{line}");
    }
    file
}
