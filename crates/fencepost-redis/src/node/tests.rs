//! Several servers under one client, as a quorum has them.

use std::sync::Arc;

use fencepost_core::ErrorKind;
use fencepost_core::push;
use fencepost_net::Address;
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::wait;

use super::*;
use crate::config::parse;

fn nodes(servers: &[RedisServer]) -> Vec<Arc<Node>> {
    let (push, _) = push::channel();
    let setup = Arc::new(Setup::new(parse("redis://quorum").unwrap(), None, false, push));
    let node = |server: &RedisServer| {
        let target = Target::This(Address { host: "127.0.0.1".into(), port: server.port() });
        Node::new(setup.clone(), target, &Script::ALL, Arc::default()).tended()
    };
    servers.iter().map(node).collect()
}

/// Returns how many values the script answers with for one lock.
async fn look(node: &Node) -> Result<usize, Failure> {
    let call = Call {
        script: Script::Inspect,
        prefix: "fencepost:",
        keys: Vec::new(),
        replicas: 0,
        patience: LOOK_TIMEOUT,
    };
    let arguments = |command: &mut Cmd| {
        command.arg("fencepost:").arg(1).arg("a");
    };
    let answer = node.invoke(&call, &arguments, Asking::No);
    match answer.await?.value {
        Value::Array(found) => Ok(found.len()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_server_is_a_storage_with_scripts_of_its_own() {
    let servers =
        [RedisServer::start(&RedisServerConfig::plain()), RedisServer::start(&RedisServerConfig::plain())];
    let nodes = nodes(&servers);
    for (node, server) in nodes.iter().zip(&servers) {
        assert!(!node.is_connected() && node.identity().known().is_none());
        assert_eq!(look(node).await.ok(), Some(2));
        assert!(node.is_connected());
        let kept = server.cli(&["GET", "fencepost:about"]);
        assert_eq!(kept.trim(), format!("1 {}", node.identity().id()));
        server.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(look(node).await.ok(), Some(2), "the script is loaded again");
    }
    assert_ne!(nodes[0].identity().id(), nodes[1].identity().id());
}

#[tokio::test]
async fn a_server_that_is_away_does_not_touch_the_others() {
    let servers =
        [RedisServer::start(&RedisServerConfig::plain()), RedisServer::start(&RedisServerConfig::plain())];
    let nodes = nodes(&servers);
    for node in &nodes {
        node.live().await.unwrap();
    }
    servers[0].kill();
    wait::until("the end of the connection is noticed", async || !nodes[0].is_connected()).await;
    let failed = look(&nodes[0]).await.unwrap_err().into_error("redis://quorum");
    assert_eq!(failed.kind(), ErrorKind::Unreachable, "{failed:?}");
    assert_eq!(look(&nodes[1]).await.ok(), Some(2));
}
