//! `cargo xtask proto`: generates Rust from the messages of etcd. It is checked in, so that a build does not need this.

#[cfg(feature = "proto")]
mod generate;

use crate::shell::{Failure, Outcome};

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "generate the messages of etcd";

/// The source.
pub(crate) const SOURCE: &str = "crates/fencepost-etcd/proto/etcd.proto";
/// The generated file.
pub(crate) const GENERATED: &str = "crates/fencepost-etcd/src/proto/etcdserverpb.rs";

/// Generates the messages; behind a feature, so that the other commands do not have to build the generator.
pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(word) = args.first() {
        return Err(Failure::Usage(format!("`proto` takes no arguments, but got `{word}`")));
    }
    #[cfg(feature = "proto")]
    return generate::run();
    #[cfg(not(feature = "proto"))]
    crate::shell::run(&mut crate::shell::cargo([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "proto",
        "--",
        "proto",
    ]))
}

/// Returns the line of the generated file that identifies its source.
pub(crate) fn mark(source: &str) -> String {
    // FNV-1a: it protects against mistakes, not against attacks.
    let sum = source
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("//! Checksum of the source: {sum:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_changes_the_mark() {
        assert_eq!(mark(""), "//! Checksum of the source: cbf29ce484222325");
        assert_eq!(mark("a"), "//! Checksum of the source: af63dc4c8601ec8c");
    }
}
