//! Telling a pooler with shared sessions from all others.

use fencepost_testkit::servers::postgres::PgBouncer;
use fencepost_testkit::wire::Wire;

use super::*;

async fn is_pooled(url: &str) -> bool {
    let link = link(url);
    let client = link.open(None).await.unwrap();
    link.pooled(&client).await.unwrap()
}

#[tokio::test]
async fn sessions_that_transactions_share_are_detected() {
    for lines in
        [vec![], vec!["default_pool_size = 1"], vec!["server_round_robin = 1"], vec!["pool_mode = statement"]]
    {
        let bouncer = PgBouncer::start_with(shared(), &lines);
        assert!(is_pooled(&bouncer.url("postgres")).await, "{lines:?}");
        // Some connections of the server are idle, and more than one can be taken.
        let url = bouncer.url("postgres");
        let others: Vec<_> = (0..4).map(|_| link(&url)).collect();
        for other in &others {
            let sleep = other.open(None).await.unwrap();
            tokio::spawn(async move { sleep.batch_execute("SELECT pg_sleep(0.05)").await });
        }
        assert!(is_pooled(&url).await, "{lines:?}");
    }
}

#[tokio::test]
async fn a_pooler_that_uses_its_connections_in_turn_is_detected() {
    let bouncer = PgBouncer::start_with(shared(), &["server_round_robin = 1"]);
    let url = bouncer.url("postgres");
    let clients = [link(&url).open(None).await.unwrap(), link(&url).open(None).await.unwrap()];
    // Two transactions at once have two connections of the server, which are idle afterwards.
    for statement in ["BEGIN", "COMMIT"] {
        for client in &clients {
            client.batch_execute(statement).await.unwrap();
        }
    }
    assert!(is_pooled(&url).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_pooler_is_detected() {
    let bouncer = PgBouncer::start_with(shared(), &["default_pool_size = 4"]);
    let url = bouncer.url("postgres");
    let busy: Vec<_> = (0..8)
        .map(|_| {
            let link = link(&url);
            tokio::spawn(async move {
                let client = link.open(None).await.unwrap();
                loop {
                    client.batch_execute("SELECT pg_sleep(0.001)").await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..20 {
        assert!(is_pooled(&url).await);
    }
    busy.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn sessions_of_their_own_are_not_pooled() {
    let bouncer = PgBouncer::start_with(shared(), &["pool_mode = session"]);
    assert!(!is_pooled(&bouncer.url("postgres")).await);
    let wire = Wire::to(shared().port());
    let url = shared().url("postgres").replace(&shared().port().to_string(), &wire.port().to_string());
    let link = link(&url);
    let client = link.open(None).await.unwrap();
    assert!(!link.is_direct.load(Ordering::Relaxed));
    assert!(!link.pooled(&client).await.unwrap());
}

#[tokio::test]
async fn unnamed_statements_run_behind_a_pooler() {
    let bouncer = PgBouncer::start(shared());
    let link = link(&bouncer.url("postgres"));
    let (first, second) = (link.open(None).await.unwrap(), link.open(None).await.unwrap());
    for _ in 0..3 {
        for client in [&first, &second] {
            let number =
                [(&7_i64 as &(dyn tokio_postgres::types::ToSql + Sync), tokio_postgres::types::Type::INT8)];
            let row = client.query_typed_one("SELECT $1 + 1", &number).await.unwrap();
            assert_eq!(row.get::<_, i64>(0), 8);
        }
    }
}

#[tokio::test]
async fn errors_of_a_pooler() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_password("word"));
    let bouncer = PgBouncer::start(&server);
    let error = open_error(&bouncer.url("postgres").replace(":word@", ":hunter2@")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    let error = open_error(&bouncer.url("nowhere")).await;
    assert_eq!(error.kind(), ErrorKind::Missing, "{error:?}");
    server.kill();
    let error = open_error(&bouncer.url("postgres")).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
}
