//! Real ZooKeeper: one server, and an ensemble of three.

mod cli;
mod config;
mod ensemble;
mod java;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;

pub use super::TlsClients;
pub use cli::CliLogin;
pub use config::ZooKeeperServerConfig;
pub use ensemble::Ensemble;

use super::start::{Supervised, restart_together, start_together};
use super::supervisor::Supervisor;
use super::{Certificates, free_port, require, require_file};
use crate::wire::Wire;
use config::ServerAddress;
use ensemble::Wires;

/// How long a four letter word waits for its reply: a paused server gives none.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A running ZooKeeper, which stops when this is dropped or the process ends. Its data outlives [`ZooKeeperServer::kill`].
#[derive(Debug)]
pub struct ZooKeeperServer {
    config: ZooKeeperServerConfig,
    port: u16,
    tls: Option<(u16, Certificates)>,
    wires: Wires,
    supervisor: Supervisor,
}

/// Returns the one plain server of this process, for all tests that do not disturb it.
pub fn shared() -> &'static ZooKeeperServer {
    static SHARED: OnceLock<ZooKeeperServer> = OnceLock::new();
    SHARED.get_or_init(|| ZooKeeperServer::start(&ZooKeeperServerConfig::plain()))
}

impl Supervised for ZooKeeperServer {
    fn program(&self) -> &'static str {
        "ZooKeeper"
    }

    fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    fn is_ready(&self) -> bool {
        // The message shows that it has its port, so that no other process replies there, and that it has found the others.
        let args = if self.wires().next().is_some() { " - broadcast" } else { "ZooKeeper audit is" };
        self.supervisor.output().contains(args) && self.mode().is_some()
    }
}

impl ZooKeeperServer {
    /// Starts a server and waits until it accepts connections.
    ///
    /// # Panics
    /// If it cannot be started, with its output.
    pub fn start(config: &ZooKeeperServerConfig) -> Self {
        java::require_all();
        let [server] = start_together(|| [Self::prepare_alone(config)]);
        server
    }

    fn prepare_alone(config: &ZooKeeperServerConfig) -> Self {
        Self::prepare(config, &ServerAddress { port: free_port(), ensemble: None }, Wires::default())
    }

    fn prepare(config: &ZooKeeperServerConfig, address: &ServerAddress, wires: Wires) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("fencepost-zookeeper-")
            .tempdir()
            .expect("a directory can be created")
            .keep();
        let tls = config.has_tls().then(|| (free_port(), Certificates::make(&folder)));
        let command = config.command(&folder, address, tls.as_ref());
        Self {
            config: config.clone(),
            port: address.port,
            tls,
            wires,
            supervisor: Supervisor::new(folder, command),
        }
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

    /// Returns the wires to the others of its ensemble.
    fn wires(&self) -> impl Iterator<Item = &Wire> {
        self.wires.iter().flatten()
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("zk://127.0.0.1:{}", self.port)
    }

    /// Returns the URL of the server for a user of [`ZooKeeperServerConfig::with_sasl_user`].
    ///
    /// # Panics
    /// If there is no such user.
    pub fn sasl_url_as(&self, user: &str) -> String {
        let password = self.config.password_of(user).expect("the user is configured");
        format!("zk://{user}:{password}@127.0.0.1:{}?auth=sasl", self.port)
    }

    /// Returns the URL of the TLS port, with the host name of its certificate.
    ///
    /// # Panics
    /// If it is configured without TLS.
    pub fn tls_url(&self) -> String {
        format!("zk://localhost:{}?tls=true", self.tls_port())
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

    /// Returns the reply of the server to a four letter word such as `srvr`.
    ///
    /// # Panics
    /// If it does not reply.
    #[track_caller]
    pub fn four_letter(&self, word: &str) -> String {
        self.try_four_letter(word).unwrap_or_else(|error| panic!("`{word}` had no reply: {error}"))
    }

    /// Like [`ZooKeeperServer::four_letter`], for a server that may be down or paused.
    ///
    /// # Errors
    /// The error of the connection.
    pub fn try_four_letter(&self, word: &str) -> io::Result<String> {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
        connection.write_all(word.as_bytes())?;
        let mut said = String::new();
        connection.read_to_string(&mut said)?;
        Ok(said)
    }

    /// Returns its role: `standalone`, `leader` or `follower`, or nothing if it does not serve.
    pub fn mode(&self) -> Option<&'static str> {
        let said = self.try_four_letter("srvr").ok()?;
        let modes = ["standalone", "leader", "follower"];
        modes.into_iter().find(|mode| said.contains(&format!("Mode: {mode}")))
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

    /// Restarts the server on the same port, with its data.
    ///
    /// # Panics
    /// If it does not start, or if too few servers of its ensemble run.
    pub fn restart(&self) {
        self.restart_server();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::servers::start::first_failed;

    #[test]
    fn a_port_that_was_taken_meanwhile_is_noticed() {
        let server = ZooKeeperServer::prepare_alone(&ZooKeeperServerConfig::plain());
        let other_listener = TcpListener::bind((Ipv4Addr::LOCALHOST, server.port)).expect("it was free");
        server.supervisor.start();
        assert!(first_failed(std::slice::from_ref(&server)).is_some());
        assert!(server.port_is_taken(), "{}", server.log());
        drop(other_listener);
        server.restart();
        assert_eq!(server.four_letter("ruok"), "imok");
    }
}
