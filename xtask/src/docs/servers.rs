//! Servers for blocks that ask for one: on a free port, without persistence, killed after the block.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::shell::Failure;

/// How often the port is tried, and how long to wait in between.
const TRIES: usize = 300;
const INTERVAL: Duration = Duration::from_millis(100);

/// A server that a block can ask for in its info string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Redis,
    Etcd,
}

/// A running server, and where the block finds it. Dropping it kills the server.
pub(super) struct Running {
    process: Child,
    pub(super) variable: &'static str,
    pub(super) url: String,
}

impl Server {
    /// Returns the server of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "redis" => Some(Self::Redis),
            "etcd" => Some(Self::Etcd),
            _ => None,
        }
    }

    /// Starts the server, and waits until it accepts connections.
    pub(super) fn start(self, directory: &Path) -> Result<Running, Failure> {
        let failed =
            |why: &dyn std::fmt::Display| Failure::Failed(format!("could not start {self:?}: {why}"));
        let port = free_port().map_err(|why| failed(&why))?;
        let (mut command, variable, url) = match self {
            Self::Redis => (redis(port), "REDIS_URL", format!("redis://127.0.0.1:{port}")),
            Self::Etcd => {
                let peer_port = free_port().map_err(|why| failed(&why))?;
                (etcd(port, peer_port), "ETCD_URL", format!("etcd://127.0.0.1:{port}"))
            }
        };
        let command =
            command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().map_err(|why| failed(&why))?;
        let running = Running { process, variable, url };
        for _ in 0..TRIES {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(running);
            }
            #[expect(clippy::disallowed_methods, reason = "there is no event for a port that opens")]
            thread::sleep(INTERVAL);
        }
        Err(failed(&"it does not accept connections"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn redis(port: u16) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]);
    command
}

fn etcd(port: u16, peer_port: u16) -> Command {
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
    let mut command = Command::new("etcd");
    command.args(["--data-dir=etcd", "--name=docs"]);
    command.args([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")]);
    command.args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")]);
    command.arg(format!("--initial-cluster=docs={peer}"));
    command
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
