//! Connections, servers and settings that fail or behave unusually: no lock is lost, and none has two holders.

mod chaos;
mod connections;
mod server;
mod settings;
