//! A cluster of three members, which serves as long as two of them run.

use super::config::Place;
use super::{EtcdServer, EtcdServerConfig, Supervised, free_port, require_programs, start_together};
use crate::stress::{Outage, Trio};
use crate::wait;

/// Three members. Each of them is an [`EtcdServer`] that can be killed, paused and started again by itself.
#[derive(Debug)]
pub struct EtcdCluster {
    members: [EtcdServer; 3],
}

impl EtcdCluster {
    /// Starts the members and waits until they have a leader.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start() -> Self {
        Self::start_with(&EtcdServerConfig::plain())
    }

    /// Like [`EtcdCluster::start`], with members that are set up like this.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start_with(setup: &EtcdServerConfig) -> Self {
        require_programs();
        let cluster = Self { members: start_together(|| Self::prepare(setup)) };
        cluster.members[0].add_users();
        cluster
    }

    fn prepare(setup: &EtcdServerConfig) -> [EtcdServer; 3] {
        let members = ["a", "b", "c"].map(|name| (name, free_port()));
        let cluster = members.map(|(name, peer_port)| Place::member(name, peer_port)).join(",");
        members.map(|(name, peer_port)| {
            let (name, cluster) = (name.to_owned(), cluster.clone());
            EtcdServer::prepare(setup, &Place { name, port: free_port(), peer_port, cluster })
        })
    }

    /// One of the members, to be hurt or asked.
    ///
    /// # Panics
    /// If there is no such: there are three.
    pub fn member(&self, index: usize) -> &EtcdServer {
        &self.members[index]
    }

    /// All members.
    pub fn members(&self) -> &[EtcdServer; 3] {
        &self.members
    }

    /// The ports of the members.
    pub fn ports(&self) -> [u16; 3] {
        self.members.each_ref().map(EtcdServer::port)
    }

    /// Where all the members are; as `root` if they have users.
    pub fn url(&self) -> String {
        let [_, second, third] = self.ports();
        format!("{},127.0.0.1:{second},127.0.0.1:{third}", self.members[0].url())
    }

    /// The member that leads, as the members say that can say it; waits while there is none.
    ///
    /// # Panics
    /// If none leads for long.
    pub fn leader(&self) -> usize {
        self.leader_among(&[0, 1, 2])
    }

    /// Like [`EtcdCluster::leader`], but only these are asked, and one of them must lead: one that was paused may believe
    /// for a moment that it still does.
    ///
    /// # Panics
    /// If none of them leads for long.
    pub fn leader_among(&self, asked: &[usize]) -> usize {
        let mut leader = None;
        wait::block_until("a member leads", || {
            leader = asked.iter().copied().find(|index| self.members[*index].leads());
            leader.is_some()
        });
        leader.expect("it was waited for")
    }

    /// The first member that does not lead.
    ///
    /// # Panics
    /// If none leads for long.
    pub fn follower(&self) -> usize {
        usize::from(self.leader() == 0)
    }

    /// Waits until all members run, and agree who leads.
    ///
    /// # Panics
    /// If they do not for long.
    pub fn wait_until_healthy(&self) {
        wait::block_until("all members serve", || {
            self.members.iter().all(|member| member.try_ctl(&["endpoint", "health"]).is_ok())
                && self.members.iter().filter(|member| member.leads()).count() == 1
        });
    }

    /// Kills all members and starts them again, each with what it has stored.
    ///
    /// # Panics
    /// If one does not start.
    pub fn restart(&self) {
        super::start_together_again(&self.members);
    }
}

impl Trio for EtcdCluster {
    fn leader(&self) -> usize {
        self.leader()
    }

    fn suffer(&self, server: usize, outage: Outage) {
        self.members[server].suffer(outage);
    }

    fn wait_until_healthy(&self) {
        self.wait_until_healthy();
    }
}
