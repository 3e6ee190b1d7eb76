//! The Java that ZooKeeper runs on, the server as well as the command line client.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::{require, require_file};

/// Where Debian puts what is written in Java.
const FOLDER: &str = "/usr/share/java";
/// ZooKeeper itself, which names most of what else it needs; what makes it say something; what it forgets to name.
const JARS: [&str; 4] = ["zookeeper.jar", "slf4j-simple.jar", "netty-codec.jar", "netty-resolver.jar"];
/// Starts quickly, stays small, and leaves nothing in the folders of the machine.
const OPTIONS: [&str; 5] =
    ["-Xms16m", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"];

fn jars() -> [PathBuf; 4] {
    JARS.map(|name| Path::new(FOLDER).join(name))
}

/// Fails unless everything is there that it takes to run ZooKeeper.
#[track_caller]
pub(super) fn require_all() {
    require("java");
    for jar in jars() {
        require_file(&jar);
    }
}

/// What runs a class of ZooKeeper that is named after these words; the folder is for whatever Java leaves behind.
pub(super) fn command(folder: &Path) -> Vec<OsString> {
    let classes = std::env::join_paths(jars()).expect("no path has a colon");
    let mut words: Vec<OsString> = vec!["java".into()];
    words.extend(OPTIONS.map(OsString::from));
    words.push(format!("-Djava.io.tmpdir={}", folder.display()).into());
    words.push("-Dorg.slf4j.simpleLogger.showDateTime=true".into());
    words.push("-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS".into());
    words.extend(["-cp".into(), classes]);
    words
}

/// Writes down as whom one logs in, or who can, and returns the option that makes Java read it.
pub(super) fn login(folder: &Path, section: &str, users: &str) -> OsString {
    let file = folder.join(format!("{section}.jaas"));
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    fs::write(&file, format!("{section} {{ {module} required {users}; }};\n")).expect("there is room");
    format!("-Djava.security.auth.login.config={}", file.display()).into()
}

/// A file with both, beside the certificate, as ZooKeeper wants it.
pub(super) fn certificate_with_key(certificate: &Path, key: &Path) -> PathBuf {
    let both = certificate.with_extension("pem");
    let text = [certificate, key].map(|part| fs::read_to_string(part).expect("it was made")).concat();
    fs::write(&both, text).expect("there is room");
    both
}
