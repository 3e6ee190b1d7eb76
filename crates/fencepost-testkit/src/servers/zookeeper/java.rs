//! The Java command line of ZooKeeper, for the server as well as for the command line client.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::{require, require_file};

/// Where Debian installs jars.
const FOLDER: &str = "/usr/share/java";
/// ZooKeeper itself, whose manifest names most of its dependencies; a logger; dependencies that the manifest misses.
const JARS: [&str; 4] = ["zookeeper.jar", "slf4j-simple.jar", "netty-codec.jar", "netty-resolver.jar"];
/// Fast start, little memory, and no files outside of the directory.
const OPTIONS: [&str; 5] =
    ["-Xms16m", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"];

fn jars() -> [PathBuf; 4] {
    JARS.map(|name| Path::new(FOLDER).join(name))
}

/// Panics unless everything is installed that ZooKeeper needs.
#[track_caller]
pub(super) fn require_all() {
    require("java");
    for jar in jars() {
        require_file(&jar);
    }
}

/// Returns the command before the name of a ZooKeeper class; Java puts temporary files into the directory.
pub(super) fn command(folder: &Path) -> Vec<OsString> {
    let classes = std::env::join_paths(jars()).expect("no path has a colon");
    let mut args: Vec<OsString> = vec!["java".into()];
    args.extend(OPTIONS.map(OsString::from));
    args.push(format!("-Djava.io.tmpdir={}", folder.display()).into());
    args.push("-Dorg.slf4j.simpleLogger.showDateTime=true".into());
    args.push("-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS".into());
    args.extend(["-cp".into(), classes]);
    args
}

/// Writes a JAAS section with these users, and returns the option that makes Java read it.
pub(super) fn login(folder: &Path, section: &str, users: &str) -> OsString {
    let file = folder.join(format!("{section}.jaas"));
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    fs::write(&file, format!("{section} {{ {module} required {users}; }};\n"))
        .expect("a directory can be created");
    format!("-Djava.security.auth.login.config={}", file.display()).into()
}

/// Writes both into one file beside the certificate, as ZooKeeper requires.
pub(super) fn certificate_with_key(certificate: &Path, key: &Path) -> PathBuf {
    let both = certificate.with_extension("pem");
    let text = [certificate, key].map(|part| fs::read_to_string(part).expect("it was made")).concat();
    fs::write(&both, text).expect("a directory can be created");
    both
}
