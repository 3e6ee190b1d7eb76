//! The test kit's own tests: the simulation of clients and a storage, and what the kit does to servers and connections.

mod etcd_servers;
mod etcd_setups;
mod list;
mod lock_rows;
mod redis_setups;
mod servers;
mod simulation;
mod wire;
mod zookeeper_servers;
mod zookeeper_setups;
