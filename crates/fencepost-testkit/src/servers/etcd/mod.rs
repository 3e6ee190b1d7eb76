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
use super::start::{Supervised, restart_together, start_together};
use super::supervisor::Supervisor;
use super::{Certificates, free_port, require};
use config::{MemberAddress, ROOT_PASSWORD};

/// A running `etcd`, which stops when this is dropped or the process ends. Its data outlives [`EtcdServer::kill`].
#[derive(Debug)]
pub struct EtcdServer {
    config: EtcdServerConfig,
    port: u16,
    tls: Option<(u16, Certificates)>,
    disk: Option<HangingDisk>,
    supervisor: Supervisor,
}

/// Returns the one plain server of this process, for all tests that do not disturb it.
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
    /// Starts a server, waits until it accepts connections, and adds the configured users.
    ///
    /// # Panics
    /// If it cannot be started, with its output.
    pub fn start(config: &EtcdServerConfig) -> Self {
        require_programs();
        let [server] = start_together(|| [Self::prepare_alone(config)]);
        server.add_users();
        server
    }

    fn prepare_alone(config: &EtcdServerConfig) -> Self {
        let (name, peer_port) = ("alone".to_owned(), free_port());
        let cluster = MemberAddress::member(&name, peer_port);
        Self::prepare(config, &MemberAddress { name, port: free_port(), peer_port, cluster })
    }

    fn prepare(config: &EtcdServerConfig, address: &MemberAddress) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("fencepost-etcd-")
            .tempdir()
            .expect("a directory can be created")
            .keep();
        let tls = config.has_tls().then(|| (free_port(), Certificates::make(&folder)));
        let command = config.command(&folder, address, tls.as_ref());
        let disk = config.has_hanging_disk().then(|| HangingDisk::make(&folder));
        let prefix = disk.as_ref().map(HangingDisk::prefix).into_iter().flatten();
        let supervisor = Supervisor::new(folder, prefix.chain(command));
        Self { config: config.clone(), port: address.port, tls, disk, supervisor }
    }

    fn add_users(&self) {
        if self.config.users().is_empty() {
            return;
        }
        let add = |name: &str, password: &str| {
            let added = self.etcdctl().args(["user", "add", &format!("{name}:{password}")]).output();
            output(added).expect("a user can be added");
        };
        add("root", ROOT_PASSWORD);
        self.config.users().iter().for_each(|(name, password)| add(name, password));
        output(self.etcdctl().args(["auth", "enable"]).output()).expect("users can be asked for");
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

    /// Returns the URL of the server; as `root` if it has users.
    pub fn url(&self) -> String {
        if self.config.users().is_empty() {
            format!("etcd://127.0.0.1:{}", self.port)
        } else {
            format!("etcd://root:{ROOT_PASSWORD}@127.0.0.1:{}", self.port)
        }
    }

    /// Returns the URL of the server for a user of [`EtcdServerConfig::with_user`].
    ///
    /// # Panics
    /// If there is no such user.
    pub fn url_as(&self, user: &str) -> String {
        let password = self.config.password_of(user).expect("the user is configured");
        format!("etcd://{user}:{password}@127.0.0.1:{}", self.port)
    }

    /// Returns the URL of the TLS port, with the host name of its certificate.
    ///
    /// # Panics
    /// If it is configured without TLS.
    pub fn tls_url(&self) -> String {
        format!("etcds://localhost:{}", self.tls_port())
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

    /// Runs `etcdctl` on this server, as `root` if it has users, and returns its output.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> String {
        self.try_ctl(args).unwrap_or_else(|error| panic!("{args:?} failed: {error}"))
    }

    /// Like [`EtcdServer::ctl`], for commands that may fail.
    ///
    /// # Errors
    /// The error that the server or `etcdctl` reports.
    ///
    /// # Panics
    /// If `etcdctl` cannot be started.
    pub fn try_ctl(&self, args: &[&str]) -> Result<String, String> {
        output(self.as_root(self.etcdctl()).args(args).output())
    }

    /// Like [`EtcdServer::try_ctl`], as a user of [`EtcdServerConfig::with_user`].
    ///
    /// # Errors
    /// The error that the server or `etcdctl` reports.
    ///
    /// # Panics
    /// If there is no such user, or if `etcdctl` cannot be started.
    pub fn try_ctl_as(&self, user: &str, args: &[&str]) -> Result<String, String> {
        let password = self.config.password_of(user).expect("the user is configured");
        output(self.etcdctl().env("ETCDCTL_USER", format!("{user}:{password}")).args(args).output())
    }

    /// Runs a line of shell code in which a plain `etcdctl` is connected to this server, as `root` if it has users: for what
    /// `fencepost rights` prints.
    ///
    /// # Panics
    /// If the line fails.
    #[track_caller]
    pub fn run_shell(&self, line: &str) -> String {
        let mut shell = self.as_root(self.reaching(Command::new("sh")));
        let said = output(shell.args(["-c", line]).output());
        said.unwrap_or_else(|error| panic!("`{line}` failed: {error}"))
    }

    /// Returns an `etcdctl` without a user.
    fn etcdctl(&self) -> Command {
        self.reaching(Command::new("etcdctl"))
    }

    fn reaching(&self, mut command: Command) -> Command {
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", format!("127.0.0.1:{}", self.port));
        command
    }

    fn as_root(&self, mut command: Command) -> Command {
        if !self.config.users().is_empty() {
            command.env("ETCDCTL_USER", format!("root:{ROOT_PASSWORD}"));
        }
        command
    }

    /// Returns whether it considers itself the leader; false if it does not reply.
    fn leads(&self) -> bool {
        let status = self.try_ctl(&["endpoint", "status", "--command-timeout=500ms", "--dial-timeout=500ms"]);
        status.is_ok_and(|line| line.split(", ").nth(4) == Some("true"))
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

    /// Makes every sync of the disk hang from now on; the process runs on otherwise.
    ///
    /// # Panics
    /// If it was not configured [`with_hanging_disk`](EtcdServerConfig::with_hanging_disk).
    pub fn hang_disk(&self) {
        self.disk().hang();
    }

    /// Completes the hanging syncs.
    ///
    /// # Panics
    /// If it was not configured [`with_hanging_disk`](EtcdServerConfig::with_hanging_disk), or does not hang.
    pub fn resume_disk(&self) {
        self.disk().resume();
    }

    fn disk(&self) -> &HangingDisk {
        self.disk.as_ref().expect("it is configured with a hanging disk")
    }

    /// Kills the process with SIGKILL. It has ended when this returns; its data is kept.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Restarts the server on the same port, with its data.
    ///
    /// # Panics
    /// If it does not start, or if too few members of its cluster run.
    pub fn restart(&self) {
        self.restart_server();
    }
}

/// Returns the output of a command, or its error.
fn output(done: std::io::Result<std::process::Output>) -> Result<String, String> {
    let done = done.expect("the command can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::servers::start::first_failed;

    #[test]
    fn a_port_that_was_taken_meanwhile_is_noticed() {
        let (name, port, peer_port) = ("alone".to_owned(), free_port(), free_port());
        let cluster = MemberAddress::member(&name, peer_port);
        let address = MemberAddress { name, port, peer_port, cluster };
        for taken in [port, peer_port] {
            let server = EtcdServer::prepare(&EtcdServerConfig::plain(), &address);
            let other_listener = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).expect("it was free");
            server.supervisor.start();
            assert!(first_failed(std::slice::from_ref(&server)).is_some());
            assert!(server.port_is_taken(), "{}", server.log());
            drop(other_listener);
            server.restart();
            server.ctl(&["endpoint", "health"]);
        }
    }
}
