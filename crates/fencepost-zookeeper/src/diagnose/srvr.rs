//! Asking single servers how they are, with the four letter word `srvr`: the only one that servers answer unless they are
//! told not to.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::{Address, Encryption, Stream};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::config::Config;
use crate::error::unreachable;

/// Connecting to one server and its answer take no longer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// What a server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerReport {
    pub(super) version: String,
    /// `standalone`, `leader`, `follower`, `observer`, `read-only`.
    pub(super) mode: String,
}

/// What every server that the URL names says about itself, or why it does not. All are asked at once.
pub(super) async fn query_all(config: &Config, location: &str) -> Vec<(Address, Result<ServerReport>)> {
    let encryption = match config.tls.as_ref().map(Encryption::new).transpose() {
        Ok(encryption) => encryption,
        Err(error) => {
            return config.servers.iter().map(|server| (server.clone(), Err(error.clone()))).collect();
        }
    };
    let asked = config.servers.iter().map(async |server| {
        let answer = tokio::time::timeout(REPLY_TIMEOUT, query(server, encryption.as_ref(), location)).await;
        let late = |_| {
            Err(unreachable(location)
                .with_source(format!("no answer from {server} within {REPLY_TIMEOUT:?}")))
        };
        (server.clone(), answer.unwrap_or_else(late))
    });
    join_all(asked).await
}

async fn query(server: &Address, encryption: Option<&Encryption>, location: &str) -> Result<ServerReport> {
    let away = || unreachable(location).context(format_args!("could not ask {server}"));
    let mut stream = Stream::open(server, encryption, away).await?;
    stream.write_all(b"srvr").await.map_err(|error| away().with_source(error))?;
    let mut said = Vec::new();
    // Some hang up without a word after what they had to say.
    let heard = stream.read_to_end(&mut said).await;
    match heard {
        Err(error) if said.is_empty() => Err(away().with_source(error)),
        _ => read(&String::from_utf8_lossy(&said), away),
    }
}

fn read(said: &str, away: impl Fn() -> Error) -> Result<ServerReport> {
    let line = |start: &str| said.lines().find_map(|line| line.strip_prefix(start)).map(str::trim);
    if said.contains("whitelist") {
        return Err(Error::new(ErrorKind::Denied, "the server does not answer to srvr")
            .with_hint("permit it in the server's configuration: 4lw.commands.whitelist=srvr"));
    }
    let version = line("Zookeeper version:").and_then(|rest| rest.split(['-', ',']).next());
    match (version, line("Mode:")) {
        (Some(version), Some(mode)) => {
            Ok(ServerReport { version: version.to_owned(), mode: mode.to_owned() })
        }
        _ => Err(away().with_source(format!("it says: {}", said.lines().next().unwrap_or("nothing")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<ServerReport> {
        read(text, || unreachable("zk://h"))
    }

    #[test]
    fn what_servers_say() {
        let text = "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25 UTC\n\
                    Latency min/avg/max: 0/0.0/0\nMode: follower\nNode count: 5\n";
        let answer = said(text).unwrap();
        assert_eq!((answer.version.as_str(), answer.mode.as_str()), ("3.8.0", "follower"));
        let busy = said("This ZooKeeper instance is not currently serving requests\n").unwrap_err();
        assert!(busy.full_message().contains("not currently serving"), "{busy:?}");
        let closed = said("srvr is not executed because it is not in the whitelist.\n").unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::Denied);
        assert!(closed.hint().unwrap().contains("4lw.commands.whitelist"));
        assert!(said("").unwrap_err().full_message().contains("it says: nothing"));
    }
}
