//! Starting servers on ports that were free a moment ago, and again if somebody was faster.

use rustix::process::Signal;

use super::supervisor::Supervisor;
use crate::stress::Outage;
use crate::wait;

/// How often servers are started with other ports because somebody was faster.
const ATTEMPTS: usize = 20;

/// A server that a supervisor keeps.
pub(super) trait Supervised {
    /// What it is called in failures.
    fn program(&self) -> &'static str;

    fn supervisor(&self) -> &Supervisor;

    /// Whether it takes connections. Its own words must count: on its port somebody else may answer.
    fn is_ready(&self) -> bool;

    /// Whether it has ended, or says that a port is not free: some go on without it.
    fn gives_up(&self) -> bool {
        !self.supervisor().is_alive() || self.misses_a_port()
    }

    fn slow(&self) -> String {
        format!("{} comes up or gives up; it says: {}", self.program(), self.supervisor().output())
    }

    fn misses_a_port(&self) -> bool {
        self.supervisor().output().to_ascii_lowercase().contains("address already in use")
    }

    /// Starts the server again, and kills it first if it is running.
    fn start_again(&self) {
        self.supervisor().kill();
        self.supervisor().start();
        self.must_be_ready();
    }

    /// Is away for a while.
    fn suffer(&self, outage: Outage) {
        match outage {
            Outage::Killed(time) => {
                self.supervisor().kill();
                wait::block_thread_for(time);
                self.start_again();
            }
            Outage::Stopped(time) => {
                self.supervisor().signal(Signal::STOP);
                wait::block_thread_for(time);
                self.supervisor().signal(Signal::CONT);
            }
        }
    }

    fn must_be_ready(&self) {
        let supervisor = self.supervisor();
        wait::block_until_else(|| self.slow(), || self.is_ready() || !supervisor.is_alive());
        assert!(self.is_ready(), "{} does not start again: {}", self.program(), supervisor.output());
    }
}

/// Waits until all servers take connections, or one of them gives up: that one is returned.
pub(super) fn first_down<S: Supervised>(servers: &[S]) -> Option<&S> {
    let say = || servers.iter().map(Supervised::slow).collect::<Vec<_>>().join("\n");
    // Those who give up come first: where a port is taken, whoever has it may never answer.
    wait::block_until_else(say, || {
        servers.iter().any(Supervised::gives_up) || servers.iter().all(Supervised::is_ready)
    });
    servers.iter().find(|server| server.gives_up())
}

/// Starts servers again that need each other to become ready, and kills them first if they are running.
pub(super) fn start_together_again<S: Supervised>(servers: &[S]) {
    for server in servers {
        server.supervisor().kill();
    }
    for server in servers {
        server.supervisor().start();
    }
    for server in servers {
        server.must_be_ready();
    }
}

/// Starts the servers that `prepare` makes, which may need each other to become ready. Prepares others if a port is taken.
///
/// # Panics
/// If one of them cannot be started, with what it says about that.
pub(super) fn start_together<S: Supervised, const N: usize>(prepare: impl Fn() -> [S; N]) -> [S; N] {
    let mut failure = String::new();
    for _ in 0..ATTEMPTS {
        let servers = prepare();
        for server in &servers {
            server.supervisor().start();
        }
        let Some(down) = first_down(&servers) else { return servers };
        failure = format!("{} cannot be started: {}", down.program(), down.supervisor().output());
        if !down.misses_a_port() {
            break;
        }
    }
    panic!("{failure}");
}
