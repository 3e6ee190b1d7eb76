//! Real etcd: one server, and a cluster of three.

mod cluster;
mod config;

use std::process::Command;
use std::sync::OnceLock;

use rustix::process::Signal;

pub use super::TlsClients;
pub use cluster::EtcdCluster;
pub use config::EtcdServerConfig;

use super::hanging_disk::HangingDisk;
use super::start::{Supervised, start_together, start_together_again};
use super::supervisor::Supervisor;
use super::{Certificates, free_port, require};
use config::{Place, ROOT_PASSWORD};

/// A running `etcd`, which stops when this is dropped or the process ends. Its data outlives [`EtcdServer::kill`].
#[derive(Debug)]
pub struct EtcdServer {
    setup: EtcdServerConfig,
    port: u16,
    tls: Option<(u16, Certificates)>,
    disk: Option<HangingDisk>,
    supervisor: Supervisor,
}

/// The one plain server of this process, for all tests that do not hurt it.
pub fn shared() -> &'static EtcdServer {
    static SHARED: OnceLock<EtcdServer> = OnceLock::new();
    SHARED.get_or_init(|| EtcdServer::start(&EtcdServerConfig::plain()))
}

fn require_programs() {
    require("etcd");
    require("etcdctl");
}

impl Supervised for EtcdServer {
    fn program(&self) -> &'static str {
        "etcd"
    }

    fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    fn is_ready(&self) -> bool {
        self.supervisor.output().contains("serving client traffic")
    }
}

impl EtcdServer {
    /// Starts a server and waits until it takes connections, and has the users of the set-up.
    ///
    /// # Panics
    /// If it cannot be started, with what it says about that.
    pub fn start(setup: &EtcdServerConfig) -> Self {
        require_programs();
        let [server] = start_together(|| [Self::prepare_alone(setup)]);
        server.add_users();
        server
    }

    fn prepare_alone(setup: &EtcdServerConfig) -> Self {
        let (name, peer_port) = ("alone".to_owned(), free_port());
        let cluster = Place::member(&name, peer_port);
        Self::prepare(setup, &Place { name, port: free_port(), peer_port, cluster })
    }

    fn prepare(setup: &EtcdServerConfig, place: &Place) -> Self {
        let folder =
            tempfile::Builder::new().prefix("fencepost-etcd-").tempdir().expect("there is room").keep();
        let tls = setup.has_tls().then(|| (free_port(), Certificates::make(&folder)));
        let command = setup.command(&folder, place, tls.as_ref());
        let disk = setup.has_hanging_disk().then(|| HangingDisk::make(&folder));
        let prefix = disk.as_ref().map(HangingDisk::prefix).into_iter().flatten();
        let supervisor = Supervisor::new(folder, prefix.chain(command));
        Self { setup: setup.clone(), port: place.port, tls, disk, supervisor }
    }

    fn add_users(&self) {
        if self.setup.users().is_empty() {
            return;
        }
        let add = |name: &str, password: &str| {
            let added = self.etcdctl().args(["user", "add", &format!("{name}:{password}")]).output();
            answer(added).expect("a user can be added");
        };
        add("root", ROOT_PASSWORD);
        self.setup.users().iter().for_each(|(name, password)| add(name, password));
        answer(self.etcdctl().args(["auth", "enable"]).output()).expect("users can be asked for");
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

    /// Where the server is; as `root` if it has users.
    pub fn url(&self) -> String {
        if self.setup.users().is_empty() {
            format!("etcd://127.0.0.1:{}", self.port)
        } else {
            format!("etcd://root:{ROOT_PASSWORD}@127.0.0.1:{}", self.port)
        }
    }

    /// Where the server is, for a user of [`EtcdServerConfig::with_user`].
    ///
    /// # Panics
    /// If there is no such user.
    pub fn url_as(&self, user: &str) -> String {
        let password = self.setup.password_of(user).expect("the user was set up");
        format!("etcd://{user}:{password}@127.0.0.1:{}", self.port)
    }

    /// Where the server speaks TLS, as the name that its certificate is for.
    ///
    /// # Panics
    /// If the set-up has no TLS.
    pub fn tls_url(&self) -> String {
        format!("etcds://localhost:{}", self.tls_port())
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

    /// Runs `etcdctl` on this server, as the user who may do everything, and returns what it says.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn ctl(&self, words: &[&str]) -> String {
        self.try_ctl(words).unwrap_or_else(|error| panic!("{words:?} was answered with: {error}"))
    }

    /// Like [`EtcdServer::ctl`], for words that may fail.
    ///
    /// # Errors
    /// What the server or `etcdctl` says is wrong.
    ///
    /// # Panics
    /// If `etcdctl` cannot be started.
    pub fn try_ctl(&self, words: &[&str]) -> Result<String, String> {
        answer(self.as_root(self.etcdctl()).args(words).output())
    }

    /// Like [`EtcdServer::try_ctl`], as a user of [`EtcdServerConfig::with_user`].
    ///
    /// # Errors
    /// What the server or `etcdctl` says is wrong.
    ///
    /// # Panics
    /// If there is no such user, or if `etcdctl` cannot be started.
    pub fn try_ctl_as(&self, user: &str, words: &[&str]) -> Result<String, String> {
        let password = self.setup.password_of(user).expect("the user was set up");
        answer(self.etcdctl().env("ETCDCTL_USER", format!("{user}:{password}")).args(words).output())
    }

    /// Runs a line of a shell in which `etcdctl` without further options is run on this server, as the user who may do
    /// everything: what `fencepost rights` prints is executed so.
    ///
    /// # Panics
    /// If the line fails.
    #[track_caller]
    pub fn run_shell(&self, line: &str) -> String {
        let mut shell = self.as_root(self.reaching(Command::new("sh")));
        let said = answer(shell.args(["-c", line]).output());
        said.unwrap_or_else(|error| panic!("`{line}` was answered with: {error}"))
    }

    /// An `etcdctl` that is nobody.
    fn etcdctl(&self) -> Command {
        self.reaching(Command::new("etcdctl"))
    }

    fn reaching(&self, mut command: Command) -> Command {
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", format!("127.0.0.1:{}", self.port));
        command
    }

    fn as_root(&self, mut command: Command) -> Command {
        if !self.setup.users().is_empty() {
            command.env("ETCDCTL_USER", format!("root:{ROOT_PASSWORD}"));
        }
        command
    }

    /// Whether it believes that it leads; one that does not answer does not.
    fn leads(&self) -> bool {
        let status = self.try_ctl(&["endpoint", "status", "--command-timeout=500ms", "--dial-timeout=500ms"]);
        status.is_ok_and(|line| line.split(", ").nth(4) == Some("true"))
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

    /// Every sync of the disk hangs from now on; the process goes on otherwise.
    ///
    /// # Panics
    /// If it was not set up [`with_hanging_disk`](EtcdServerConfig::with_hanging_disk).
    pub fn hang_disk(&self) {
        self.disk().hang();
    }

    /// The disk is back, and the syncs that hang return.
    ///
    /// # Panics
    /// If it was not set up [`with_hanging_disk`](EtcdServerConfig::with_hanging_disk), or does not hang.
    pub fn resume_disk(&self) {
        self.disk().mend();
    }

    fn disk(&self) -> &HangingDisk {
        self.disk.as_ref().expect("it was set up with a disk that hangs")
    }

    /// Kills the process with SIGKILL. It is gone when this returns; what it has stored is not.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Starts the server again, on the same port and with what it has stored. Kills it first if it is running.
    ///
    /// # Panics
    /// If it does not start, or if it is one of a cluster of which too few run.
    pub fn restart(&self) {
        self.start_again();
    }
}

/// What a command has said, or what it says is wrong.
fn answer(done: std::io::Result<std::process::Output>) -> Result<String, String> {
    let done = done.expect("the command can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::servers::start::first_down;

    #[test]
    fn a_port_that_was_taken_meanwhile_is_noticed() {
        let (name, port, peer_port) = ("alone".to_owned(), free_port(), free_port());
        let cluster = Place::member(&name, peer_port);
        let place = Place { name, port, peer_port, cluster };
        for taken in [port, peer_port] {
            let server = EtcdServer::prepare(&EtcdServerConfig::plain(), &place);
            let faster = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).expect("it was free");
            server.supervisor.start();
            assert!(first_down(std::slice::from_ref(&server)).is_some());
            assert!(server.misses_a_port(), "{}", server.log());
            drop(faster);
            server.restart();
            server.ctl(&["endpoint", "health"]);
        }
    }
}
