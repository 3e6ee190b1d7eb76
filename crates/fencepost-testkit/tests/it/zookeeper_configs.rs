//! Further configurations of ZooKeeper servers.

use fencepost_testkit::servers::zookeeper::{
    CliLogin, Ensemble, TlsClients, ZooKeeperServer, ZooKeeperServerConfig,
};
use fencepost_testkit::wait;

use crate::servers::state;

#[test]
fn a_sasl_user_authenticates_with_its_password() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain().with_sasl_user("app", "word"));
    let app = CliLogin::Sasl("app");
    server.try_cli(&app, &["create", "/mine", "1", "sasl:app:cdrwa"]).unwrap();
    assert_eq!(server.try_cli(&app, &["get", "/mine"]), Ok("1".into()));
    let refused = server.try_cli(&CliLogin::Anonymous, &["get", "/mine"]).unwrap_err();
    assert!(refused.contains("Insufficient permission"), "{refused}");
    assert_eq!(server.sasl_url_as("app"), format!("zk://app:word@127.0.0.1:{}?auth=sasl", server.port()));
}

#[test]
fn tls_accepts_the_configured_clients() {
    for clients in [TlsClients::All, TlsClients::WithCertificate] {
        let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain().with_tls(clients));
        let look = |visitor: CliLogin<'_>| server.try_cli(&visitor, &["ls", "/"]);
        assert_eq!(look(CliLogin::TlsWithCertificate), Ok("[zookeeper]".into()));
        assert_eq!(look(CliLogin::TlsWithoutCertificate).is_ok(), clients == TlsClients::All);
        assert_eq!(look(CliLogin::Anonymous), Ok("[zookeeper]".into()), "it also speaks without TLS");
        assert_eq!(server.tls_url(), format!("zk://localhost:{}?tls=true", server.tls_port()));
    }
}

#[test]
fn an_ensemble_serves_without_a_killed_leader_which_follows_after_its_restart() {
    let ensemble = Ensemble::start();
    let old = ensemble.leader();
    ensemble.server(old).cli(&["create", "/here", "1"]);
    ensemble.server(old).kill();
    let others: Vec<usize> = (0..3).filter(|server| *server != old).collect();
    let new = ensemble.leader_among(&others);
    assert_eq!(ensemble.server(new).cli(&["get", "/here"]), "1");
    ensemble.server(old).restart();
    ensemble.wait_until_healthy();
    assert_eq!(ensemble.leader(), new);
}

#[test]
fn an_ensemble_serves_while_its_leader_is_paused() {
    let ensemble = Ensemble::start();
    let old = ensemble.leader();
    ensemble.server(old).pause();
    wait::block_until("the process is stopped", || state(ensemble.server(old).pid()) == Some('T'));
    let others: Vec<usize> = (0..3).filter(|server| *server != old).collect();
    let new = ensemble.leader_among(&others);
    ensemble.server(new).cli(&["create", "/here", "1"]);
    ensemble.server(old).resume();
    ensemble.wait_until_healthy();
    assert_ne!(ensemble.leader(), old);
}

#[test]
fn a_follower_that_is_cut_off_stops_serving_until_it_is_healed() {
    let ensemble = Ensemble::start();
    let (leader, follower) = (ensemble.leader(), ensemble.follower());
    ensemble.cut_off(follower);
    wait::block_until("it notices", || ensemble.server(follower).mode().is_none());
    ensemble.server(leader).cli(&["create", "/here", "1"]);
    assert_eq!(ensemble.leader(), leader);
    assert!(ensemble.server(follower).mode().is_none());
    ensemble.heal(follower);
    ensemble.wait_until_healthy();
    assert_eq!(ensemble.server(follower).cli(&["get", "/here"]), "1");
}

#[test]
fn one_of_three_does_not_serve_and_all_of_them_keep_their_data() {
    let ensemble = Ensemble::start();
    assert!(ensemble.url().ends_with(&format!(",127.0.0.1:{}", ensemble.ports()[2])));
    ensemble.server(0).cli(&["create", "/here", "1"]);
    ensemble.server(1).kill();
    ensemble.server(2).kill();
    wait::block_until("one alone does not serve", || ensemble.server(0).mode().is_none());
    ensemble.restart();
    ensemble.wait_until_healthy();
    assert_eq!(ensemble.server(0).cli(&["get", "/here"]), "1");
}
