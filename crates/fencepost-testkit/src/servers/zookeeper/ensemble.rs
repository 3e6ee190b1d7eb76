//! An ensemble of three servers, which serves as long as two of them run and reach each other.

use std::fmt::Write;

use super::config::ServerAddress;
use super::{
    Supervised, ZooKeeperServer, ZooKeeperServerConfig, free_port, java, restart_together, start_together,
};
use crate::stress::{Outage, ServerGroup};
use crate::wait;
use crate::wire::{Direction, Wire};

/// How many ticks a server may take to find its leader, and to be out of touch with it: seconds, on a busy machine. A
/// [`ZooKeeperServerConfig`] can set others.
const LIMITS: &str = "initLimit=50\nsyncLimit=20\n";

/// Three servers, each a [`ZooKeeperServer`] that can be killed, paused and restarted.
///
/// The traffic between followers and leader goes through wires; the election of a leader does not.
#[derive(Debug)]
pub struct Ensemble {
    servers: [ZooKeeperServer; 3],
}

/// The wires of one server to the others, by index; it has none to itself.
pub(super) type Wires = [Option<Wire>; 3];

impl Ensemble {
    /// Starts the servers and waits until they have a leader.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start() -> Self {
        Self::start_with(&ZooKeeperServerConfig::plain())
    }

    /// Like [`Ensemble::start`], with servers of this configuration.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start_with(config: &ZooKeeperServerConfig) -> Self {
        java::require_all();
        Self { servers: start_together(|| Self::prepare(config)) }
    }

    fn prepare(config: &ZooKeeperServerConfig) -> [ZooKeeperServer; 3] {
        Self::prepare_on(config, [(); 3].map(|()| (free_port(), free_port())))
    }

    /// The ports are those for followers and for elections.
    fn prepare_on(config: &ZooKeeperServerConfig, ports: [(u16, u16); 3]) -> [ZooKeeperServer; 3] {
        [0, 1, 2].map(|own| {
            // Followers connect to a leader before it listens. They retry if the connection is refused, but hold an election
            // if it is closed.
            let wires = [0, 1, 2].map(|other| (other != own).then(|| Wire::to_late(ports[other].0)));
            let mut lines = LIMITS.to_owned();
            for (other, (port, election)) in ports.iter().enumerate() {
                let port = wires[other].as_ref().map_or(*port, Wire::port);
                let _ = writeln!(lines, "server.{}=127.0.0.1:{port}:{election}", other + 1);
            }
            let address = ServerAddress { port: free_port(), ensemble: Some((own + 1, lines)) };
            ZooKeeperServer::prepare(config, &address, wires)
        })
    }

    /// Returns one of the servers.
    ///
    /// # Panics
    /// If the index is above 2.
    pub fn server(&self, index: usize) -> &ZooKeeperServer {
        &self.servers[index]
    }

    /// Returns all servers.
    pub fn servers(&self) -> &[ZooKeeperServer; 3] {
        &self.servers
    }

    /// Returns the ports of the servers.
    pub fn ports(&self) -> [u16; 3] {
        self.servers.each_ref().map(ZooKeeperServer::port)
    }

    /// Returns the URL of all servers.
    pub fn url(&self) -> String {
        format!("zk://{}", self.ports().map(|port| format!("127.0.0.1:{port}")).join(","))
    }

    /// Returns the index of the server that considers itself the leader; waits until there is one.
    ///
    /// # Panics
    /// If there is none in time.
    pub fn leader(&self) -> usize {
        self.leader_among(&[0, 1, 2])
    }

    /// Like [`Ensemble::leader`], but asks only these servers, and one of them must lead: one that was paused may consider
    /// itself the leader for a moment, and does not reply while it is paused.
    ///
    /// # Panics
    /// If none of them leads in time.
    pub fn leader_among(&self, asked: &[usize]) -> usize {
        let mut leader = None;
        wait::block_until("a server leads", || {
            leader = asked.iter().copied().find(|index| self.servers[*index].mode() == Some("leader"));
            leader.is_some()
        });
        leader.expect("it was waited for")
    }

    /// Returns the first server that does not lead.
    ///
    /// # Panics
    /// If there is no leader in time.
    pub fn follower(&self) -> usize {
        usize::from(self.leader() == 0)
    }

    /// Waits until all servers serve: one leads, two follow.
    ///
    /// # Panics
    /// If they do not in time.
    pub fn wait_until_healthy(&self) {
        wait::block_until("all servers serve", || {
            let modes = self.servers.each_ref().map(ZooKeeperServer::mode);
            let count = |mode: &str| modes.iter().filter(|found| **found == Some(mode)).count();
            count("leader") == 1 && count("follower") == 2
        });
    }

    /// Cuts the follower off from the leader: nothing arrives in either direction, not even the close of the connection. Its
    /// clients still reach it. It takes a second or two until both give up the connection.
    ///
    /// A leader that is cut off might be elected again: pause it instead.
    ///
    /// # Panics
    /// If it leads.
    pub fn cut_off(&self, follower: usize) {
        assert_ne!(self.servers[follower].mode(), Some("leader"), "only a follower can be cut off");
        for wire in self.servers[follower].wires() {
            wire.blackhole();
        }
    }

    /// Holds back what the leader sends to this follower, until [`Ensemble::resume`]. What the follower sends still arrives:
    /// the writes of its clients are committed, without a reply. Both servers tolerate it for `syncLimit`.
    ///
    /// # Panics
    /// If it leads.
    pub fn stall(&self, follower: usize) {
        assert_ne!(self.servers[follower].mode(), Some("leader"), "only a follower can be stalled");
        for wire in self.servers[follower].wires() {
            wire.one_way(Direction::ToServer);
        }
    }

    /// Delivers what [`Ensemble::stall`] held back, all at once.
    pub fn resume(&self, follower: usize) {
        for wire in self.servers[follower].wires() {
            wire.heal();
        }
    }

    /// Reconnects the follower that was cut off.
    pub fn heal(&self, follower: usize) {
        for wire in self.servers[follower].wires() {
            // What was sent meanwhile would arrive now, much too late.
            wire.reset();
            wire.heal();
        }
    }

    /// Restarts all servers, which keep their data.
    ///
    /// # Panics
    /// If one does not start.
    pub fn restart(&self) {
        restart_together(&self.servers);
    }
}

impl ServerGroup for Ensemble {
    fn leader(&self) -> usize {
        self.leader()
    }

    fn take_down(&self, server: usize, outage: Outage) {
        self.servers[server].take_down(outage);
    }

    fn wait_until_healthy(&self) {
        self.wait_until_healthy();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::servers::start::first_failed;

    #[test]
    fn a_port_between_servers_that_was_taken_meanwhile_is_noticed() {
        let ports = [(); 3].map(|()| (free_port(), free_port()));
        // Only a leader listens for followers, and any server may lead.
        for taken in [&ports.map(|(followers, _)| followers)[..], &[ports[0].1]] {
            let servers = Ensemble::prepare_on(&ZooKeeperServerConfig::plain(), ports);
            let bind = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).expect("it was free");
            let other_listener: Vec<_> = taken.iter().map(bind).collect();
            for server in &servers {
                server.supervisor().start();
            }
            assert!(first_failed(&servers).is_some_and(Supervised::port_is_taken));
            drop(other_listener);
            restart_together(&servers);
            assert!(servers.iter().any(|server| server.mode() == Some("leader")));
        }
    }
}
