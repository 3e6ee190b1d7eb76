//! What a ZooKeeper server can be started with.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::java;
use super::{Certificates, TlsClients};

const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// How a server is set up: [`ZooKeeperServerConfig::plain`], and what is added to it.
#[derive(Clone, Debug)]
pub struct ZooKeeperServerConfig {
    lines: Vec<String>,
    properties: Vec<String>,
    sasl: Vec<(String, String)>,
    tls: Option<TlsClients>,
}

/// Where a server listens, and what only it has in its configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) port: u16,
    /// The number by which the others of an ensemble know it, and who they are, in lines of the configuration.
    pub(super) ensemble: Option<(usize, String)>,
}

impl ZooKeeperServerConfig {
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
        Self { lines: lines.map(str::to_owned).into(), properties: Vec::new(), sasl: Vec::new(), tls: None }
    }

    /// A server with the tick, the memory and the compiler that one has outside of tests: for measuring.
    pub fn production_like() -> Self {
        let mut setup = Self::plain().with_config("tickTime=2000");
        // Of two words that contradict each other the later one counts.
        let java = ["-Xmx512m", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4"];
        setup.properties.extend(java.map(str::to_owned));
        setup
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

    /// There is this user, who can prove with SASL, by DIGEST-MD5, who it is. Others are let in too, and are nobody.
    #[must_use]
    pub fn with_sasl_user(mut self, name: &str, password: &str) -> Self {
        self.sasl.push((name.to_owned(), password.to_owned()));
        self
    }

    /// The server also speaks TLS, on a port of its own.
    #[must_use]
    pub fn with_tls(mut self, clients: TlsClients) -> Self {
        self.tls = Some(clients);
        self
    }

    pub(super) fn password_of(&self, user: &str) -> Option<&str> {
        self.sasl.iter().find(|(name, _)| name == user).map(|(_, password)| password.as_str())
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Writes what the server reads into the folder, and says how it is started.
    pub(super) fn command(
        &self,
        folder: &Path,
        place: &Place,
        tls: Option<&(u16, Certificates)>,
    ) -> Vec<OsString> {
        let (config, data) = (folder.join("zoo.cfg"), folder.join("data"));
        fs::create_dir(&data).expect("there is room");
        if let Some((number, _)) = &place.ensemble {
            fs::write(data.join("myid"), number.to_string()).expect("there is room");
        }
        let mut words = java::command(folder);
        words.extend(self.properties.iter().map(OsString::from));
        if !self.sasl.is_empty() {
            words.push(java::login(folder, "Server", &self.sasl_users()));
        }
        fs::write(&config, self.config_file(&data, place, tls)).expect("there is room");
        words.extend([MAIN.into(), config.into_os_string()]);
        words
    }

    fn sasl_users(&self) -> String {
        let users = self.sasl.iter().map(|(name, password)| format!("user_{name}=\"{password}\""));
        users.collect::<Vec<_>>().join(" ")
    }

    fn config_file(&self, data: &Path, place: &Place, tls: Option<&(u16, Certificates)>) -> String {
        let mut file = format!("dataDir={}\nclientPortAddress=127.0.0.1\n", data.display());
        let _ = writeln!(file, "clientPort={}", place.port);
        if let Some((_, lines)) = &place.ensemble {
            file += lines;
        }
        for line in &self.lines {
            let _ = writeln!(file, "{line}");
        }
        if !self.sasl.is_empty() {
            file += "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n";
        }
        if let Some((port, made)) = tls {
            let _ = writeln!(file, "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1");
            file += "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n";
            let both = java::certificate_with_key(&made.server_cert, &made.server_key);
            let _ = writeln!(file, "ssl.keyStore.location={}\nssl.keyStore.type=PEM", both.display());
            let _ = writeln!(file, "ssl.trustStore.location={}\nssl.trustStore.type=PEM", made.ca.display());
            let only_known = self.tls == Some(TlsClients::WithCertificate);
            let _ = writeln!(file, "ssl.clientAuth={}", if only_known { "need" } else { "none" });
        }
        file
    }
}
