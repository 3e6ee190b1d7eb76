//! Several servers of one client.

use std::sync::Arc;

use fencepost_core::ErrorKind;
use fencepost_core::push;
use fencepost_net::Address;
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::wait;

use super::*;
use crate::config::parse;

fn nodes(servers: &[RedisServer]) -> Vec<Arc<Node>> {
    let (pusher, _) = push::channel();
    let state = Arc::new(ClientState::new(parse("redis://quorum").unwrap(), None, false, pusher));
    let node = |server: &RedisServer| {
        let target = Target::Address(Address { host: "127.0.0.1".into(), port: server.port() });
        Node::new(state.clone(), target, &Script::ALL, Arc::default()).keep_connected()
    };
    servers.iter().map(node).collect()
}

/// Inspects one lock. Returns the number of values in the reply.
async fn inspect(node: &Node) -> Result<usize, Failure> {
    let call = ScriptCall {
        script: Script::Inspect,
        prefix: "fencepost:",
        keys: Vec::new(),
        min_replicas: 0,
        timeout: READ_TIMEOUT,
    };
    let add_arguments = |command: &mut Cmd| {
        command.arg("fencepost:").arg(1).arg("a");
    };
    let reply = node.call_script(&call, &add_arguments, Asking::No);
    match reply.await?.value {
        Value::Array(found) => Ok(found.len()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_server_has_its_own_identity_and_scripts() {
    let servers =
        [RedisServer::start(&RedisServerConfig::plain()), RedisServer::start(&RedisServerConfig::plain())];
    let nodes = nodes(&servers);
    for (node, server) in nodes.iter().zip(&servers) {
        assert!(!node.is_connected() && node.identity().stored().is_none());
        assert_eq!(inspect(node).await.ok(), Some(2));
        assert!(node.is_connected());
        let kept = server.cli(&["GET", "fencepost:about"]);
        assert_eq!(kept.trim(), format!("1 {}", node.identity().id()));
        server.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(inspect(node).await.ok(), Some(2), "the script is loaded again");
    }
    assert_ne!(nodes[0].identity().id(), nodes[1].identity().id());
}

#[tokio::test]
async fn a_server_that_is_down_does_not_affect_the_others() {
    let servers =
        [RedisServer::start(&RedisServerConfig::plain()), RedisServer::start(&RedisServerConfig::plain())];
    let nodes = nodes(&servers);
    for node in &nodes {
        node.connection().await.unwrap();
    }
    servers[0].kill();
    wait::until("the end of the connection is noticed", async || !nodes[0].is_connected()).await;
    let failed = inspect(&nodes[0]).await.unwrap_err().into_error("redis://quorum");
    assert_eq!(failed.kind(), ErrorKind::Unreachable, "{failed:?}");
    assert_eq!(inspect(&nodes[1]).await.ok(), Some(2));
}
