//! A private redis-server: on 127.0.0.1, on a free port, in a temporary folder, without persistence.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fencepost::clock::Clock;
use fencepost_testkit::wait::block_thread_for;
use redis::Connection;

const PATIENCE: Duration = Duration::from_secs(10);

/// A server that is stopped when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start() -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|why| format!("no temporary folder: {why}"))?;
        let port = free_port().map_err(|why| format!("no free port: {why}"))?;
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|why| {
                format!("redis-server cannot be started: {why}; Debian has it in `redis-server`")
            })?;
        let server = Self { child, port, _folder: folder };
        server.answers()?;
        Ok(server)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// A connection that looks at the server, beside those that are measured.
    pub(crate) fn look(&self) -> Result<Connection, String> {
        let client = redis::Client::open(self.url()).map_err(|why| why.to_string())?;
        client.get_connection().map_err(|why| format!("redis-server does not answer: {why}"))
    }

    /// Waits until it answers.
    fn answers(&self) -> Result<(), String> {
        let clock = Clock::system();
        let give_up = clock.now() + PATIENCE;
        loop {
            match self.look() {
                Ok(_) => return Ok(()),
                Err(why) if clock.now() > give_up => return Err(why),
                Err(_) => block_thread_for(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
