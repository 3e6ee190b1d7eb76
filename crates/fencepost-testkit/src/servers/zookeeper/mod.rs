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

use super::start::{Supervised, start_together, start_together_again};
use super::supervisor::Supervisor;
use super::{Certificates, free_port, require, require_file};
use crate::wire::Wire;
use config::Place;
use ensemble::Wires;

/// How long a four letter word waits for its answer: one that stands still gives none.
const ANSWER: Duration = Duration::from_secs(5);

/// A running ZooKeeper, which stops when this is dropped or the process ends. Its data outlives [`ZooKeeperServer::kill`].
#[derive(Debug)]
pub struct ZooKeeperServer {
    setup: ZooKeeperServerConfig,
    port: u16,
    tls: Option<(u16, Certificates)>,
    wires: Wires,
    supervisor: Supervisor,
}

/// The one plain server of this process, for all tests that do not hurt it.
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
        // What it says when it has its port, so that it is itself who answers there, and when it has found the others.
        let words = if self.wires().next().is_some() { " - broadcast" } else { "ZooKeeper audit is" };
        self.supervisor.output().contains(words) && self.mode().is_some()
    }
}

impl ZooKeeperServer {
    /// Starts a server and waits until it takes connections.
    ///
    /// # Panics
    /// If it cannot be started, with what it says about that.
    pub fn start(setup: &ZooKeeperServerConfig) -> Self {
        java::require_all();
        let [server] = start_together(|| [Self::prepare_alone(setup)]);
        server
    }

    fn prepare_alone(setup: &ZooKeeperServerConfig) -> Self {
        Self::prepare(setup, &Place { port: free_port(), ensemble: None }, Wires::default())
    }

    fn prepare(setup: &ZooKeeperServerConfig, place: &Place, wires: Wires) -> Self {
        let folder =
            tempfile::Builder::new().prefix("fencepost-zookeeper-").tempdir().expect("there is room").keep();
        let tls = setup.has_tls().then(|| (free_port(), Certificates::make(&folder)));
        let command = setup.command(&folder, place, tls.as_ref());
        Self {
            setup: setup.clone(),
            port: place.port,
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

    /// Along which it talks to those of its ensemble.
    fn wires(&self) -> impl Iterator<Item = &Wire> {
        self.wires.iter().flatten()
    }

    /// Where the server is.
    pub fn url(&self) -> String {
        format!("zk://127.0.0.1:{}", self.port)
    }

    /// Where the server is, for a user of [`ZooKeeperServerConfig::with_sasl_user`].
    ///
    /// # Panics
    /// If there is no such user.
    pub fn sasl_url_as(&self, user: &str) -> String {
        let password = self.setup.password_of(user).expect("the user was set up");
        format!("zk://{user}:{password}@127.0.0.1:{}?auth=sasl", self.port)
    }

    /// Where the server speaks TLS, as the name that its certificate is for.
    ///
    /// # Panics
    /// If the set-up has no TLS.
    pub fn tls_url(&self) -> String {
        format!("zk://localhost:{}?tls=true", self.tls_port())
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

    /// What the server answers to a four letter word such as `srvr`.
    ///
    /// # Panics
    /// If it does not answer.
    #[track_caller]
    pub fn four_letter(&self, word: &str) -> String {
        self.try_four_letter(word).unwrap_or_else(|error| panic!("`{word}` was not answered: {error}"))
    }

    /// Like [`ZooKeeperServer::four_letter`], for a server that may be down or stand still.
    ///
    /// # Errors
    /// What is wrong with the connection.
    pub fn try_four_letter(&self, word: &str) -> io::Result<String> {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        connection.set_read_timeout(Some(ANSWER))?;
        connection.write_all(word.as_bytes())?;
        let mut said = String::new();
        connection.read_to_string(&mut said)?;
        Ok(said)
    }

    /// What it is at the moment: `standalone`, `leader` or `follower`, or nothing if it does not serve.
    pub fn mode(&self) -> Option<&'static str> {
        let said = self.try_four_letter("srvr").ok()?;
        let modes = ["standalone", "leader", "follower"];
        modes.into_iter().find(|mode| said.contains(&format!("Mode: {mode}")))
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

    /// Kills the process with SIGKILL. It is gone when this returns; what it has stored is not.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Starts the server again, on the same port and with what it has stored. Kills it first if it is running.
    ///
    /// # Panics
    /// If it does not start, or if it is one of an ensemble of which too few run.
    pub fn restart(&self) {
        self.start_again();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::servers::start::first_down;

    #[test]
    fn a_port_that_was_taken_meanwhile_is_noticed() {
        let server = ZooKeeperServer::prepare_alone(&ZooKeeperServerConfig::plain());
        let faster = TcpListener::bind((Ipv4Addr::LOCALHOST, server.port)).expect("it was free");
        server.supervisor.start();
        assert!(first_down(std::slice::from_ref(&server)).is_some());
        assert!(server.misses_a_port(), "{}", server.log());
        drop(faster);
        server.restart();
        assert_eq!(server.four_letter("ruok"), "imok");
    }
}
