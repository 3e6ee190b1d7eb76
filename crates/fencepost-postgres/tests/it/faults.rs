//! Connections, servers and accounts that fail or behave unusually: no lock is lost, and none has two holders.

mod chaos;
mod connections;
mod roles;
mod server;
