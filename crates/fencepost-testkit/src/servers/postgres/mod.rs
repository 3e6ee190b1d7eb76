//! Real PostgreSQL: one server, a primary with a standby, and `PgBouncer` in front of one.

mod bouncer;
mod config;
mod pair;
mod processes;
mod programs;
mod psql;
mod template;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::Signal;

pub use super::TlsClients;
pub use bouncer::PgBouncer;
pub use config::PostgresServerConfig;
pub use pair::{PostgresPair, Replication};
pub use programs::program;

use super::fillable_disk;
use super::movable_clock::MovableClock;
use super::preload::Preloaded;
use super::start::{Supervised, start_together};
use super::supervisor::Supervisor;
use super::{Certificates, free_port};
use crate::stress::Outage;
use crate::wait;
use config::Shim;
use psql::Login;
use template::SUPERUSER;

/// Removes what a killed server leaves outside of its directory: a shared memory segment, whose id is in its lock file.
const AT_END: &str = r#"set -- $(sed -n 7p "${0%/*}/data/postmaster.pid"); [ -z "$2" ] || ipcrm -m "$2""#;

/// A running `postgres`, which stops when this is dropped or the process ends. Its data outlives [`PostgresServer::kill`].
#[derive(Debug)]
pub struct PostgresServer {
    config: PostgresServerConfig,
    port: u16,
    tls: Option<Certificates>,
    clock: Option<MovableClock>,
    disk: Option<Preloaded>,
    supervisor: Supervisor,
}

/// Returns the one plain server of this process, for all tests that do not disturb it.
pub fn shared() -> &'static PostgresServer {
    static SHARED: OnceLock<PostgresServer> = OnceLock::new();
    SHARED.get_or_init(|| PostgresServer::start(&PostgresServerConfig::plain()))
}

fn temporary_folder() -> PathBuf {
    let folder = tempfile::Builder::new().prefix("fencepost-postgres-").tempdir();
    folder.expect("a directory can be created").keep()
}

impl Supervised for PostgresServer {
    fn program(&self) -> &'static str {
        "postgres"
    }

    fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    fn is_ready(&self) -> bool {
        // A standby says "… accept read-only connections".
        self.supervisor.output().contains("database system is ready to accept")
    }

    fn restart_server(&self) {
        self.kill();
        self.supervisor.start();
        self.wait_until_ready();
    }

    fn take_down(&self, outage: Outage) {
        match outage {
            Outage::Killed(time) => {
                self.kill();
                wait::block_thread_for(time);
                self.restart_server();
            }
            Outage::Stopped(time) => {
                self.pause();
                wait::block_thread_for(time);
                self.resume();
            }
        }
    }
}

impl PostgresServer {
    /// Starts a server and waits until it accepts connections.
    ///
    /// # Panics
    /// If it cannot be started, with its output.
    pub fn start(config: &PostgresServerConfig) -> Self {
        let [server] = start_together(|| [Self::prepare(config, |data| create(config, data))]);
        server
    }

    /// Prepares a server whose data directory is created by `create_data`.
    fn prepare(config: &PostgresServerConfig, create_data: impl Fn(&Path)) -> Self {
        let (folder, port) = (temporary_folder(), free_port());
        let tls = config.has_tls().then(|| Certificates::make(&folder));
        let clock = (config.shim() == Some(Shim::MovableClock)).then(|| MovableClock::make(&folder));
        let disk = (config.shim() == Some(Shim::FillableDisk))
            .then(|| Preloaded::make(fillable_disk::LIBRARY, &folder));
        let data = folder.join("data");
        let postgres = [programs::program("postgres").into(), "-D".into(), data.clone().into()];
        let preload =
            clock.iter().flat_map(MovableClock::prefix).chain(disk.iter().flat_map(Preloaded::prefix));
        let command: Vec<OsString> = preload.chain(programs::server_prefix()).chain(postgres).collect();
        let supervisor = Supervisor::new(folder.clone(), command);
        programs::give(&folder);
        create_data(&data);
        let write = |file: PathBuf, text: &str| std::fs::write(file, text).expect("it can be written");
        write(data.join("postgresql.conf"), &config.config_file(port, tls.as_ref()));
        write(data.join("pg_hba.conf"), &config.access_file());
        write(folder.join("at_end"), AT_END);
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

    /// Returns the URL of a database, for the superuser `postgres`, with its password if it has one.
    pub fn url(&self, database: &str) -> String {
        self.url_on("127.0.0.1", SUPERUSER, database)
    }

    /// Returns the URL of a database for a user, with the password of
    /// [`with_user`](PostgresServerConfig::with_user), if it has one.
    pub fn url_as(&self, user: &str, database: &str) -> String {
        self.url_on("127.0.0.1", user, database)
    }

    /// Returns the URL of a database, with the host name of the server's certificate. The options for TLS are left to the
    /// caller.
    ///
    /// # Panics
    /// If it is configured without TLS.
    pub fn tls_url(&self, database: &str) -> String {
        assert!(self.tls.is_some(), "it is configured with TLS");
        self.url_on("localhost", SUPERUSER, database)
    }

    fn url_on(&self, host: &str, user: &str, database: &str) -> String {
        let password = self.config.password_of(user).map(|word| format!(":{word}")).unwrap_or_default();
        format!("postgres://{user}{password}@{host}:{}/{database}", self.port)
    }

    /// Returns the process id of the server: of the process that listens.
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

    /// Runs statements with `psql` in the database `postgres`, as superuser, each in a transaction of its own unless they
    /// contain `BEGIN`. Returns the rows: a line each, with `|` between the columns.
    ///
    /// # Panics
    /// If one of them fails.
    #[track_caller]
    pub fn psql(&self, sql: &str) -> String {
        self.psql_in(SUPERUSER, sql)
    }

    /// Like [`PostgresServer::psql`], in another database.
    ///
    /// # Panics
    /// If one of the statements fails.
    #[track_caller]
    pub fn psql_in(&self, database: &str, sql: &str) -> String {
        self.try_psql(database, sql).unwrap_or_else(|error| panic!("{sql:?} failed: {error}"))
    }

    /// Like [`PostgresServer::psql_in`], for statements that may fail.
    ///
    /// # Errors
    /// The error that the server or `psql` reports.
    ///
    /// # Panics
    /// If `psql` cannot be started.
    pub fn try_psql(&self, database: &str, sql: &str) -> Result<String, String> {
        self.try_psql_as(SUPERUSER, database, sql)
    }

    /// Like [`PostgresServer::try_psql`], as another user.
    ///
    /// # Errors
    /// The error that the server or `psql` reports.
    ///
    /// # Panics
    /// If `psql` cannot be started.
    pub fn try_psql_as(&self, user: &str, database: &str, sql: &str) -> Result<String, String> {
        let tls = self.tls.as_ref().filter(|_| self.config.is_encrypted_only());
        Login { port: self.port, user, password: self.config.password_of(user), tls }.run(database, sql)
    }

    /// Creates an empty database.
    ///
    /// # Panics
    /// If it exists.
    pub fn create_database(&self, name: &str) {
        self.psql(&format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\"")));
    }

    /// Changes a setting of the running server with `ALTER SYSTEM`, and waits until new connections have it.
    ///
    /// # Panics
    /// If there is no such setting, or if it takes a restart.
    pub fn change_setting(&self, name: &str, value: &str) {
        let value = value.replace('\'', "''");
        self.psql(&format!("ALTER SYSTEM SET {name} = '{value}'"));
        self.reload();
    }

    /// Makes the server read its configuration files, and waits until it has.
    ///
    /// # Panics
    /// If it is not running.
    pub fn reload(&self) {
        let loaded = || self.psql("SELECT pg_conf_load_time()");
        let before = loaded();
        self.psql("SELECT pg_reload_conf()");
        wait::block_until("the configuration is loaded", || loaded() != before);
    }

    /// Stops all processes of the server with SIGSTOP; its connections stay open.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pause(&self) {
        processes::stop_all(self.supervisor.pid());
    }

    /// Continues the processes.
    ///
    /// # Panics
    /// If it was killed.
    pub fn resume(&self) {
        processes::continue_all(self.supervisor.pid());
    }

    /// Kills all processes of the server with SIGKILL, if it is running. They have ended when this returns; the data is kept.
    pub fn kill(&self) {
        let children =
            if self.supervisor.is_alive() { processes::stop_all(self.supervisor.pid()) } else { Vec::new() };
        self.supervisor.kill();
        processes::wait_for_the_end(&children);
    }

    /// Shuts the server down as a restart of its service does: connections are closed and the data is flushed. It has ended
    /// when this returns; [`PostgresServer::restart`] starts it again.
    ///
    /// # Panics
    /// If it is not running, or does not end.
    pub fn stop(&self) {
        self.supervisor.signal(Signal::INT);
        wait::block_until_else(
            || format!("postgres did not stop: {}", self.log()),
            || !self.supervisor.is_alive(),
        );
    }

    /// Restarts the server on the same port, with its data; kills it first if it is running.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.restart_server();
    }

    /// Sets the wall clock of the server this many seconds ahead of the machine's, or behind it; 0 resets it.
    ///
    /// # Panics
    /// If it was not configured [`with_movable_clock`](PostgresServerConfig::with_movable_clock).
    pub fn shift_clock(&self, seconds: i64) {
        self.clock.as_ref().expect("it is configured with a movable clock").set(seconds);
    }

    /// Fills the disk of the server: no file grows from now on, while what has its space already can be overwritten.
    ///
    /// # Panics
    /// If it was not configured [`with_fillable_disk`](PostgresServerConfig::with_fillable_disk).
    pub fn fill_disk(&self) {
        self.disk().set(1);
    }

    /// Gives the disk space again.
    ///
    /// # Panics
    /// If it was not configured [`with_fillable_disk`](PostgresServerConfig::with_fillable_disk).
    pub fn clear_disk(&self) {
        self.disk().set(0);
    }

    fn disk(&self) -> &Preloaded {
        self.disk.as_ref().expect("it is configured with a disk that can be filled")
    }
}

/// Creates the data directory of a new server.
fn create(config: &PostgresServerConfig, data: &Path) {
    template::copy_to(data);
    template::run_single(data, &config.statements());
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::servers::start::first_failed;

    fn assert_notices_a_taken_port<S: Supervised>(server: &S, port: u16) {
        let other_listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("it was free");
        server.supervisor().start();
        assert!(first_failed(std::slice::from_ref(server)).is_some());
        assert!(server.port_is_taken(), "{}", server.supervisor().output());
        drop(other_listener);
        server.restart_server();
    }

    #[test]
    fn a_port_that_was_taken_meanwhile_is_noticed() {
        let config = PostgresServerConfig::plain();
        let server = PostgresServer::prepare(&config, |data| create(&config, data));
        assert_notices_a_taken_port(&server, server.port);
        assert_eq!(server.psql("SELECT 1"), "1");
        let bouncer = PgBouncer::prepare(&server, &[]);
        assert_notices_a_taken_port(&bouncer, bouncer.port());
        assert_eq!(bouncer.try_psql("postgres", "SELECT 1"), Ok("1".into()));
    }
}
