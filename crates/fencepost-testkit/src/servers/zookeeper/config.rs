//! The configuration of a ZooKeeper server.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::java;
use super::{Certificates, TlsClients};

const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// The configuration of a server: [`ZooKeeperServerConfig::plain`], with additions.
#[derive(Clone, Debug)]
pub struct ZooKeeperServerConfig {
    lines: Vec<String>,
    properties: Vec<String>,
    sasl: Vec<(String, String)>,
    tls: Option<TlsClients>,
}

/// Where a server listens, and its part of the ensemble's configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerAddress {
    pub(super) port: u16,
    /// The id of the server in its ensemble, and the configuration lines of all servers.
    pub(super) ensemble: Option<(usize, String)>,
}

impl ZooKeeperServerConfig {
    /// A server with a tick of 100 ms, so that sessions of 200 ms are possible and expire in time.
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

    /// A server with the tick, the memory and the JIT compiler of production: for benchmarks.
    pub fn production_like() -> Self {
        let mut config = Self::plain().with_config("tickTime=2000");
        // Of two contradicting options the later one counts.
        let java = ["-Xmx512m", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4"];
        config.properties.extend(java.map(str::to_owned));
        config
    }

    /// Adds a line of the configuration file, such as `maxSessionTimeout=5000`; later ones win.
    #[must_use]
    pub fn with_config(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Adds a Java property, such as `znode.container.checkIntervalMs` and `100`.
    #[must_use]
    pub fn with_property(mut self, name: &str, value: &str) -> Self {
        self.properties.push(format!("-D{name}={value}"));
        self
    }

    /// Adds a user for SASL with DIGEST-MD5. Other clients are accepted as anonymous.
    #[must_use]
    pub fn with_sasl_user(mut self, name: &str, password: &str) -> Self {
        self.sasl.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Adds a port for TLS.
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

    /// Writes the files that the server reads into the directory, and returns its command.
    pub(super) fn command(
        &self,
        folder: &Path,
        address: &ServerAddress,
        tls: Option<&(u16, Certificates)>,
    ) -> Vec<OsString> {
        let (config, data) = (folder.join("zoo.cfg"), folder.join("data"));
        fs::create_dir(&data).expect("a directory can be created");
        if let Some((number, _)) = &address.ensemble {
            fs::write(data.join("myid"), number.to_string()).expect("a directory can be created");
        }
        let mut args = java::command(folder);
        args.extend(self.properties.iter().map(OsString::from));
        if !self.sasl.is_empty() {
            args.push(java::login(folder, "Server", &self.sasl_users()));
        }
        fs::write(&config, self.config_file(&data, address, tls)).expect("a directory can be created");
        args.extend([MAIN.into(), config.into_os_string()]);
        args
    }

    fn sasl_users(&self) -> String {
        let users = self.sasl.iter().map(|(name, password)| format!("user_{name}=\"{password}\""));
        users.collect::<Vec<_>>().join(" ")
    }

    fn config_file(&self, data: &Path, address: &ServerAddress, tls: Option<&(u16, Certificates)>) -> String {
        let mut file = format!("dataDir={}\nclientPortAddress=127.0.0.1\n", data.display());
        let _ = writeln!(file, "clientPort={}", address.port);
        if let Some((_, lines)) = &address.ensemble {
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
