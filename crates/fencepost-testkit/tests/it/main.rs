//! The test kit's own tests: the simulation of clients and a storage, and what the kit does to servers and connections.

mod etcd_configs;
mod etcd_servers;
mod list;
mod lock_rows;
mod redis_configs;
mod servers;
mod simulation;
mod wire;
mod zookeeper_configs;
mod zookeeper_servers;
