//! A disk that a test can fill under a running server: a library that is preloaded into it. A small file system would take
//! the right to mount one, which containers usually lack.

use super::preload::Library;

pub(crate) const LIBRARY: Library =
    Library { name: "disk", source: include_str!("fillable_disk.c"), variable: "DISK_IS_FULL" };
