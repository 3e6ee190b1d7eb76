//! The behaviour suite on other configurations of PostgreSQL.

use std::sync::OnceLock;

use fencepost_testkit::behavior_suite;
use fencepost_testkit::servers::postgres::{PostgresServer, PostgresServerConfig, TlsClients, shared};

use crate::actions::grant;
use crate::bench::{DATABASE, PostgresBench};

/// Returns a server with TLS and a password.
fn secured() -> &'static PostgresServer {
    static SHARED: OnceLock<PostgresServer> = OnceLock::new();
    let config = PostgresServerConfig::plain().with_tls(TlsClients::All).with_password("p-ss.w_rd");
    SHARED.get_or_init(|| PostgresServer::start(&config))
}

fn with_tls() -> PostgresBench {
    let server = secured();
    let options = format!("&sslmode=verify-full&sslrootcert={}", server.certificates().ca.display());
    PostgresBench::through_a_wire(&server.tls_url(DATABASE), server.port(), &options, &server.url(DATABASE))
}

/// Returns a bench for an account that has the printed rights only.
fn with_printed_rights() -> PostgresBench {
    let account = format!("app_{:016x}", rand::random::<u64>());
    let (url, direct) = (shared().url_as(&account, DATABASE), shared().url(DATABASE));
    let bench = PostgresBench::through_a_wire(&url, shared().port(), "", &direct);
    shared().psql(&fencepost_postgres::schema(bench.url()).expect("the URL is valid"));
    let rights = fencepost_postgres::rights(bench.url()).expect("the URL is valid");
    grant(&rights.replace("ACCOUNT", &account));
    bench
}

behavior_suite!(postgres_rights, with_printed_rights, only [core features]);
behavior_suite!(postgres_tls, with_tls, only[core]);
