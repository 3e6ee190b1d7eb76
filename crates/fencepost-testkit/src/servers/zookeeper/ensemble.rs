//! An ensemble of three servers, which serves as long as two of them run and reach each other.

use std::fmt::Write;

use super::config::Place;
use super::{
    Supervised, ZooKeeperServer, ZooKeeperServerConfig, free_port, java, start_together, start_together_again,
};
use crate::stress::{Outage, Trio};
use crate::wait;
use crate::wire::{Direction, Wire};

/// How many ticks a server has to find its leader, and how many it may not hear from it: seconds, on a busy machine. A
/// [`ZooKeeperServerConfig`] can say otherwise.
const LIMITS: &str = "initLimit=50\nsyncLimit=20\n";

/// Three servers. Each of them is a [`ZooKeeperServer`] that can be killed, paused and started again by itself.
///
/// What followers and leader say to each other goes along wires; the election of a leader does not.
#[derive(Debug)]
pub struct Ensemble {
    servers: [ZooKeeperServer; 3],
}

/// The wires of one server to the others, by their index; it has none to itself.
pub(super) type Wires = [Option<Wire>; 3];

impl Ensemble {
    /// Starts the servers and waits until they have a leader.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start() -> Self {
        Self::start_with(&ZooKeeperServerConfig::plain())
    }

    /// Like [`Ensemble::start`], with servers that are set up like this.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start_with(setup: &ZooKeeperServerConfig) -> Self {
        java::require_all();
        Self { servers: start_together(|| Self::prepare(setup)) }
    }

    fn prepare(setup: &ZooKeeperServerConfig) -> [ZooKeeperServer; 3] {
        Self::prepare_on(setup, [(); 3].map(|()| (free_port(), free_port())))
    }

    /// The ports are those where followers talk to the server, and where it takes part in elections.
    fn prepare_on(setup: &ZooKeeperServerConfig, ports: [(u16, u16); 3]) -> [ZooKeeperServer; 3] {
        [0, 1, 2].map(|own| {
            // Followers find a leader before it listens. They look again if nobody is there, but hold an election if
            // somebody was and went away.
            let wires = [0, 1, 2].map(|other| (other != own).then(|| Wire::to_late(ports[other].0)));
            let mut lines = LIMITS.to_owned();
            for (other, (port, election)) in ports.iter().enumerate() {
                let port = wires[other].as_ref().map_or(*port, Wire::port);
                let _ = writeln!(lines, "server.{}=127.0.0.1:{port}:{election}", other + 1);
            }
            let place = Place { port: free_port(), ensemble: Some((own + 1, lines)) };
            ZooKeeperServer::prepare(setup, &place, wires)
        })
    }

    /// One of the servers, to be hurt or asked.
    ///
    /// # Panics
    /// If there is no such: there are three.
    pub fn server(&self, index: usize) -> &ZooKeeperServer {
        &self.servers[index]
    }

    /// All servers.
    pub fn servers(&self) -> &[ZooKeeperServer; 3] {
        &self.servers
    }

    /// The ports of the servers.
    pub fn ports(&self) -> [u16; 3] {
        self.servers.each_ref().map(ZooKeeperServer::port)
    }

    /// Where all the servers are.
    pub fn url(&self) -> String {
        format!("zk://{}", self.ports().map(|port| format!("127.0.0.1:{port}")).join(","))
    }

    /// The server that leads, in its own opinion; waits while there is none.
    ///
    /// # Panics
    /// If none leads for long.
    pub fn leader(&self) -> usize {
        self.leader_among(&[0, 1, 2])
    }

    /// Like [`Ensemble::leader`], but only these are asked, and one of them must lead: one that was paused may believe for
    /// a moment that it still does, and does not answer while it is.
    ///
    /// # Panics
    /// If none of them leads for long.
    pub fn leader_among(&self, asked: &[usize]) -> usize {
        let mut leader = None;
        wait::block_until("a server leads", || {
            leader = asked.iter().copied().find(|index| self.servers[*index].mode() == Some("leader"));
            leader.is_some()
        });
        leader.expect("it was waited for")
    }

    /// The first server that does not lead.
    ///
    /// # Panics
    /// If none leads for long.
    pub fn follower(&self) -> usize {
        usize::from(self.leader() == 0)
    }

    /// Waits until all servers serve: one leads, two follow.
    ///
    /// # Panics
    /// If they do not for long.
    pub fn wait_until_healthy(&self) {
        wait::block_until("all servers serve", || {
            let modes = self.servers.each_ref().map(ZooKeeperServer::mode);
            let count = |mode: &str| modes.iter().filter(|found| **found == Some(mode)).count();
            count("leader") == 1 && count("follower") == 2
        });
    }

    /// Nothing arrives any more between this follower and whoever leads, in either direction, and neither hears that the
    /// connection has ended. Its clients still reach it. It takes a second or two until both give up on each other.
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

    /// Holds back what the leader sends to this follower, until [`Ensemble::resume`]. What the follower sends still arrives: its
    /// clients' writes are committed, and neither it nor they hear of that. Both servers endure it for `syncLimit`.
    ///
    /// # Panics
    /// If it leads.
    pub fn stall(&self, follower: usize) {
        assert_ne!(self.servers[follower].mode(), Some("leader"), "only a follower can be stalled");
        for wire in self.servers[follower].wires() {
            wire.one_way(Direction::ToServer);
        }
    }

    /// Delivers what was held back by [`Ensemble::stall`], all at once.
    pub fn resume(&self, follower: usize) {
        for wire in self.servers[follower].wires() {
            wire.heal();
        }
    }

    /// The follower that was cut off reaches the others again.
    pub fn heal(&self, follower: usize) {
        for wire in self.servers[follower].wires() {
            // What was sent meanwhile would arrive now, from long ago.
            wire.reset();
            wire.heal();
        }
    }

    /// Kills all servers and starts them again, each with what it has stored.
    ///
    /// # Panics
    /// If one does not start.
    pub fn restart(&self) {
        start_together_again(&self.servers);
    }
}

impl Trio for Ensemble {
    fn leader(&self) -> usize {
        self.leader()
    }

    fn suffer(&self, server: usize, outage: Outage) {
        self.servers[server].suffer(outage);
    }

    fn wait_until_healthy(&self) {
        self.wait_until_healthy();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::servers::start::first_down;

    #[test]
    fn a_port_between_servers_that_was_taken_meanwhile_is_noticed() {
        let ports = [(); 3].map(|()| (free_port(), free_port()));
        // Only a leader listens for followers, and anyone may lead.
        for taken in [&ports.map(|(followers, _)| followers)[..], &[ports[0].1]] {
            let servers = Ensemble::prepare_on(&ZooKeeperServerConfig::plain(), ports);
            let bind = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).expect("it was free");
            let faster: Vec<_> = taken.iter().map(bind).collect();
            for server in &servers {
                server.supervisor().start();
            }
            assert!(first_down(&servers).is_some_and(Supervised::misses_a_port));
            drop(faster);
            start_together_again(&servers);
            assert!(servers.iter().any(|server| server.mode() == Some("leader")));
        }
    }
}
