//! The tests of locks in etcd, on real servers.
