//! Queries single servers with the four letter word `srvr`, the only one that servers answer by default.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::{Address, Encryption, Stream};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::config::Config;
use crate::error::unreachable;

/// The timeout for connecting to one server and reading its reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// The report of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerReport {
    pub(super) version: String,
    /// `standalone`, `leader`, `follower`, `observer`, `read-only`.
    pub(super) mode: String,
}

/// Queries every server that the URL names, all at the same time.
pub(super) async fn query_all(config: &Config, location: &str) -> Vec<(Address, Result<ServerReport>)> {
    let encryption = match config.tls.as_ref().map(Encryption::new).transpose() {
        Ok(encryption) => encryption,
        Err(error) => {
            return config.servers.iter().map(|server| (server.clone(), Err(error.clone()))).collect();
        }
    };
    let queries = config.servers.iter().map(async |server| {
        let report = tokio::time::timeout(REPLY_TIMEOUT, query(server, encryption.as_ref(), location)).await;
        let late = |_| {
            Err(unreachable(location).with_source(format!("no reply from {server} within {REPLY_TIMEOUT:?}")))
        };
        (server.clone(), report.unwrap_or_else(late))
    });
    join_all(queries).await
}

async fn query(server: &Address, encryption: Option<&Encryption>, location: &str) -> Result<ServerReport> {
    let error = || unreachable(location).context(format_args!("could not query {server}"));
    let mut stream = Stream::open(server, encryption, error).await?;
    stream.write_all(b"srvr").await.map_err(|cause| error().with_source(cause))?;
    let mut text = Vec::new();
    // Some servers reset the connection after the reply.
    let read_result = stream.read_to_end(&mut text).await;
    match read_result {
        Err(cause) if text.is_empty() => Err(error().with_source(cause)),
        _ => parse(&String::from_utf8_lossy(&text), error),
    }
}

fn parse(text: &str, error: impl Fn() -> Error) -> Result<ServerReport> {
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).map(str::trim);
    if text.contains("whitelist") {
        return Err(Error::new(ErrorKind::Denied, "the server does not answer to srvr")
            .with_hint("allow it in the server's configuration: 4lw.commands.whitelist=srvr"));
    }
    let version = line("Zookeeper version:").and_then(|rest| rest.split(['-', ',']).next());
    match (version, line("Mode:")) {
        (Some(version), Some(mode)) => {
            Ok(ServerReport { version: version.to_owned(), mode: mode.to_owned() })
        }
        _ => Err(error().with_source(format!("it replied: {}", text.lines().next().unwrap_or("nothing")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<ServerReport> {
        parse(text, || unreachable("zk://h"))
    }

    #[test]
    fn reports_are_parsed() {
        let text = "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25 UTC\n\
                    Latency min/avg/max: 0/0.0/0\nMode: follower\nNode count: 5\n";
        let report = parsed(text).unwrap();
        assert_eq!((report.version.as_str(), report.mode.as_str()), ("3.8.0", "follower"));
        let busy = parsed("This ZooKeeper instance is not currently serving requests\n").unwrap_err();
        assert!(busy.full_message().contains("not currently serving"), "{busy:?}");
        let closed = parsed("srvr is not executed because it is not in the whitelist.\n").unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::Denied);
        assert!(closed.hint().unwrap().contains("4lw.commands.whitelist"));
        assert!(parsed("").unwrap_err().full_message().contains("it replied: nothing"));
    }
}
