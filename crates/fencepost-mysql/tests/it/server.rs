//! What the server can do to its clients: restart, kill connections, run out of rights or time, lock rows for others.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{ErrorKind, Finding, Options, Page};
use fencepost_testkit::actions::spawn_waiter;
use fencepost_testkit::servers::mariadb::{MariadbServer, MariadbServerConfig, TlsClients};
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::bench::MariadbBench;

const TTL: Duration = Duration::from_secs(30);

/// Many clients create the tables at once; all of them see the same storage.
#[tokio::test(flavor = "multi_thread")]
async fn many_clients_start_at_once() {
    let bench = MariadbBench::plain();
    let clients = futures_util::future::join_all((0..12).map(|_| bench.client())).await;
    let ids: std::collections::HashSet<_> =
        clients.iter().map(|client| client.info().storage_id.to_string()).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(bench.sql("SELECT COUNT(*), MIN(format) FROM {storage}"), "1\t1");
    let guard = clients[0].lock("a").ttl(TTL).try_acquire().await.unwrap().unwrap();
    for client in &clients[1..] {
        assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
}

/// A grant is committed when it is returned: it outlives the death of the server, and so does the counter of tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_keeps_grants_and_never_repeats_a_token() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain());
    let client = bench.client().await;
    let mut last = 0;
    for round in 0..3 {
        let before = client.lock("b").ttl(TTL).try_acquire().await.unwrap().unwrap();
        assert!(before.token().get() > last);
        let held = client.lock("a").ttl(TTL).try_acquire().await.unwrap().unwrap();
        last = held.token().get();
        before.release().await.unwrap();
        bench.server().kill();
        bench.server().restart();
        let other = bench.client().await;
        assert!(other.lock("a").try_acquire().await.unwrap().is_none(), "round {round}");
        wait::until("it is renewed", async || {
            held.remaining() > TTL * 9 / 10 || held.lost_reason().is_some()
        })
        .await;
        held.release().await.unwrap();
        let next = other.lock("a").ttl(TTL).try_acquire().await.unwrap().unwrap();
        assert!(next.token().get() > last);
        last = next.token().get();
        next.release().await.unwrap();
        other.close().await;
    }
}

/// Connections that an administrator kills are replaced; nothing is lost and nothing is reported.
#[tokio::test(flavor = "multi_thread")]
async fn killed_connections_are_replaced() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain());
    let (holder, waiting) = (bench.client().await, bench.client().await);
    let guard = holder.lock("a").ttl(TTL).try_acquire().await.unwrap().unwrap();
    let waiter = spawn_waiter(waiting.lock("a").ttl(TTL));
    wait::until("it waits", async || holder.inspect("a").await.unwrap().waiter_count == 1).await;
    for _ in 0..5 {
        let ids = bench.sql(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND USER = 'root'",
        );
        for id in ids.lines() {
            let _ = bench.server().try_sql(&format!("KILL {id}"));
        }
        let turn = holder.lock("other").ttl(TTL).acquire().await.unwrap();
        turn.release().await.unwrap();
    }
    assert_eq!(guard.lost_reason(), None);
    guard.release().await.unwrap();
    let guard = wait::within_timeout("the waiter is granted", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// A transaction of another program that has the row of a lock locked delays no other lock, and is a holder for a try.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_transaction_on_a_row_delays_no_other_lock() {
    let bench = MariadbBench::plain();
    let client = bench.client().await;
    let foreign = bench.with_tables(&format!(
        "START TRANSACTION; INSERT INTO {{locks}} (name) VALUES ({}) ON DUPLICATE KEY UPDATE name = name; \
         SELECT SLEEP(8); COMMIT",
        MariadbBench::literal("theirs")
    ));
    let server = bench.server_handle();
    let foreign = tokio::task::spawn_blocking(move || server.get().sql(&foreign));
    let blocked = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User sleep' AND INFO LIKE '%SLEEP(8)%'";
    wait::until("the row is locked", async || bench.server().sql(blocked) != "0").await;
    let clock = Clock::system();
    assert!(
        client.lock("theirs").ttl(TTL).try_acquire().await.unwrap().is_none(),
        "it is held by the transaction"
    );
    let started = clock.now();
    let mine = client.lock("mine").ttl(TTL).acquire().await.unwrap();
    for _ in 0..20 {
        let (theirs, other) = (client.lock("theirs").ttl(TTL), client.lock("other").ttl(TTL));
        let (theirs, other) = tokio::join!(theirs.try_acquire(), other.try_acquire());
        assert!(theirs.unwrap().is_none());
        other.unwrap().unwrap().release().await.unwrap();
    }
    assert!(!foreign.is_finished(), "the transaction goes on: {:?}", clock.now().since(started));
    let waiter = client.lock("theirs").ttl(TTL);
    let guard = wait::within_timeout("the transaction has ended", waiter.acquire()).await.unwrap();
    assert!(foreign.is_finished() || foreign.await.is_ok());
    guard.release().await.unwrap();
    mine.release().await.unwrap();
}

/// Transactions that deadlock with others of the server are repeated, and the error is not shown.
#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_are_retried() {
    let bench = Arc::new(MariadbBench::plain());
    let client = bench.client().await;
    let (a, b) = (MariadbBench::literal("a"), MariadbBench::literal("b"));
    // The other way round: each of them deadlocks with a flight on both names, sooner or later.
    let foreign = bench.with_tables(&format!(
        "START TRANSACTION; INSERT INTO {{locks}} (name) VALUES ({b}) ON DUPLICATE KEY UPDATE version = version + 1; \
         DO SLEEP(0.01); INSERT INTO {{locks}} (name) VALUES ({a}) ON DUPLICATE KEY UPDATE version = version + 1; COMMIT; "
    ));
    let (server, done) = (bench.server_handle(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let stop = done.clone();
    let foreign = tokio::task::spawn_blocking(move || {
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            // It may be the victim itself.
            let _ = server.get().try_sql(&foreign.repeat(20));
        }
    });
    let deadlocks = || -> u64 {
        let counter = bench.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
        counter.split('\t').nth(1).unwrap().parse().unwrap()
    };
    let before = deadlocks();
    wait::until("there were deadlocks", async || {
        for _ in 0..50 {
            let guard = client.lock_all(["a", "b"]).ttl(TTL).acquire().await.unwrap();
            guard.release().await.unwrap();
        }
        deadlocks() >= before + 5
    })
    .await;
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    foreign.await.unwrap();
}

/// Scenario 67: what names that are used once leave behind does not depend on how many there were.
#[tokio::test(flavor = "multi_thread")]
async fn one_off_names_leave_a_bounded_number_of_rows() {
    let bench = MariadbBench::plain();
    let client = bench.client().await;
    let pages = if std::env::var_os("FENCEPOST_FULL").is_some() { 1_000 } else { 20 };
    for page in 0..pages {
        let turns = (0..1_000).map(|n| {
            let lock = client.lock(format!("job/{page}/{n}")).ttl(TTL);
            async move { lock.try_acquire().await.unwrap().unwrap().release().await.unwrap() }
        });
        futures_util::future::join_all(turns).await;
    }
    let rows = "SELECT (SELECT COUNT(*) FROM {locks}) + (SELECT COUNT(*) FROM {holders}) + (SELECT COUNT(*) FROM {tickets})";
    assert_eq!(bench.sql(rows), "0");
    wait::until("the rows of minted tokens are removed", async || {
        client.lock("other").try_acquire().await.unwrap().unwrap().release().await.unwrap();
        bench.sql("SELECT COUNT(*) < 3000 FROM {tokens}") == "1"
    })
    .await;
}

/// The rows of a client that died are removed by the others, also those of locks that they do not use.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_dead_client_are_swept() {
    let bench = MariadbBench::plain();
    let (dying, proxy) = bench.proxied().await;
    for n in 0..200 {
        std::mem::forget(dying.lock(format!("dead/{n}")).ttl(bench.ttl()).try_acquire().await.unwrap());
    }
    proxy.crash();
    let client = bench.client().await;
    wait::until("nothing is left", async || {
        client.lock("other").try_acquire().await.unwrap().unwrap().release().await.unwrap();
        bench.sql("SELECT (SELECT COUNT(*) FROM {holders}) + (SELECT COUNT(*) FROM {locks})") == "0"
    })
    .await;
}

/// A clock of the server that is set forward ends leases early, and one that is set back does not extend them beyond their ttl;
/// tokens grow whatever it does.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_clock_set_forward_ends_leases_early() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain().with_movable_clock());
    let (client, other) = (bench.client().await, bench.client().await);
    let guard = client.lock("a").ttl(TTL).try_acquire().await.unwrap().unwrap();
    bench.server().shift_clock(3600);
    let early = other
        .lock("a")
        .ttl(TTL)
        .try_acquire()
        .await
        .unwrap()
        .expect("the lease has ended on the server's clock");
    assert!(early.token() > guard.token());
    assert!(guard.release().await.is_err());
    bench.server().shift_clock(0);
    let state = other.inspect("a").await.unwrap();
    assert!(state.holders[0].expires_in.unwrap() <= TTL, "{:?}", state.holders[0].expires_in);
    let token = early.token();
    early.release().await.unwrap();
    let next = client.lock("a").ttl(TTL).try_acquire().await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

/// An account with exactly the rights that `fencepost rights` prints creates the tables and uses every operation.
#[tokio::test(flavor = "multi_thread")]
async fn the_printed_rights_are_enough() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_user("ann", "hunter2"));
    let url = server.url_as("ann");
    let denied = fencepost_mysql::connect(&url).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Denied);
    assert!(!format!("{denied:?}").contains("hunter2"));
    let rights = fencepost_mysql::rights(&url).unwrap().replace("'%'", "'127.0.0.1'");
    server.sql(&rights.replace("\nGRANT ", "\n-- GRANT ").replace("-- GRANT CREATE", "GRANT CREATE"));
    let client = fencepost_mysql::connect(&url).await.unwrap();
    let guard = client.lock_all(["a", "b"]).ttl(TTL).acquire().await.unwrap();
    let waiter = spawn_waiter(client.lock("a").ttl(TTL));
    wait::until("it waits", async || client.inspect("a").await.unwrap().waiter_count == 1).await;
    assert_eq!(client.list("", Page::new(10)).await.unwrap().locks.len(), 2);
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    let concerns = Finding::concerns(client.diagnose().await.unwrap());
    assert!(concerns.is_empty(), "{concerns:?}");
    server.sql("REVOKE DELETE ON app.fencepost_holders FROM ann@'127.0.0.1'");
    let fresh = fencepost_mysql::connect(&url).await.unwrap();
    let concerns = Finding::concerns(fresh.diagnose().await.unwrap());
    assert!(concerns.iter().any(|finding| finding.check == "rights"), "{concerns:?}");
}

/// TLS with an authority of the user's own; another authority is rejected.
#[tokio::test(flavor = "multi_thread")]
async fn tls_with_a_private_authority() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_tls(TlsClients::WithCertificate));
    let made = server.certificates();
    let (cert, key) = (made.client_cert.display(), made.client_key.display());
    let base = format!("{}?tls=true&tls_cert={cert}&tls_key={key}", server.tls_url());
    let client = fencepost_mysql::connect(&format!("{base}&tls_ca={}", made.ca.display())).await.unwrap();
    client.lock("a").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    let concerns = Finding::concerns(client.diagnose().await.unwrap());
    assert!(concerns.is_empty(), "{concerns:?}");
    let rejected =
        fencepost_mysql::connect(&format!("{base}&tls_ca={}", made.other_ca.display())).await.unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::Denied);
    let plain = fencepost_mysql::connect(&server.url()).await.unwrap_err();
    assert_eq!(plain.kind(), ErrorKind::Denied, "{plain:?}");
}

/// The server's own errors say what is wrong and what to do.
#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_server_are_clear() {
    let bench = MariadbBench::plain();
    let url = WireBench::url(&bench).to_owned();
    let kind_of = async |url: String| {
        let error = fencepost_mysql::connect(&url).await.unwrap_err();
        assert!(error.hint().is_some(), "{error:?}");
        (error.kind(), error.to_string())
    };
    assert_eq!(kind_of(url.replace("/app?", "/missing?")).await.0, ErrorKind::Missing);
    assert_eq!(kind_of(url.replace("root@", "root:wrong@")).await.0, ErrorKind::Denied);
    assert_eq!(kind_of(format!("{url}&tls=true")).await.0, ErrorKind::BadConfig);
    let missing = fencepost_mysql::connect_with(&url, Options::new().only_existing()).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Missing);
    // A table of another program.
    bench.sql("CREATE TABLE {holders} (id INT)");
    let (kind, message) = kind_of(url.clone()).await;
    assert_eq!(kind, ErrorKind::Backend);
    assert!(message.contains(&format!("{}_holders", bench.namespace())), "{message}");
    bench.sql("DROP TABLE {holders}");
    // Another format.
    bench.client().await.close().await;
    bench.sql("UPDATE {storage} SET format = 7");
    let (kind, message) = kind_of(url.clone()).await;
    assert_eq!(kind, ErrorKind::Backend);
    assert!(message.contains("format 7"), "{message}");
    bench.sql("DROP TABLE {storage}; CREATE TABLE {storage} (x INT)");
    assert_eq!(kind_of(url).await.0, ErrorKind::Backend);
}

/// Scenario 66: a server that is made read-only grants nothing; a waiter keeps waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_reported() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_user("ann", "hunter2"));
    let url = server.url_as("ann");
    server.sql("GRANT ALL ON app.* TO ann@'127.0.0.1'");
    let client = fencepost_mysql::connect(&url).await.unwrap();
    server.sql("SET GLOBAL read_only = 1");
    let error = client.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    assert!(error.to_string().contains("read-only"), "{error}");
    let waiter = spawn_waiter(client.lock("a").ttl(TTL));
    let concerns = Finding::concerns(client.diagnose().await.unwrap());
    assert!(concerns.iter().any(|finding| finding.check == "role"), "{concerns:?}");
    assert!(!waiter.is_finished());
    server.sql("SET GLOBAL read_only = 0");
    let guard = wait::within_timeout("it is granted", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// A client that is idle keeps one connection, one that waits two, a busy one at most four.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_has_few_connections() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain());
    let count = || {
        let sql = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'root' AND ID <> CONNECTION_ID()";
        bench.sql(sql).parse::<usize>().unwrap()
    };
    let client = bench.client().await;
    assert_eq!(count(), 1);
    let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
    let waiter = spawn_waiter(client.lock("a").ttl(TTL));
    wait::until("it waits", async || client.inspect("a").await.unwrap().waiter_count == 1).await;
    assert!(count() <= 4, "{}", count());
    wait::until("idle connections are closed", async || count() <= 2).await;
    let turns = (0..500).map(|n| {
        let lock = client.lock(format!("{n}")).ttl(TTL);
        async move { lock.acquire().await.unwrap().release().await.unwrap() }
    });
    let busy = futures_util::future::join_all(turns);
    let (_, most) = tokio::join!(busy, async { count() });
    assert!(most.max(count()) <= 4, "{most}");
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    client.close().await;
    wait::until("all connections are closed", async || count() == 0).await;
}
