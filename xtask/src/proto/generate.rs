//! The generator itself, behind the feature `proto`.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{GENERATED, SOURCE, mark};
use crate::shell::{self, Failure, Outcome, root, target_dir};

/// The head of the generated file: lints are off, and it has more than we use.
const HEAD: &str = "\
//! Generated from `proto/etcd.proto` by `cargo xtask proto`: change that, not this.
";
const LINTS: &str = "\
#![allow(clippy::all, clippy::pedantic, dead_code, unreachable_pub, reason = \"generated\")]
";

pub(super) fn run() -> Outcome {
    let source = root().join(SOURCE);
    let text = fs::read_to_string(&source).map_err(|why| failed("read", &source, &why))?;
    let folder = target_dir().join("proto");
    fs::create_dir_all(&folder).map_err(|why| failed("make", &folder, &why))?;
    let parsed = protox::compile([&source], source.parent()).map_err(|why| failed("parse", &source, &why))?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .out_dir(&folder)
        .compile_fds(parsed)
        .map_err(|why| failed("generate from", &source, &why))?;
    let made = folder.join("etcdserverpb.rs");
    let made = fs::read_to_string(&made).map_err(|why| failed("read", &made, &why))?;
    let path = root().join(GENERATED);
    fs::write(&path, format!("{HEAD}{}\n{LINTS}{made}", mark(&text)))
        .map_err(|why| failed("write", &path, &why))?;
    shell::run(Command::new("rustfmt").args(["--edition", "2024"]).arg(&path))
}

fn failed(what: &str, path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(format!("could not {what} {}: {why}", path.display()))
}
