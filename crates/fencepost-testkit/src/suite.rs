//! [`behavior_suite!`](crate::behavior_suite) and [`wire_suite!`](crate::wire_suite): the lists of behaviours, and how
//! each of them is run.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use fencepost_core::Client;

use crate::bench::{Leftovers, TestBench};
use crate::wait;

/// After this long a behaviour hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Runs one behaviour on a fresh bench: on a small runtime, under a watchdog. Afterwards the storage must be clean.
///
/// # Panics
/// If the behaviour does, if it hangs, or if it leaves something behind.
pub fn run<B: TestBench>(
    name: &'static str,
    make: impl FnOnce() -> B + Send + 'static,
    behavior: impl AsyncFnOnce(&B) + Send + 'static,
) {
    under_watchdog(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime can be made").block_on(async {
            let bench = make();
            behavior(&bench).await;
            assert_clean(&bench).await;
        });
    });
}

/// Runs a test on a thread of its own, and fails if it hangs.
///
/// # Panics
/// If the test does, or if it hangs.
pub fn under_watchdog(name: &str, test: impl FnOnce() + Send + 'static) {
    let (finished, wait) = sync_channel::<()>(1);
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        let _tells_when_dropped = finished;
        test();
    });
    let thread = thread.expect("a thread can be started");
    let hangs = wait.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout);
    assert!(!hangs, "{name} hangs: it was not over after {WATCHDOG:?}");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits until nothing is left in the storage. What has ended may stay until somebody comes by, so somebody does.
///
/// # Panics
/// If something stays.
pub async fn assert_clean<B: TestBench>(bench: &B) {
    let passer_by = bench.client().await;
    let mut left = Leftovers::default();
    let clean = wait::until("nothing is left in the storage", async || {
        come_by(&passer_by).await;
        left = bench.peek().await;
        left.is_none()
    });
    let clean = std::panic::AssertUnwindSafe(clean);
    let outcome = futures_util::FutureExt::catch_unwind(clean).await;
    assert!(outcome.is_ok(), "something was left in the storage: {left:?}");
    passer_by.close().await;
}

async fn come_by(client: &Client) {
    for _ in 0..10 {
        if let Ok(Some(guard)) = client.lock("passer-by").try_acquire().await {
            let _ = guard.release().await;
        }
    }
}

/// Runs every behaviour on a storage: one `#[test]` each, in a module per group, so that a failure reads
/// `memory::waiting::cancelled_waiter_leaves_the_line`.
///
/// The first argument names the module, the second makes a fresh [`TestBench`](crate::TestBench):
/// `behavior_suite!(memory, MemoryBench::new);`
///
/// A storage that passes all of it may be set up in other ways too. For these a part is enough, which is named:
/// `behavior_suite!(memory_again, MemoryBench::again, only { exclusion { a_free_lock_is_granted, } });`
#[macro_export]
macro_rules! behavior_suite {
    ($storage:ident, $make:expr, only { $($part:tt)* }) => {
        mod $storage {
            #[allow(unused_imports)]
            use super::*;
            $crate::behavior_suite! { @tests [$make] $($part)* }
        }
    };
    ($storage:ident, $make:expr) => {
        mod $storage {
            #[allow(unused_imports)]
            use super::*;
            $crate::behavior_suite! { @tests [$make]
                exclusion {
                    a_free_lock_is_granted,
                    a_held_lock_is_not_granted_to_another_client,
                    a_held_lock_is_not_granted_to_the_same_client,
                    names_do_not_disturb_each_other,
                    two_acquires_in_one_flight_have_one_holder,
                    one_of_many_racers_wins,
                    increments_under_the_lock_are_never_lost,
                    a_shared_guard_holds_until_its_last_share_goes,
                    run_holds_the_lock_while_the_work_runs,
                }
                expiry {
                    a_dead_holder_makes_room_after_its_ttl,
                    an_ended_lease_is_free_for_a_try,
                    expired_lease_is_not_revived,
                    an_expired_holder_does_not_release_the_next,
                    a_renewal_gives_the_whole_ttl_again,
                    a_grant_that_is_read_too_late_is_not_shown,
                    holder_and_first_waiter_die_together,
                    a_ticket_that_is_not_renewed_ends,
                    a_grant_after_the_end_of_a_lease_has_a_new_token,
                    a_ttl_out_of_range_is_refused,
                }
                renewal {
                    a_lock_is_held_over_many_ttls,
                    release_stops_the_keeper,
                    the_next_holder_is_renewed_after_the_first_has_gone,
                    a_new_grant_after_a_loss_is_renewed,
                    a_hung_renewal_does_not_delay_the_loss,
                    failing_renewals_let_the_time_run_out,
                    everybody_sees_a_loss_whatever_the_first_does,
                    max_hold_ends_what_could_be_renewed,
                    run_cancels_the_work_when_the_lock_is_lost,
                }
                release {
                    a_released_lock_is_free,
                    a_dropped_guard_gives_its_lock_back,
                    a_program_that_ends_after_its_guard_leaves_no_lock,
                    stale_owner_cannot_release,
                    a_late_release_does_not_touch_the_next_grant,
                    a_failed_release_does_not_clear_the_next_owner,
                    a_lost_release_is_sent_again,
                    a_dropped_release_goes_on,
                    the_release_of_a_lost_lock_says_so,
                }
                waiting {
                    waiters_enter_in_the_order_they_joined,
                    a_try_does_not_overtake_the_line,
                    a_waiter_that_waits_out_leaves_the_line,
                    a_wait_of_zero_does_not_join_the_line,
                    cancelled_waiter_leaves_the_line,
                    a_dead_waiter_costs_nobody_its_ttl,
                    a_place_in_line_outlives_its_ttl,
                    a_release_wakes_one_waiter,
                    a_lost_push_is_found_by_the_heartbeat,
                    a_repeated_push_is_harmless,
                    a_crowd_is_served_one_by_one,
                    a_waiter_that_sleeps_on_its_grant_gives_it_back,
                }
                hand_over {
                    a_release_hands_over_in_one_step,
                    a_lock_travels_between_clients,
                    a_handed_over_lock_is_renewed_in_time,
                    a_stopped_waiter_does_not_show_an_old_grant,
                    a_grant_to_somebody_who_left_goes_on_to_the_next,
                    a_grant_that_the_client_does_not_know_is_given_back,
                    a_choice_that_the_client_does_not_know_is_given_back,
                    closing_hands_over_to_the_next,
                    readers_granted_at_once_all_enter,
                    names_released_at_once_are_all_handed_over,
                }
                fencing {
                    tokens_rise_over_releases,
                    tokens_rise_over_every_end_of_a_grant,
                    a_renewal_keeps_the_token,
                    a_writer_has_a_larger_token_than_the_readers_before_it,
                    the_token_of_several_names_fits_each_of_them,
                    clients_agree_on_the_storage,
                }
                modes {
                    readers_share_and_keep_the_writer_out,
                    a_writer_keeps_readers_out,
                    readers_do_not_overtake_a_waiting_writer,
                    readers_in_line_enter_together,
                    a_semaphore_admits_as_many_as_it_has_slots,
                    the_slot_of_a_dead_holder_becomes_free,
                    many_shared_holders_are_all_renewed_in_time,
                    modes_that_contradict_each_other_are_a_conflict,
                    an_idle_lock_may_become_something_else,
                    a_semaphore_of_nothing_is_refused,
                }
                several_names {
                    all_names_are_held_and_released_together,
                    one_name_that_is_taken_keeps_all_from_being_granted,
                    opposite_order_does_not_deadlock,
                    a_waiter_for_all_is_not_starved,
                    a_dead_waiter_for_many_names_costs_nobody_its_ttl,
                    a_waiter_for_all_that_leaves_frees_every_line,
                    any_takes_one_that_is_free,
                    any_waits_for_the_first_that_becomes_free,
                    a_crowd_for_any_is_served_one_by_one,
                    several_names_are_broken_together,
                    several_names_expire_together,
                    no_name_is_refused,
                }
                cell {
                    what_the_holder_writes_all_can_read,
                    a_cell_while_held_ends_with_its_grant,
                    a_cell_for_a_time_ends_after_it,
                    a_cell_for_always_stays,
                    a_write_after_a_loss_is_refused,
                    the_storage_checks_who_writes,
                    a_cell_has_a_largest_size,
                    a_kept_cell_is_listed_and_in_nobodys_way,
                }
                cancellation {
                    a_dropped_try_takes_nothing,
                    a_dropped_acquire_takes_nothing,
                    a_dropped_waiter_leaves_no_ticket,
                    a_waiter_dropped_at_its_turn_gives_it_back,
                    a_dropped_release_goes_on,
                    questions_may_be_dropped,
                    a_dropped_break_is_done_or_not,
                    the_wait_for_a_loss_may_be_dropped,
                    a_dropped_run_gives_the_lock_back,
                    a_dropped_closing_goes_on,
                    a_dropped_connect_leaves_nothing,
                    whoever_stays_is_served,
                }
                admin {
                    inspect_shows_holders_and_the_line,
                    looking_leaves_nothing_behind,
                    a_list_comes_in_pages,
                    a_prefix_means_itself,
                    a_list_shows_holders_and_waiters,
                    a_broken_holder_learns_of_it,
                    break_is_refused_when_the_token_moved_on,
                    a_deaf_broken_holder_finds_out_by_its_renewal,
                    one_of_several_readers_is_broken,
                    an_examination_finds_no_problem_and_changes_nothing,
                }
                failure {
                    a_short_absence_goes_unnoticed,
                    a_long_absence_loses_the_lock_for_ever,
                    waiters_keep_their_places_through_a_short_absence,
                    waiters_outlast_a_long_absence,
                    a_try_while_away_fails_and_leaves_nothing,
                    a_stolen_lock_is_lost,
                    closing_releases_everything,
                    closing_ends_although_the_storage_is_away,
                    closing_does_not_wait_for_a_question,
                    a_closed_client_refuses_everything,
                    a_lost_answer_to_an_acquire_is_one_grant,
                    a_lost_answer_to_a_waiter_is_one_place,
                    validity_counts_from_the_send_that_succeeded,
                    an_acquire_that_arrives_after_its_undo_does_nothing,
                    a_stuck_try_that_was_answered_busy_does_nothing,
                    a_wait_ends_in_time_although_nobody_answers,
                }
                names {
                    hostile_names_mean_themselves,
                    case_is_not_folded,
                    unicode_is_not_normalized,
                    long_names_are_kept_in_full,
                    a_name_and_one_below_it_are_independent,
                    internal_names_are_ordinary_names,
                    what_is_no_name_is_refused,
                }
                batching {
                    answers_come_in_order,
                    operations_of_one_flight_see_each_other,
                    one_failing_operation_does_not_fail_the_others,
                    an_empty_flight_is_answered_by_nothing,
                    many_tasks_get_their_own_answers,
                }
                contract {
                    acquire_is_idempotent,
                    late_acquire_is_defeated,
                    leaving_too_late_changes_nothing,
                    leaving_gives_up_the_place,
                    a_check_is_answered_with_the_grant,
                    a_waiter_is_told_when_to_look_again,
                    an_owner_comes_anew_after_its_grant_was_broken,
                    a_try_leaves_no_trace,
                    a_storage_says_what_it_is,
                }
                executors {
                    a_blocked_runtime_keeps_its_leases,
                    every_call_works_without_tokio,
                    a_client_outlives_the_runtime_that_made_it,
                    a_guard_may_be_dropped_anywhere,
                }
                stress {
                    holders_never_overlap,
                }
            }
        }
    };
    (@tests [$make:expr] $($group:ident { $($name:ident,)* })*) => {
        $(
            mod $group {
                #[allow(unused_imports)]
                use super::*;
                $(
                    #[test]
                    fn $name() {
                        let path = concat!(module_path!(), "::", stringify!($name));
                        $crate::suite::run(path, $make, $crate::behaviors::$group::$name);
                    }
                )*
            }
        )*
    };
}

/// Runs every behaviour on a broken network: one `#[test]` each, as [`behavior_suite!`](crate::behavior_suite) does.
///
/// The first argument names the module, the second makes a fresh [`WireBench`](crate::WireBench):
/// `wire_suite!(redis_wire, RedisBench::plain);`
#[macro_export]
macro_rules! wire_suite {
    ($wire:ident, $make:expr) => {
        $crate::behavior_suite!($wire, $make, only {
            silence {
                a_cut_of_less_than_half_a_lease_goes_unnoticed,
                silence_of_less_than_half_a_lease_goes_unnoticed,
                silence_of_the_server_goes_unnoticed,
                silence_towards_the_server_goes_unnoticed,
                a_slow_wire_keeps_its_locks,
                a_silent_wire_loses_the_lock_at_its_deadline,
            }
            lost_answers {
                an_acquire_without_an_answer_is_one_grant,
                a_try_without_an_answer_is_one_grant,
                a_waiter_without_an_answer_is_one_place,
                an_acquire_that_nobody_waits_for_any_more_leaves_no_ghost,
                a_release_without_an_answer_is_no_loss,
                an_acquire_that_arrives_much_later_does_not_block_the_lock,
            }
            reconnect {
                waiters_keep_their_places_over_a_reset,
                a_lock_that_became_free_while_nobody_listened_is_found,
                connections_that_end_at_any_moment_leave_nothing,
            }
            weather {
                no_network_makes_two_holders,
            }
        });
    };
}
