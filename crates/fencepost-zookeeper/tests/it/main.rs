//! The tests of locks in ZooKeeper, on real servers.
