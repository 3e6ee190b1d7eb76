//! What we say to etcd and what it answers: generated from `proto/etcd.proto` by `cargo xtask proto`.

mod etcdserverpb;

pub(crate) use etcdserverpb::*;
