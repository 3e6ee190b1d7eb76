//! Real Redis: one server, a primary with a replica and sentinels, a cluster.

mod cluster;
mod config;
mod sentinels;

use std::ffi::OsString;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::Signal;

pub use super::TlsClients;
pub use cluster::{Cluster, Replicas, SlotMigration};
pub use config::RedisServerConfig;
pub use sentinels::Sentinels;

use super::movable_clock::MovableClock;
use super::start::{Supervised, start_together};
use super::supervisor::Supervisor;
use super::{Certificates, free_port, require};

/// A running `redis-server`, which stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct RedisServer {
    config: RedisServerConfig,
    port: u16,
    tls: Option<(u16, Certificates)>,
    clock: Option<MovableClock>,
    supervisor: Supervisor,
}

/// Returns the one plain server of this process, for all tests that do not disturb it.
pub fn shared() -> &'static RedisServer {
    static SHARED: OnceLock<RedisServer> = OnceLock::new();
    SHARED.get_or_init(|| RedisServer::start(&RedisServerConfig::plain()))
}

impl Supervised for RedisServer {
    fn program(&self) -> &'static str {
        self.config.program()
    }

    fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    fn is_ready(&self) -> bool {
        self.supervisor.output().contains(self.config.ready_message())
    }
}

impl RedisServer {
    /// Starts a server and waits until it accepts connections.
    ///
    /// # Panics
    /// If it cannot be started, with its output.
    pub fn start(config: &RedisServerConfig) -> Self {
        require(config.program());
        require("redis-cli");
        let [server] = start_together(|| [Self::prepare(config.clone())]);
        server
    }

    fn prepare(config: RedisServerConfig) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("fencepost-redis-")
            .tempdir()
            .expect("a directory can be created")
            .keep();
        let port = free_port();
        let tls = config.tls().map(|_| (free_port(), Certificates::make(&folder)));
        let clock = config.has_movable_clock().then(|| MovableClock::make(&folder));
        let file = folder.join("redis.conf");
        std::fs::write(&file, config.config_file(&folder, port, tls.as_ref())).expect("it can be written");
        let preload = clock.iter().flat_map(MovableClock::prefix);
        let command: Vec<OsString> =
            preload.chain([OsString::from(config.program()), file.into_os_string()]).collect();
        Self { config, port, tls, clock, supervisor: Supervisor::new(folder, command) }
    }

    /// The port on 127.0.0.1 for connections without TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for TLS.
    ///
    /// # Panics
    /// If it is configured without TLS.
    pub fn tls_port(&self) -> u16 {
        self.tls().0
    }

    /// The certificates of a server with TLS.
    ///
    /// # Panics
    /// If it is configured without TLS.
    pub fn certificates(&self) -> &Certificates {
        &self.tls().1
    }

    fn tls(&self) -> &(u16, Certificates) {
        self.tls.as_ref().expect("it is configured with TLS")
    }

    /// Returns the URL of the server, with its password if it has one.
    pub fn url(&self) -> String {
        match self.config.password() {
            Some(password) => format!("redis://default:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// Returns the URL of the server for a user of [`RedisServerConfig::with_user`].
    ///
    /// # Panics
    /// If there is no such user.
    pub fn url_as(&self, user: &str) -> String {
        let password = self.config.password_of(user).expect("the user is configured");
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    /// Returns the URL of the TLS port, with the host name of its certificate.
    ///
    /// # Panics
    /// If it is configured without TLS.
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.tls_port())
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

    /// Sends a command with `redis-cli`, as the user `default`, and returns the reply.
    ///
    /// # Panics
    /// If the reply is an error.
    #[track_caller]
    pub fn cli(&self, command: &[&str]) -> String {
        self.try_cli(command).unwrap_or_else(|error| panic!("{command:?} failed: {error}"))
    }

    /// Like [`RedisServer::cli`], for a command that may fail.
    ///
    /// # Errors
    /// The error that the server or `redis-cli` reports.
    ///
    /// # Panics
    /// If `redis-cli` cannot be started.
    pub fn try_cli(&self, command: &[&str]) -> Result<String, String> {
        let mut cli = Command::new("redis-cli");
        cli.args(["-e", "-p", &self.port.to_string()]).args(command);
        if let Some(password) = self.config.password() {
            cli.env("REDISCLI_AUTH", password);
        }
        let answer = cli.output().expect("redis-cli can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if answer.status.success() { Ok(text(&answer.stdout)) } else { Err(text(&answer.stderr)) }
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

    /// Restarts the server, on the same port and in the same directory: empty unless it is configured to persist.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.restart_server();
    }

    /// Sets the wall clock of the server this many seconds ahead of the machine's, or behind it; 0 resets it.
    ///
    /// # Panics
    /// If it was not configured [`with_movable_clock`](RedisServerConfig::with_movable_clock).
    pub fn shift_clock(&self, seconds: i64) {
        self.clock.as_ref().expect("it is configured with a movable clock").set(seconds);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::servers::start::first_failed;

    #[test]
    fn a_port_that_was_taken_meanwhile_is_noticed() {
        let config = RedisServerConfig::plain().with_config("cluster-enabled yes");
        // The second is the cluster bus.
        for offset in [0, 10_000] {
            let server = RedisServer::prepare(config.clone());
            let other_listener =
                TcpListener::bind((Ipv4Addr::LOCALHOST, server.port + offset)).expect("it was free");
            server.supervisor.start();
            assert!(first_failed(std::slice::from_ref(&server)).is_some());
            assert!(server.port_is_taken(), "{}", server.log());
            drop(other_listener);
            server.restart();
            assert_eq!(server.cli(&["PING"]), "PONG");
        }
    }
}
