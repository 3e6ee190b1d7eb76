//! Starts servers on ports that were free a moment ago, and retries if another process took one of them.

use rustix::process::Signal;

use super::supervisor::Supervisor;
use crate::stress::Outage;
use crate::wait;

/// How often servers are started with other ports because one was taken.
const ATTEMPTS: usize = 20;

/// A server that is run by a [`Supervisor`].
pub(super) trait Supervised {
    /// The name of the server in messages.
    fn program(&self) -> &'static str;

    fn supervisor(&self) -> &Supervisor;

    /// Returns whether it accepts connections, by its own log: on its port another process may answer.
    fn is_ready(&self) -> bool;

    /// Returns whether it has ended, or has logged that a port is taken: some run on without it.
    fn has_failed(&self) -> bool {
        !self.supervisor().is_alive() || self.port_is_taken()
    }

    fn timeout_message(&self) -> String {
        format!("{} did not become ready; its output: {}", self.program(), self.supervisor().output())
    }

    fn port_is_taken(&self) -> bool {
        self.supervisor().output().to_ascii_lowercase().contains("address already in use")
    }

    /// Restarts the server.
    fn restart_server(&self) {
        self.supervisor().kill();
        self.supervisor().start();
        self.wait_until_ready();
    }

    /// Takes the server down for a while.
    fn take_down(&self, outage: Outage) {
        match outage {
            Outage::Killed(time) => {
                self.supervisor().kill();
                wait::block_thread_for(time);
                self.restart_server();
            }
            Outage::Stopped(time) => {
                self.supervisor().signal(Signal::STOP);
                wait::block_thread_for(time);
                self.supervisor().signal(Signal::CONT);
            }
        }
    }

    fn wait_until_ready(&self) {
        let supervisor = self.supervisor();
        wait::block_until_else(|| self.timeout_message(), || self.is_ready() || !supervisor.is_alive());
        assert!(self.is_ready(), "{} did not restart: {}", self.program(), supervisor.output());
    }
}

/// Waits until all servers accept connections, or one of them fails, which is returned.
pub(super) fn first_failed<S: Supervised>(servers: &[S]) -> Option<&S> {
    let say = || servers.iter().map(Supervised::timeout_message).collect::<Vec<_>>().join("\n");
    // Failures first: where a port is taken, the process that has it may never reply.
    wait::block_until_else(say, || {
        servers.iter().any(Supervised::has_failed) || servers.iter().all(Supervised::is_ready)
    });
    servers.iter().find(|server| server.has_failed())
}

/// Restarts servers that need each other to become ready.
pub(super) fn restart_together<S: Supervised>(servers: &[S]) {
    for server in servers {
        server.supervisor().kill();
    }
    for server in servers {
        server.supervisor().start();
    }
    for server in servers {
        server.wait_until_ready();
    }
}

/// Starts the servers that `prepare` returns, which may need each other to become ready. Prepares others if a port is taken.
///
/// # Panics
/// If one of them cannot be started, with its output.
pub(super) fn start_together<S: Supervised, const N: usize>(prepare: impl Fn() -> [S; N]) -> [S; N] {
    let mut failure = String::new();
    for _ in 0..ATTEMPTS {
        let servers = prepare();
        for server in &servers {
            server.supervisor().start();
        }
        let Some(down) = first_failed(&servers) else { return servers };
        failure = format!("{} cannot be started: {}", down.program(), down.supervisor().output());
        if !down.port_is_taken() {
            break;
        }
    }
    panic!("{failure}");
}
