//! Other programs that use `GET_LOCK`: they exclude ours, and ours exclude them.

use fencepost_core::{Guard, HolderState, Page};
use fencepost_testkit::actions::{LONG_TTL, enqueue, granted, hold};
use fencepost_testkit::{TestBench, wait};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::NamedBench;

/// A connection with the bare driver.
async fn driver(bench: &NamedBench) -> Conn {
    Conn::from_url(bench.server().url()).await.expect("the driver connects")
}

async fn ask(peer: &mut Conn, sql: &str) -> Option<i64> {
    peer.query_first::<Option<i64>, _>(sql).await.expect("the statement is executed").flatten()
}

/// Returns rules of names, a name, and the server's name that the other program uses. Named locks belong to the whole server.
fn peers() -> [(&'static str, String, String); 4] {
    let unique = fencepost_core::Owner::random().to_hex();
    let mixed = format!("Job-{unique}");
    let hashed = "SHA2('@', 256)".replace('@', &mixed);
    [
        ("raw", mixed.clone(), format!("'{mixed}'")),
        ("sha256hex", mixed, hashed),
        ("madelson", format!("job-{unique}"), format!("'job-{unique}'")),
        ("raw", format!("Größe/{unique}"), format!("'Größe/{unique}'")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_and_ours_exclude_each_other() {
    for (rule, name, key) in peers() {
        let bench = NamedBench::with(&format!("&key={rule}"));
        let (client, mut peer) = (bench.client().await, driver(&bench).await);
        let try_lock = format!("SELECT GET_LOCK({key}, 0)");
        let guard = hold(&client.lock(name.as_str()).ttl(LONG_TTL)).await;
        assert_eq!(ask(&mut peer, &try_lock).await, Some(0), "{rule} {name}: they do not see ours");
        guard.release().await.unwrap();
        assert_eq!(ask(&mut peer, &try_lock).await, Some(1), "{rule} {name}");
        assert!(
            client.lock(name.as_str()).try_acquire().await.unwrap().is_none(),
            "{rule} {name}: we do not see theirs"
        );

        let state = client.inspect(name.as_str()).await.unwrap();
        let holder = &state.holders[0];
        assert_eq!(
            (state.holders.len(), holder.token, holder.expires_in),
            (1, None, Some(HolderState::NO_EXPIRY))
        );
        assert!(holder.label.contains("root@") && holder.label.contains("connection "), "{}", holder.label);

        let waiter = enqueue(&client, client.lock(name.as_str()).ttl(LONG_TTL), &name, 1).await;
        assert_eq!(ask(&mut peer, &format!("SELECT RELEASE_LOCK({key})")).await, Some(1));
        granted(waiter).await.release().await.unwrap();
    }
}

/// A foreign connection that waits is in the same queue, first come, first served.
#[tokio::test(flavor = "multi_thread")]
async fn the_queue_of_the_server_is_shared() {
    let bench = NamedBench::with("&key=raw");
    let client = bench.client().await;
    let name = fencepost_core::Owner::random().to_hex();
    let guard = hold(&client.lock(name.as_str()).ttl(LONG_TTL)).await;
    let mut peer = driver(&bench).await;
    let (id, key) = (peer.id(), name.clone());
    let foreign = tokio::spawn(async move {
        assert_eq!(ask(&mut peer, &format!("SELECT GET_LOCK('{key}', 60)")).await, Some(1));
        peer
    });
    let state = format!("SELECT STATE FROM information_schema.PROCESSLIST WHERE ID = {id}");
    wait::until("the other program waits", async || bench.sql(&state).await == "User lock").await;
    let waiter = enqueue(&client, client.lock(name.as_str()).ttl(LONG_TTL), &name, 1).await;
    guard.release().await.unwrap();
    let peer = wait::within_timeout("the other program is granted the lock", foreign).await.unwrap();
    assert!(!waiter.is_finished());
    assert_eq!(client.inspect(name.as_str()).await.unwrap().holders[0].token, None);
    peer.disconnect().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// The locks of another namespace, of another database and of foreign programs have other names on the server.
#[tokio::test(flavor = "multi_thread")]
async fn namespaces_do_not_exclude_each_other() {
    let (ours, theirs) = (NamedBench::plain(), NamedBench::plain());
    let (client, other) = (ours.client().await, theirs.client().await);
    let mut peer = driver(&ours).await;
    assert_eq!(ask(&mut peer, "SELECT GET_LOCK('namespaces', 0)").await, Some(1));
    let guards: [Guard; 2] = [
        hold(&client.lock("namespaces").ttl(LONG_TTL)).await,
        hold(&other.lock("namespaces").ttl(LONG_TTL)).await,
    ];
    assert_eq!(client.list("", Page::new(10)).await.unwrap().locks.len(), 1);
    for guard in guards {
        guard.release().await.unwrap();
    }
}
