//! The tests of the test kit: the simulation of clients and a backend, and the faults of servers and connections.

mod etcd_configs;
mod etcd_servers;
mod list;
mod lock_rows;
mod mariadb_servers;
mod postgres_configs;
mod postgres_servers;
mod redis_configs;
mod servers;
mod simulation;
mod wire;
mod zookeeper_configs;
mod zookeeper_servers;
