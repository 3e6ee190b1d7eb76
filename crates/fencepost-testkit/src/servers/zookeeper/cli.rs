//! ZooKeeper's command line client.

use std::process::{Command, Output};

use super::{ZooKeeperServer, java};

const MAIN: &str = "org.apache.zookeeper.ZooKeeperMain";

/// How the command line client authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CliLogin<'a> {
    /// Without a user.
    Anonymous,
    /// As a user of [`ZooKeeperServerConfig::with_sasl_user`](super::ZooKeeperServerConfig::with_sasl_user).
    Sasl(&'a str),
    /// With TLS, and a certificate of the authority.
    TlsWithCertificate,
    /// With TLS, and without a certificate.
    TlsWithoutCertificate,
}

impl ZooKeeperServer {
    /// Runs ZooKeeper's client with these arguments, such as `get /path`, and returns its output. Starting Java takes a
    /// moment.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn cli(&self, args: &[&str]) -> String {
        let said = self.try_cli(&CliLogin::Anonymous, args);
        said.unwrap_or_else(|error| panic!("{args:?} failed: {error}"))
    }

    /// Like [`ZooKeeperServer::cli`], for commands that may fail, and with another login.
    ///
    /// # Errors
    /// The error that the server or its client reports.
    ///
    /// # Panics
    /// If the client cannot be started, or if the server is not configured for the login.
    pub fn try_cli(&self, login: &CliLogin<'_>, args: &[&str]) -> Result<String, String> {
        let folder = tempfile::tempdir().expect("a directory can be created");
        let [java, options @ ..] = &java::command(folder.path())[..] else { unreachable!("java is a word") };
        let mut client = Command::new(java);
        client.args(options).args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]);
        let mut port = self.port();
        match login {
            CliLogin::Anonymous => {}
            CliLogin::Sasl(user) => {
                let password = self.config.password_of(user).expect("the user is configured");
                let login = format!("username=\"{user}\" password=\"{password}\"");
                client.arg(java::login(folder.path(), "Client", &login));
            }
            CliLogin::TlsWithCertificate | CliLogin::TlsWithoutCertificate => {
                port = self.tls_port();
                client.args(self.tls_options(*login == CliLogin::TlsWithCertificate));
            }
        }
        // Long, for a busy machine; a refused connection is a failure at once nevertheless.
        client.args([MAIN, "-timeout", "30000"]);
        client.args(["-server", &format!("127.0.0.1:{port}")]).args(args);
        read(&client.output().expect("java can be started"))
    }

    fn tls_options(&self, with_certificate: bool) -> Vec<String> {
        let made = self.certificates();
        let mut options = vec![
            "-Dzookeeper.client.secure=true".to_owned(),
            "-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty".to_owned(),
            format!("-Dzookeeper.ssl.trustStore.location={}", made.ca.display()),
            "-Dzookeeper.ssl.trustStore.type=PEM".to_owned(),
        ];
        if with_certificate {
            let both = java::certificate_with_key(&made.client_cert, &made.client_key);
            options.push(format!("-Dzookeeper.ssl.keyStore.location={}", both.display()));
            options.push("-Dzookeeper.ssl.keyStore.type=PEM".to_owned());
        }
        options
    }
}

/// Returns the output of the client without its messages about the connection.
fn read(done: &Output) -> Result<String, String> {
    let said = [&done.stdout[..], &done.stderr].map(String::from_utf8_lossy).concat();
    let chat = |line: &&str| {
        line.is_empty()
            || ["Connecting to", "WATCHER::", "WatchedEvent"].iter().any(|word| line.starts_with(word))
    };
    let said = said.lines().filter(|line| !chat(line)).collect::<Vec<_>>().join("\n");
    if done.status.success() { Ok(said) } else { Err(said) }
}
