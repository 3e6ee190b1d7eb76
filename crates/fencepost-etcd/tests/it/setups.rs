//! The part of the suite that shows, for each way to set etcd up, that the locks are the same.

use std::path::Path;
use std::sync::OnceLock;

use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, Setup, TlsClients};

use crate::bench::{EtcdBench, Server};

/// With TLS, certificates for clients, and users.
pub(crate) fn guarded() -> &'static EtcdServer {
    static SHARED: OnceLock<EtcdServer> = OnceLock::new();
    let setup = Setup::plain().with_tls(TlsClients::WithCertificate).with_user("nobody", "word");
    SHARED.get_or_init(|| EtcdServer::start(&setup))
}

fn spread() -> &'static EtcdCluster {
    static SHARED: OnceLock<EtcdCluster> = OnceLock::new();
    SHARED.get_or_init(EtcdCluster::start)
}

/// The options that name a server's certificates.
pub(crate) fn certificates(server: &EtcdServer) -> String {
    let made = server.certificates();
    let path = |path: &Path| path.to_str().expect("it is made of plain letters").to_owned();
    let (ca, cert, key) = (path(&made.ca), path(&made.client_cert), path(&made.client_key));
    format!("&tls_ca={ca}&tls_cert={cert}&tls_key={key}")
}

/// Says the lines that give the rights for this URL to a user, as an administrator would.
pub(crate) fn give_rights(server: &EtcdServer, url: &str, user: &str, password: &str, name: &str) {
    let rights = fencepost_etcd::rights(url).expect("the URL is fine");
    for line in rights.lines().filter(|line| line.starts_with("etcdctl ") && !line.contains("PREFIX")) {
        let line = line.replace("USER", user).replace("PASSWORD", password).replace("NAME", name);
        server.run_line(&line);
    }
}

/// With a certificate, and a user who has the rights that we say are needed, and no others.
fn as_a_user() -> EtcdBench {
    let server = guarded();
    let user = format!("app-{:016x}", rand::random::<u64>());
    let url = format!("etcds://{user}:p%40ss%3Aw%2Frd@localhost:{}", server.tls_port());
    let bench = EtcdBench::at(&url, &certificates(server), Server::Shared(server));
    give_rights(server, bench.url(), &user, "p@ss:w/rd", "");
    bench
}

fn of_three() -> EtcdBench {
    EtcdBench::at(&spread().url(), "", Server::SharedCluster(spread()))
}

/// What is shown on every set-up; with `exclusive` only what needs no other modes, cells or hostile names.
macro_rules! on_every_setup {
    ($name:ident, $make:expr, exclusive) => {
        fencepost_testkit::behavior_suite!($name, $make, only {
            exclusion {
                a_free_lock_is_granted,
                a_held_lock_is_not_granted_to_another_client,
                two_acquires_in_one_flight_have_one_holder,
                increments_under_the_lock_are_never_lost,
            }
            expiry {
                a_dead_holder_makes_room_after_its_ttl,
                expired_lease_is_not_revived,
            }
            renewal {
                a_lock_is_held_over_many_ttls,
            }
            release {
                a_released_lock_is_free,
                stale_owner_cannot_release,
            }
            waiting {
                waiters_enter_in_the_order_they_joined,
                a_try_does_not_overtake_the_line,
                cancelled_waiter_leaves_the_line,
            }
            fencing {
                tokens_rise_over_every_end_of_a_grant,
            }
            several_names {
                all_names_are_held_and_released_together,
                opposite_order_does_not_deadlock,
                any_waits_for_the_first_that_becomes_free,
            }
            admin {
                a_broken_holder_learns_of_it,
            }
            failure {
                a_stolen_lock_is_lost,
            }
            contract {
                late_acquire_is_defeated,
            }
        });
    };
    ($name:ident, $make:expr) => {
        fencepost_testkit::behavior_suite!($name, $make, only {
            exclusion {
                a_free_lock_is_granted,
                a_held_lock_is_not_granted_to_another_client,
                two_acquires_in_one_flight_have_one_holder,
                one_of_many_racers_wins,
                increments_under_the_lock_are_never_lost,
            }
            expiry {
                a_dead_holder_makes_room_after_its_ttl,
                expired_lease_is_not_revived,
            }
            renewal {
                a_lock_is_held_over_many_ttls,
                release_stops_the_keeper,
            }
            release {
                a_released_lock_is_free,
                stale_owner_cannot_release,
            }
            waiting {
                waiters_enter_in_the_order_they_joined,
                a_try_does_not_overtake_the_line,
                cancelled_waiter_leaves_the_line,
                a_lost_push_is_found_by_the_heartbeat,
            }
            hand_over {
                a_lock_travels_between_clients,
                closing_hands_over_to_the_next,
            }
            fencing {
                tokens_rise_over_every_end_of_a_grant,
                clients_agree_on_the_storage,
            }
            modes {
                readers_do_not_overtake_a_waiting_writer,
                a_semaphore_admits_as_many_as_it_has_slots,
            }
            several_names {
                all_names_are_held_and_released_together,
                opposite_order_does_not_deadlock,
                any_waits_for_the_first_that_becomes_free,
            }
            cell {
                what_the_holder_writes_all_can_read,
                a_cell_while_held_ends_with_its_grant,
                a_cell_for_always_stays,
                the_storage_checks_who_writes,
            }
            admin {
                inspect_shows_holders_and_the_line,
                looking_leaves_nothing_behind,
                a_list_comes_in_pages,
                a_prefix_means_itself,
                a_broken_holder_learns_of_it,
            }
            failure {
                a_stolen_lock_is_lost,
                closing_releases_everything,
            }
            names {
                hostile_names_mean_themselves,
            }
            contract {
                late_acquire_is_defeated,
            }
            batching {
                answers_come_in_order,
                many_tasks_get_their_own_answers,
            }
        });
    };
}

on_every_setup!(user_with_certificate, as_a_user);
on_every_setup!(three_members, of_three);
on_every_setup!(raw, EtcdBench::raw, exclusive);
