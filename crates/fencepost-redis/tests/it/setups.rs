//! The part of the suite that shows, for each way to set Redis up, that the locks are the same.

use std::path::Path;
use std::sync::OnceLock;

use fencepost_testkit::servers::redis::{Cluster, RedisServer, Replicas, Sentinels, Setup, TlsClients};

use crate::bench::RedisBench;

/// The servers of one set-up, which all its tests share.
macro_rules! shared {
    ($name:ident, $server:ty, $start:expr) => {
        pub(crate) fn $name() -> &'static $server {
            static SHARED: OnceLock<$server> = OnceLock::new();
            SHARED.get_or_init(|| $start)
        }
    };
}

shared!(guarded, RedisServer, {
    RedisServer::start(&Setup::plain().with_password("boss").with_user("nobody", "word", "-@all"))
});
shared!(encrypted, RedisServer, RedisServer::start(&Setup::plain().with_tls(TlsClients::WithCertificate)));
shared!(watched, Sentinels, Sentinels::start());
shared!(spread, Cluster, Cluster::start(Replicas::None));

/// With a user who has the rights that we say are needed, and no others.
fn as_a_user() -> RedisBench {
    let server = guarded();
    let user = format!("app-{:016x}", rand::random::<u64>());
    let url = format!("redis://{user}:p%40ss%3Aw%2Frd@127.0.0.1:{}", server.port());
    let bench = RedisBench::at(&url, "", [server.url()]);
    let rights = fencepost_redis::rights(bench.url()).expect("the URL is fine");
    let line = rights.lines().find(|line| line.starts_with("ACL SETUSER USER on ")).expect("there is one");
    let line = line.replace("SETUSER USER", &format!("SETUSER {user}")).replace("PASSWORD", "p@ss:w/rd");
    server.cli(&line.split_whitespace().collect::<Vec<_>>());
    bench
}

/// The options that name a server's certificates.
pub(crate) fn certificates(server: &RedisServer) -> String {
    let made = server.certificates();
    let path = |path: &Path| path.to_str().expect("it is made of plain letters").to_owned();
    let (ca, cert, key) = (path(&made.ca), path(&made.client_cert), path(&made.client_key));
    format!("&tls_ca={ca}&tls_cert={cert}&tls_key={key}")
}

fn over_tls() -> RedisBench {
    let server = encrypted();
    RedisBench::at(&server.tls_url(), &certificates(server), [server.url()])
}

fn in_another_database() -> RedisBench {
    let server = fencepost_testkit::servers::redis::shared();
    let url = format!("{}/7", server.url());
    RedisBench::at(&url, "", [url.clone()])
}

pub(crate) fn sentinel_url(group: &Sentinels) -> String {
    let sentinels = group.sentinel_ports().map(|port| format!("127.0.0.1:{port}"));
    format!("redis+sentinel://{}/{}", sentinels.join(","), Sentinels::NAME)
}

fn behind_sentinels() -> RedisBench {
    RedisBench::at(&sentinel_url(watched()), "", [watched().primary().url()])
}

fn on_a_replica_too() -> RedisBench {
    RedisBench::at(&sentinel_url(watched()), "&replicas=1", [watched().primary().url()])
}

/// A bench on this cluster, of which only the primaries are looked at.
pub(crate) fn on(cluster: &Cluster) -> RedisBench {
    let ports = cluster.ports();
    let seeds = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",");
    let nodes = (0..3).map(|node| cluster.node(node).url());
    RedisBench::at(&format!("redis+cluster://{seeds}"), "", nodes)
}

fn in_a_cluster() -> RedisBench {
    on(spread())
}

/// What is shown on every set-up. With `one_place` also what needs several names in one place, and with `hand_over` what
/// needs a release that gives the lock to the next by itself.
macro_rules! on_every_setup {
    ($name:ident, $make:expr, one_place) => {
        fencepost_testkit::behavior_suite!($name, $make, only {
            several_names {
                all_names_are_held_and_released_together,
                one_name_that_is_taken_keeps_all_from_being_granted,
                opposite_order_does_not_deadlock,
                any_waits_for_the_first_that_becomes_free,
                several_names_expire_together,
            }
            failure {
                closing_releases_everything,
            }
            names {
                a_name_and_one_below_it_are_independent,
            }
        });
    };
    ($name:ident, $make:expr, hand_over) => {
        fencepost_testkit::behavior_suite!($name, $make, only {
            hand_over {
                a_release_hands_over_in_one_step,
                a_handed_over_lock_is_renewed_in_time,
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
                holder_and_first_waiter_die_together,
            }
            renewal {
                a_lock_is_held_over_many_ttls,
                release_stops_the_keeper,
            }
            release {
                a_released_lock_is_free,
                stale_owner_cannot_release,
                a_program_that_ends_after_its_guard_leaves_no_lock,
            }
            waiting {
                waiters_enter_in_the_order_they_joined,
                a_try_does_not_overtake_the_line,
                cancelled_waiter_leaves_the_line,
                a_release_wakes_one_waiter,
                a_lost_push_is_found_by_the_heartbeat,
            }
            hand_over {
                a_lock_travels_between_clients,
                a_stopped_waiter_does_not_show_an_old_grant,
                a_grant_that_the_client_does_not_know_is_given_back,
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
            }
            names {
                hostile_names_mean_themselves,
                internal_names_are_ordinary_names,
            }
            contract {
                late_acquire_is_defeated,
                a_waiter_is_told_when_to_look_again,
            }
            batching {
                answers_come_in_order,
                many_tasks_get_their_own_answers,
            }
        });
    };
}

mod every {
    use super::*;
    on_every_setup!(user, as_a_user);
    on_every_setup!(tls, over_tls);
    on_every_setup!(database, in_another_database);
    on_every_setup!(sentinel, behind_sentinels);
    on_every_setup!(replicas, on_a_replica_too);
    on_every_setup!(cluster, in_a_cluster);
}

mod one_place {
    use super::*;
    on_every_setup!(user, as_a_user, one_place);
    on_every_setup!(sentinel, behind_sentinels, one_place);
    on_every_setup!(replicas, on_a_replica_too, one_place);
}

mod direct {
    use super::*;
    on_every_setup!(tls, over_tls, hand_over);
    on_every_setup!(user, as_a_user, hand_over);
    on_every_setup!(sentinel, behind_sentinels, hand_over);
    on_every_setup!(cluster, in_a_cluster, hand_over);
}
