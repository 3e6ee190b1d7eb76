//! Servers that reject the client.

use fencepost_testkit::servers::postgres::TlsClients;

use super::*;

fn assert_denied(error: &Error, message: &str, hint: &str) {
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains(message), "{error:?}");
    assert!(error.hint().is_some_and(|found| found.contains(hint)), "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
}

#[tokio::test]
async fn the_login() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_password("word"));
    let url = server.url("postgres");
    let error = open_error(&url.replace(":word@", ":hunter2@")).await;
    assert_denied(&error, "does not accept this user and password", "percent-encoded");
    let error = open_error(&url.replace("postgres:word@", "unknown:hunter2@")).await;
    assert_denied(&error, "does not accept this user and password", "percent-encoded");
    let error = open_error(&url.replace(":word@", "@")).await;
    assert_denied(&error, "does not accept the login", "asks for a password");
    let error = open_error(&server.url("nowhere")).await;
    assert_eq!(error.kind(), ErrorKind::Missing, "{error:?}");
    assert!(error.to_string().contains("/nowhere does not exist"), "{error:?}");
    let error = open_error(&shared().url("postgres").replace("postgres@", "unknown@")).await;
    assert_denied(&error, "does not accept the login", "the user may not exist");
    server.psql("CREATE ROLE idle");
    let error = open_error(&shared().url_as("idle", "postgres")).await;
    assert_denied(&error, "does not accept the login", "may not log in");
}

#[tokio::test]
async fn tls() {
    let only = PostgresServer::start(&PostgresServerConfig::plain().with_password("hunter2").with_tls_only());
    let error = open_error(&only.url("postgres")).await;
    assert_denied(&error, "does not accept the login", "sslmode=require");
    let made = only.certificates();
    let url = |ca: &std::path::Path| {
        format!("{}?sslmode=verify-full&sslrootcert={}", only.tls_url("postgres"), ca.display())
    };
    assert_denied(&open_error(&url(&made.other_ca)).await, "the TLS handshake failed", "tls_ca=FILE");
    let wrong_host = format!("{}&tls_server_name=elsewhere.example", url(&made.ca));
    assert_denied(&open_error(&wrong_host).await, "the TLS handshake failed", "tls_ca=FILE");
    for more in ["", "&channel_binding=require", "&channel_binding=disable"] {
        let client = link(&format!("{}{more}", url(&made.ca))).open(None).await.unwrap();
        let ssl = "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        assert_eq!(value(&client, ssl).await, "true");
    }
    let renamed = format!("{}&tls_server_name=localhost", url(&made.ca).replace("localhost", "127.0.0.1"));
    assert!(link(&renamed).open(None).await.is_ok());

    let error = open_error(&format!("{}?sslmode=require&tls_insecure=true", shared().url("postgres"))).await;
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error:?}");
    assert!(error.to_string().contains("does not accept TLS"), "{error:?}");
}

#[tokio::test]
async fn a_missing_client_certificate() {
    let config = PostgresServerConfig::plain().with_tls(TlsClients::WithCertificate);
    let server = PostgresServer::start(&config);
    let made = server.certificates();
    let url = format!("{}?sslmode=require&tls_ca={}", server.tls_url("postgres"), made.ca.display());
    assert_denied(&open_error(&url).await, "does not accept the login", "tls_cert=FILE");
    let identity = format!("&tls_cert={}&tls_key={}", made.client_cert.display(), made.client_key.display());
    assert!(link(&format!("{url}{identity}")).open(None).await.is_ok());
}

#[tokio::test]
async fn too_many_connections() {
    let config = PostgresServerConfig::plain()
        .with_setting("max_connections", "5")
        .with_setting("superuser_reserved_connections", "0")
        .with_setting("max_wal_senders", "0");
    let server = PostgresServer::start(&config);
    let link = link(&server.url("postgres"));
    let mut clients = Vec::new();
    let error = loop {
        match link.open(None).await {
            Ok(client) => clients.push(client),
            Err(error) => break error,
        }
    };
    assert_eq!(clients.len(), 5);
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Unreachable, true), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("max_connections")), "{error:?}");
}

#[tokio::test]
async fn an_encoding_that_does_not_have_all_names() {
    shared().psql("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    let error = open_error(&shared().url("latin")).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains("LATIN1"), "{error:?}");
}

#[tokio::test]
async fn statements_that_were_not_applied_are_told_apart() {
    let link = link(&shared().url("postgres"));
    let client = link.open(None).await.unwrap();
    for (sql, kind, is_transient) in [
        ("SELECT missing.lock()", ErrorKind::Backend, false),
        ("SELECT * FROM missing_table", ErrorKind::Backend, false),
        ("SELECT missing_function()", ErrorKind::Backend, false),
        ("SET ROLE pg_monitor; CREATE TABLE pg_catalog.mine ()", ErrorKind::Denied, false),
        ("BEGIN READ ONLY; CREATE TABLE t ()", ErrorKind::Unreachable, true),
        ("SET statement_timeout = 1; SELECT pg_sleep(600)", ErrorKind::Backend, true),
        ("DO $$ BEGIN RAISE lock_not_available; END $$", ErrorKind::Backend, true),
        ("DO $$ BEGIN RAISE deadlock_detected; END $$", ErrorKind::Backend, true),
        ("DO $$ BEGIN RAISE serialization_failure; END $$", ErrorKind::Backend, true),
        ("DO $$ BEGIN RAISE disk_full; END $$", ErrorKind::Backend, false),
        ("DO $$ BEGIN RAISE feature_not_supported; END $$", ErrorKind::Unsupported, false),
        ("SELECT 1 / 0", ErrorKind::Backend, false),
    ] {
        let error = client.batch_execute(sql).await.unwrap_err();
        let mapped = call_failed(link.location(), &error);
        assert_eq!((mapped.kind(), mapped.is_transient()), (kind, is_transient), "{sql}: {mapped:?}");
        let code = error.code().unwrap().code();
        assert!(mapped.full_message().contains(code), "{sql}: {mapped:?}");
        assert_eq!(crate::error::is_without_schema(&error), sql.contains("missing"), "{sql}");
        client.batch_execute("ROLLBACK; RESET ALL; RESET ROLE").await.unwrap();
    }
}
