//! kazoo and ours at the same node: names that need no escaping, and recipes that do not exclude ours.

use fencepost::{Client, ErrorKind};
use fencepost_interop::kazoo::Held;
use fencepost_testkit::servers::zookeeper::{ZooKeeperServer, ZooKeeperServerConfig};

fn server() -> ZooKeeperServer {
    // The usual tick: the session timeouts that kazoo requests depend on it.
    ZooKeeperServer::start(&ZooKeeperServerConfig::plain().with_config("tickTime=2000"))
}

async fn connect(server: &ZooKeeperServer) -> Client {
    fencepost::connect(&format!("{}?dialect=kazoo", server.url())).await.expect("the server is there")
}

fn node(name: &str) -> String {
    format!("/fencepost/{name}")
}

/// Scenario 68: a name that kazoo writes verbatim is the same lock, in either order.
#[tokio::test]
async fn a_name_is_the_same_lock_for_kazoo_and_for_us() {
    let server = server();
    let client = connect(&server).await;
    for (name, theirs) in [
        ("müller", "müller"),
        ("a%b", "a%b"),
        ("a b", "a b"),
        ("a%20b", "a%20b"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("🦀", "%F0%9F%A6%80"),
        (".", "%2E"),
    ] {
        let guard = client.lock(name).acquire().await.expect("it is free");
        assert!(Held::take("Lock", server.port(), &node(theirs)).is_none(), "kazoo enters {name} beside us");
        guard.release().await.expect("it is held");
        let held = Held::take("Lock", server.port(), &node(theirs)).expect("it is free");
        assert!(client.lock(name).try_acquire().await.unwrap().is_none(), "we enter {name} beside kazoo");
        held.release();
        client.lock(name).acquire().await.expect("it is free").release().await.expect("it is held");
    }
}

/// Scenario 69: recipes of kazoo that do not exclude ours are rejected while they are held; one that does is waited for.
#[tokio::test]
async fn other_recipes_of_kazoo_are_refused() {
    let server = server();
    let client = connect(&server).await;
    for recipe in ["ReadLock", "Semaphore"] {
        let held = Held::take(recipe, server.port(), &node("a")).expect("it is free");
        let error = client.lock("a").try_acquire().await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{recipe}: {error}");
        held.release();
        client.lock("a").acquire().await.expect("it is free").release().await.expect("it is held");
    }
    let held = Held::take("WriteLock", server.port(), &node("a")).expect("it is free");
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    held.release();
}
