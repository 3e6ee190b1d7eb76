//! The behaviour suite on other configurations of MariaDB.

use std::sync::{Arc, OnceLock};

use fencepost_core::Owner;
use fencepost_testkit::servers::mariadb::{MariadbServer, MariadbServerConfig, TlsClients, shared};
use fencepost_testkit::{WireBench, behavior_suite};

use crate::bench::{MariadbBench, Server};

/// Returns a bench on a server with TLS and a password.
fn with_tls() -> MariadbBench {
    static SHARED: OnceLock<Arc<MariadbServer>> = OnceLock::new();
    let server = SHARED.get_or_init(|| {
        let config = MariadbServerConfig::plain().with_tls(TlsClients::All).with_password("p-ss.w_rd");
        Arc::new(MariadbServer::start(&config))
    });
    let options = format!("&tls=true&tls_ca={}", server.certificates().ca.display());
    MariadbBench::through_a_wire(Server::Own(server.clone()), &server.tls_url(), &options)
}

/// Returns a bench for an account that has the printed rights only, with the printed tables.
fn with_printed_rights() -> MariadbBench {
    let account = format!("u_{}", &Owner::random().to_hex()[..12]);
    let server = Server::Shared(shared());
    let bench = MariadbBench::through_a_wire(server, &shared().url_as(&account), "");
    let schema = fencepost_mysql::schema(bench.url()).expect("the URL is valid");
    let rights = fencepost_mysql::rights(bench.url()).expect("the URL is valid");
    bench.sql(&schema);
    bench.sql(&rights.replace("@'%'", "@'127.0.0.1'").replace("IDENTIFIED BY 'PASSWORD'", ""));
    bench
}

behavior_suite!(mariadb_rights, with_printed_rights, only [core features]);
behavior_suite!(mariadb_tls, with_tls, only[core]);
