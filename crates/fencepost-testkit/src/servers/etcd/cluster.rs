//! A cluster of three members, which serves as long as two of them run.

use super::config::MemberAddress;
use super::{EtcdServer, EtcdServerConfig, Supervised, free_port, require_programs, start_together};
use crate::stress::{Outage, ServerGroup};
use crate::wait;

/// Three members, each an [`EtcdServer`] that can be killed, paused and restarted.
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

    /// Like [`EtcdCluster::start`], with members of this configuration.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start_with(config: &EtcdServerConfig) -> Self {
        require_programs();
        let cluster = Self { members: start_together(|| Self::prepare(config)) };
        cluster.members[0].add_users();
        cluster
    }

    fn prepare(config: &EtcdServerConfig) -> [EtcdServer; 3] {
        let members = ["a", "b", "c"].map(|name| (name, free_port()));
        let cluster = members.map(|(name, peer_port)| MemberAddress::member(name, peer_port)).join(",");
        members.map(|(name, peer_port)| {
            let (name, cluster) = (name.to_owned(), cluster.clone());
            EtcdServer::prepare(config, &MemberAddress { name, port: free_port(), peer_port, cluster })
        })
    }

    /// Returns one of the members.
    ///
    /// # Panics
    /// If the index is above 2.
    pub fn member(&self, index: usize) -> &EtcdServer {
        &self.members[index]
    }

    /// Returns all members.
    pub fn members(&self) -> &[EtcdServer; 3] {
        &self.members
    }

    /// Returns the ports of the members.
    pub fn ports(&self) -> [u16; 3] {
        self.members.each_ref().map(EtcdServer::port)
    }

    /// Returns the URL of all members; as `root` if they have users.
    pub fn url(&self) -> String {
        let [_, second, third] = self.ports();
        format!("{},127.0.0.1:{second},127.0.0.1:{third}", self.members[0].url())
    }

    /// Returns the index of the leader, as reported by the members; waits until there is one.
    ///
    /// # Panics
    /// If there is none in time.
    pub fn leader(&self) -> usize {
        self.leader_among(&[0, 1, 2])
    }

    /// Like [`EtcdCluster::leader`], but asks only these members, and one of them must lead: one that was paused may
    /// consider itself the leader for a moment.
    ///
    /// # Panics
    /// If none of them leads in time.
    pub fn leader_among(&self, asked: &[usize]) -> usize {
        let mut leader = None;
        wait::block_until("a member leads", || {
            leader = asked.iter().copied().find(|index| self.members[*index].leads());
            leader.is_some()
        });
        leader.expect("it was waited for")
    }

    /// Returns the first member that does not lead.
    ///
    /// # Panics
    /// If there is no leader in time.
    pub fn follower(&self) -> usize {
        usize::from(self.leader() == 0)
    }

    /// Waits until all members serve, and one of them leads.
    ///
    /// # Panics
    /// If they do not in time.
    pub fn wait_until_healthy(&self) {
        wait::block_until("all members serve", || {
            self.members.iter().all(|member| member.try_ctl(&["endpoint", "health"]).is_ok())
                && self.members.iter().filter(|member| member.leads()).count() == 1
        });
    }

    /// Restarts all members, which keep their data.
    ///
    /// # Panics
    /// If one does not start.
    pub fn restart(&self) {
        super::restart_together(&self.members);
    }
}

impl ServerGroup for EtcdCluster {
    fn leader(&self) -> usize {
        self.leader()
    }

    fn take_down(&self, server: usize, outage: Outage) {
        self.members[server].take_down(outage);
    }

    fn wait_until_healthy(&self) {
        self.wait_until_healthy();
    }
}
