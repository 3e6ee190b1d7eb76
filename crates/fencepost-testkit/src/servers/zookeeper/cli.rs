//! ZooKeeper's own command line client, which looks into servers from outside.

use std::process::{Command, Output};

use super::{ZooKeeperServer, java};

const MAIN: &str = "org.apache.zookeeper.ZooKeeperMain";

/// How the client comes to the server, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CliLogin<'a> {
    /// As nobody.
    Anonymous,
    /// As a user of [`ZooKeeperServerConfig::with_sasl_user`](super::ZooKeeperServerConfig::with_sasl_user).
    Sasl(&'a str),
    /// With TLS, and a certificate of the authority.
    TlsWithCertificate,
    /// With TLS, and nothing to show.
    TlsWithoutCertificate,
}

impl ZooKeeperServer {
    /// Runs ZooKeeper's client with these words, such as `get /path`, and returns what it says. It takes a moment: this
    /// is for single looks.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn cli(&self, words: &[&str]) -> String {
        let said = self.try_cli(&CliLogin::Anonymous, words);
        said.unwrap_or_else(|error| panic!("{words:?} was answered with: {error}"))
    }

    /// Like [`ZooKeeperServer::cli`], for words that may fail, and for those who are somebody.
    ///
    /// # Errors
    /// What the server or its client says is wrong.
    ///
    /// # Panics
    /// If the client cannot be started, or if the server is not set up for the visitor.
    pub fn try_cli(&self, visitor: &CliLogin<'_>, words: &[&str]) -> Result<String, String> {
        let folder = tempfile::tempdir().expect("there is room");
        let [java, options @ ..] = &java::command(folder.path())[..] else { unreachable!("java is a word") };
        let mut client = Command::new(java);
        client.args(options).args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]);
        let mut port = self.port();
        match visitor {
            CliLogin::Anonymous => {}
            CliLogin::Sasl(user) => {
                let password = self.setup.password_of(user).expect("the user was set up");
                let login = format!("username=\"{user}\" password=\"{password}\"");
                client.arg(java::login(folder.path(), "Client", &login));
            }
            CliLogin::TlsWithCertificate | CliLogin::TlsWithoutCertificate => {
                port = self.tls_port();
                client.args(self.tls_options(*visitor == CliLogin::TlsWithCertificate));
            }
        }
        // Long, for a busy machine; a connection that is refused is a failure at once all the same.
        client.args([MAIN, "-timeout", "30000"]);
        client.args(["-server", &format!("127.0.0.1:{port}")]).args(words);
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

/// What the client has said about its errand, without what it says about the connection.
fn read(done: &Output) -> Result<String, String> {
    let said = [&done.stdout[..], &done.stderr].map(String::from_utf8_lossy).concat();
    let chat = |line: &&str| {
        line.is_empty()
            || ["Connecting to", "WATCHER::", "WatchedEvent"].iter().any(|word| line.starts_with(word))
    };
    let said = said.lines().filter(|line| !chat(line)).collect::<Vec<_>>().join("\n");
    if done.status.success() { Ok(said) } else { Err(said) }
}
