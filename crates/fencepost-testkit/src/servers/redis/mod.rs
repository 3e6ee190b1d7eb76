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
    setup: RedisServerConfig,
    port: u16,
    tls: Option<(u16, Certificates)>,
    clock: Option<MovableClock>,
    supervisor: Supervisor,
}

/// The one plain server of this process, for all tests that do not hurt it.
pub fn shared() -> &'static RedisServer {
    static SHARED: OnceLock<RedisServer> = OnceLock::new();
    SHARED.get_or_init(|| RedisServer::start(&RedisServerConfig::plain()))
}

impl Supervised for RedisServer {
    fn program(&self) -> &'static str {
        self.setup.program()
    }

    fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    fn is_ready(&self) -> bool {
        self.supervisor.output().contains(self.setup.ready_words())
    }
}

impl RedisServer {
    /// Starts a server and waits until it takes connections.
    ///
    /// # Panics
    /// If it cannot be started, with what it says about that.
    pub fn start(setup: &RedisServerConfig) -> Self {
        require(setup.program());
        require("redis-cli");
        let [server] = start_together(|| [Self::prepare(setup.clone())]);
        server
    }

    fn prepare(setup: RedisServerConfig) -> Self {
        let folder =
            tempfile::Builder::new().prefix("fencepost-redis-").tempdir().expect("there is room").keep();
        let port = free_port();
        let tls = setup.tls().map(|_| (free_port(), Certificates::make(&folder)));
        let clock = setup.has_movable_clock().then(|| MovableClock::make(&folder));
        let config = folder.join("redis.conf");
        std::fs::write(&config, setup.config_file(&folder, port, tls.as_ref())).expect("it can be written");
        let preload = clock.iter().flat_map(MovableClock::prefix);
        let command: Vec<OsString> =
            preload.chain([OsString::from(setup.program()), config.into_os_string()]).collect();
        Self { setup, port, tls, clock, supervisor: Supervisor::new(folder, command) }
    }

    /// The port on 127.0.0.1 for connections without TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for TLS.
    ///
    /// # Panics
    /// If the set-up has none.
    pub fn tls_port(&self) -> u16 {
        self.tls().0
    }

    /// The certificates of a server with TLS.
    ///
    /// # Panics
    /// If the set-up has none.
    pub fn certificates(&self) -> &Certificates {
        &self.tls().1
    }

    fn tls(&self) -> &(u16, Certificates) {
        self.tls.as_ref().expect("it was set up with TLS")
    }

    /// Where the server is, with its password if it has one.
    pub fn url(&self) -> String {
        match self.setup.password() {
            Some(password) => format!("redis://default:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// Where the server is, for a user of [`RedisServerConfig::with_user`].
    ///
    /// # Panics
    /// If there is no such user.
    pub fn url_as(&self, user: &str) -> String {
        let password = self.setup.password_of(user).expect("the user was set up");
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    /// Where the server speaks TLS, as the name that its certificate is for.
    ///
    /// # Panics
    /// If the set-up has no TLS.
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.tls_port())
    }

    /// The process of the server.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.supervisor.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// What the server has written into its log since it was started.
    pub fn log(&self) -> String {
        self.supervisor.output()
    }

    /// Sends a command with `redis-cli`, as the user who may do everything, and returns the answer.
    ///
    /// # Panics
    /// If the answer is an error.
    #[track_caller]
    pub fn cli(&self, command: &[&str]) -> String {
        self.try_cli(command).unwrap_or_else(|error| panic!("{command:?} was answered with: {error}"))
    }

    /// Like [`RedisServer::cli`], for a command that may fail.
    ///
    /// # Errors
    /// What the server or `redis-cli` says is wrong.
    ///
    /// # Panics
    /// If `redis-cli` cannot be started.
    pub fn try_cli(&self, command: &[&str]) -> Result<String, String> {
        let mut cli = Command::new("redis-cli");
        cli.args(["-e", "-p", &self.port.to_string()]).args(command);
        if let Some(password) = self.setup.password() {
            cli.env("REDISCLI_AUTH", password);
        }
        let answer = cli.output().expect("redis-cli can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if answer.status.success() { Ok(text(&answer.stdout)) } else { Err(text(&answer.stderr)) }
    }

    /// The process stands still; connections stay.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pause(&self) {
        self.supervisor.pause();
    }

    /// The process goes on.
    ///
    /// # Panics
    /// If it was killed.
    pub fn resume(&self) {
        self.supervisor.signal(Signal::CONT);
    }

    /// Kills the process with SIGKILL. It is gone when this returns.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Starts the server again, on the same port and in the same folder: empty unless the set-up persists. Kills it first
    /// if it is running.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.start_again();
    }

    /// From now on the server's wall clock is so many seconds ahead of the machine's, or behind it; 0 puts it right.
    ///
    /// # Panics
    /// If it was not set up [`with_movable_clock`](RedisServerConfig::with_movable_clock).
    pub fn shift_clock(&self, seconds: i64) {
        self.clock.as_ref().expect("it was set up with a movable clock").set(seconds);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::servers::start::first_down;

    #[test]
    fn a_port_that_was_taken_meanwhile_is_noticed() {
        let setup = RedisServerConfig::plain().with_config("cluster-enabled yes");
        // The second is where the nodes of a cluster talk to each other.
        for offset in [0, 10_000] {
            let server = RedisServer::prepare(setup.clone());
            let faster = TcpListener::bind((Ipv4Addr::LOCALHOST, server.port + offset)).expect("it was free");
            server.supervisor.start();
            assert!(first_down(std::slice::from_ref(&server)).is_some());
            assert!(server.misses_a_port(), "{}", server.log());
            drop(faster);
            server.restart();
            assert_eq!(server.cli(&["PING"]), "PONG");
        }
    }
}
