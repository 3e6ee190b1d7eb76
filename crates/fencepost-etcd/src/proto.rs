//! The messages of the etcd API, generated from `proto/etcd.proto` by `cargo xtask proto`.

mod etcdserverpb;

pub(crate) use etcdserverpb::*;
