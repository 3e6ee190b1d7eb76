//! What a ZooKeeper server can be started with.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Where Debian puts what is written in Java.
const JARS: &str = "/usr/share/java";
/// ZooKeeper itself, which names what else it needs, and what makes it say something.
const CLASSES: [&str; 2] = ["zookeeper.jar", "slf4j-simple.jar"];
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
/// Starts quickly, stays small, and leaves nothing in the folders of the machine.
const JAVA: [&str; 5] =
    ["-Xms16m", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"];

/// How a server is set up: [`Setup::plain`], and what is added to it.
#[derive(Clone, Debug)]
pub struct Setup {
    lines: Vec<String>,
    properties: Vec<String>,
}

impl Setup {
    /// A server with a tick of 100 ms, so that sessions of 200 ms are possible and end when they should.
    pub fn plain() -> Self {
        let lines = [
            "tickTime=100",
            "minSessionTimeout=200",
            "maxSessionTimeout=3600000",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
        ];
        Self { lines: lines.map(str::to_owned).into(), properties: Vec::new() }
    }

    /// A line of the server's configuration, such as `maxSessionTimeout=5000`; later ones win.
    #[must_use]
    pub fn with_config(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// A property of the Java process, such as `znode.container.checkIntervalMs` and `100`.
    #[must_use]
    pub fn with_property(mut self, name: &str, value: &str) -> Self {
        self.properties.push(format!("-D{name}={value}"));
        self
    }

    /// The files without which no server can be started.
    pub(super) fn jars() -> impl Iterator<Item = PathBuf> {
        CLASSES.into_iter().map(|name| Path::new(JARS).join(name))
    }

    /// Writes the configuration into the folder, and says how the server is started.
    pub(super) fn command(&self, folder: &Path, port: u16) -> Vec<OsString> {
        let (config, data) = (folder.join("zoo.cfg"), folder.join("data"));
        let mut file =
            format!("dataDir={}\nclientPortAddress=127.0.0.1\nclientPort={port}\n", data.display());
        for line in &self.lines {
            let _ = writeln!(file, "{line}");
        }
        std::fs::create_dir(&data).and_then(|()| std::fs::write(&config, file)).expect("there is room");
        let classes = std::env::join_paths(Self::jars()).expect("no path has a colon");
        let mut words: Vec<OsString> = vec!["java".into()];
        words.extend(JAVA.iter().map(OsString::from));
        words.push(format!("-Djava.io.tmpdir={}", folder.display()).into());
        words.extend(self.properties.iter().map(OsString::from));
        words.extend(["-cp".into(), classes, MAIN.into(), config.into_os_string()]);
        words
    }
}
