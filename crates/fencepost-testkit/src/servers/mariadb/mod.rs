//! Real MariaDB: one server, or a primary with a replica.

mod config;
mod pair;
mod template;

use std::ffi::OsString;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::Signal;

pub use super::TlsClients;
pub use config::MariadbServerConfig;
pub use pair::MariadbPair;

use super::fillable_disk;
use super::movable_clock::MovableClock;
use super::preload::Preloaded;
use super::start::{Supervised, start_together};
use super::supervisor::Supervisor;
use super::{Certificates, free_port, require};
use crate::stress::Outage;
use crate::wait;
use config::{ADMINISTRATOR, Shim};

/// A running `mariadbd`, which stops when this is dropped or the process ends. Its data outlives [`MariadbServer::kill`].
#[derive(Debug)]
pub struct MariadbServer {
    config: MariadbServerConfig,
    port: u16,
    tls: Option<Certificates>,
    clock: Option<MovableClock>,
    disk: Option<Preloaded>,
    supervisor: Supervisor,
}

/// Returns the one plain server of this process, for all tests that do not disturb it.
pub fn shared() -> &'static MariadbServer {
    static SHARED: OnceLock<MariadbServer> = OnceLock::new();
    SHARED.get_or_init(|| MariadbServer::start(&MariadbServerConfig::plain()))
}

impl Supervised for MariadbServer {
    fn program(&self) -> &'static str {
        "mariadbd"
    }

    fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    fn is_ready(&self) -> bool {
        self.supervisor.output().contains("ready for connections.")
    }
}

impl MariadbServer {
    /// The database that every server has, besides those of the system.
    pub const DATABASE: &str = "app";

    /// Starts a server and waits until it accepts connections.
    ///
    /// # Panics
    /// If it cannot be started, with its output.
    pub fn start(config: &MariadbServerConfig) -> Self {
        ["mariadbd", "mariadb-install-db", "mariadb"].into_iter().for_each(require);
        let [server] = start_together(|| [Self::prepare(config)]);
        server
    }

    fn prepare(config: &MariadbServerConfig) -> Self {
        let (folder, port) = (template::temporary_folder(config.medium()), free_port());
        let tls = config.has_tls().then(|| Certificates::make(&folder));
        let clock = (config.shim() == Some(Shim::MovableClock)).then(|| MovableClock::make(&folder));
        let disk = (config.shim() == Some(Shim::FillableDisk))
            .then(|| Preloaded::make(fillable_disk::LIBRARY, &folder));
        let preload =
            clock.iter().flat_map(MovableClock::prefix).chain(disk.iter().flat_map(Preloaded::prefix));
        let command: Vec<OsString> = preload.chain(config.command(&folder, port, tls.as_ref())).collect();
        let supervisor = Supervisor::new(folder.clone(), command);
        std::fs::write(folder.join("init.sql"), config.init_file()).expect("it can be written");
        template::copy_to(&folder.join("data"));
        template::give(&folder);
        Self { config: config.clone(), port, tls, clock, disk, supervisor }
    }

    /// The port on 127.0.0.1, with and without TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificates of a server with TLS.
    ///
    /// # Panics
    /// If it is configured without TLS.
    pub fn certificates(&self) -> &Certificates {
        self.tls.as_ref().expect("it is configured with TLS")
    }

    /// Returns the URL of the database [`MariadbServer::DATABASE`], for the administrator, with its password if it has one.
    pub fn url(&self) -> String {
        self.url_as(ADMINISTRATOR)
    }

    /// Returns the URL of the database for a user, with the password of [`with_user`](MariadbServerConfig::with_user).
    pub fn url_as(&self, user: &str) -> String {
        self.url_on("127.0.0.1", user)
    }

    /// Returns the URL with the host name of the server's certificate. The options for TLS are left to the caller.
    ///
    /// # Panics
    /// If it is configured without TLS.
    pub fn tls_url(&self) -> String {
        assert!(self.tls.is_some(), "it is configured with TLS");
        self.url_on("localhost", ADMINISTRATOR)
    }

    fn url_on(&self, host: &str, user: &str) -> String {
        let password = self.config.password_of(user).map(|word| format!(":{word}")).unwrap_or_default();
        format!("mysql://{user}{password}@{host}:{}/{}", self.port, Self::DATABASE)
    }

    /// Returns the process id of the server.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.supervisor.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns the log of the server since it was started.
    pub fn log(&self) -> String {
        self.supervisor.output()
    }

    /// Runs statements in the database [`MariadbServer::DATABASE`] as the administrator. Returns the rows: a line each, with
    /// tabs between the columns.
    ///
    /// # Panics
    /// If one of them fails.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql:?} failed: {error}"))
    }

    /// Like [`MariadbServer::sql`], for statements that may fail.
    ///
    /// # Errors
    /// The error that the server or the client reports.
    ///
    /// # Panics
    /// If the client cannot be started.
    pub fn try_sql(&self, sql: &str) -> Result<String, String> {
        self.try_sql_as(ADMINISTRATOR, sql)
    }

    /// Like [`MariadbServer::try_sql`], as another user.
    ///
    /// # Errors
    /// The error that the server or the client reports.
    ///
    /// # Panics
    /// If the client cannot be started.
    pub fn try_sql_as(&self, user: &str, sql: &str) -> Result<String, String> {
        let port = format!("--port={}", self.port);
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--host=127.0.0.1", &port, "--user", user, "--batch"]);
        client.args(["--skip-column-names", "--connect-timeout=5", "--database", Self::DATABASE]);
        if let Some(password) = self.config.password_of(user) {
            client.env("MYSQL_PWD", password);
        }
        if let Some(made) = &self.tls {
            client.arg("--ssl-ca").arg(&made.ca);
            client.arg("--ssl-cert").arg(&made.client_cert).arg("--ssl-key").arg(&made.client_key);
        }
        let done = client.arg("--execute").arg(sql).output().expect("mariadb can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
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

    /// Kills the process with SIGKILL. It has ended when this returns; its data is kept.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Shuts the server down as a restart of its service does: connections are closed and the data is flushed. It has ended
    /// when this returns; [`MariadbServer::restart`] starts it again.
    ///
    /// # Panics
    /// If it is not running, or does not end.
    pub fn stop(&self) {
        self.supervisor.signal(Signal::TERM);
        let log = || format!("mariadbd did not stop: {}", self.log());
        wait::block_until_else(log, || !self.supervisor.is_alive());
    }

    /// Restarts the server on the same port, with its data; kills it first if it is running.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.restart_server();
    }

    /// Takes the server down for a while.
    ///
    /// # Panics
    /// If it does not start again.
    pub fn interrupt(&self, outage: Outage) {
        self.take_down(outage);
    }

    /// Sets the wall clock of the server this many seconds ahead of the machine's, or behind it; 0 resets it.
    ///
    /// # Panics
    /// If it was not configured [`with_movable_clock`](MariadbServerConfig::with_movable_clock).
    pub fn shift_clock(&self, seconds: i64) {
        self.clock.as_ref().expect("it is configured with a movable clock").set(seconds);
    }

    /// Fills the disk of the server: no file grows from now on, while what has its space already can be overwritten.
    ///
    /// # Panics
    /// If it was not configured [`with_fillable_disk`](MariadbServerConfig::with_fillable_disk).
    pub fn fill_disk(&self) {
        self.disk().set(1);
    }

    /// Gives the disk space again.
    ///
    /// # Panics
    /// If it was not configured [`with_fillable_disk`](MariadbServerConfig::with_fillable_disk).
    pub fn clear_disk(&self) {
        self.disk().set(0);
    }

    fn disk(&self) -> &Preloaded {
        self.disk.as_ref().expect("it is configured with a disk that can be filled")
    }
}
