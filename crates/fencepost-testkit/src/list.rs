//! [`behavior_suite!`](crate::behavior_suite), [`wire_suite!`](crate::wire_suite) and [`session_suite!`](crate::session_suite):
//! every behaviour.
//!
//! A backend runs all of them in one configuration. Its other configurations select those that depend on the difference, by
//! [`Tag`]. A behaviour without tags depends on the client alone, or on what all configurations of a backend have in common.

/// The configurations of a backend that run a behaviour, besides the one that runs all.
#[expect(non_camel_case_types, reason = "they are arguments of `behavior_suite!`")]
#[derive(Clone, Copy, Debug)]
pub enum Tag {
    /// Every behaviour.
    all,
    /// Each kind of request about one exclusive lock: for any configuration.
    core,
    /// Modes, cells, lists, pushes between clients: for configurations that change which requests are allowed or complete.
    features,
    /// Several names at once: the same, for configurations that keep all locks in one place.
    several,
    /// Names, flights and pushes: for configurations that keep locks on several servers.
    spread,
    /// The rest of what a backend must do for an exclusive lock: for configurations that store it in another form.
    exclusive,
    /// What depends on the names of entries: for configurations that name them in another way.
    dialect,
    /// What remains for exclusive locks that end with a connection: for configurations without leases of their own.
    connection,
    /// The same for shared locks.
    readers,
}

/// Runs every behaviour on a backend: one `#[test]` each, in a module per group, so that a failure reads
/// `memory::waiting::cancelled_waiter_leaves_the_queue`.
///
/// The first argument names the module, the second creates a [`TestBench`](crate::TestBench): `behavior_suite!(memory,
/// MemoryBench::new);`
///
/// Further configurations of a backend run a part of it, which is selected by [`Tag`](crate::list::Tag):
/// `behavior_suite!(memory_again, MemoryBench::again, only [core several]);`
#[macro_export]
macro_rules! behavior_suite {
    ($module:ident, $make:expr) => {
        $crate::behavior_suite!($module, $make, only[all]);
    };
    ($module:ident, $make:expr, only [$($wanted:ident)+]) => {
        const _: &[$crate::list::Tag] = &[$($crate::list::Tag::$wanted),+];
        $crate::behaviors_in_groups! { $module [$make] [$($wanted)+]
            exclusion {
                a_free_lock_is_granted [core],
                a_held_lock_is_not_granted_to_another_client [core],
                a_held_lock_is_not_granted_to_the_same_client [exclusive connection],
                locks_with_different_names_are_independent [exclusive connection],
                two_acquires_in_one_flight_have_one_holder [core],
                one_of_many_racers_wins [exclusive dialect connection],
                increments_under_the_lock_are_never_lost [core dialect],
                a_shared_guard_holds_until_its_last_share_is_dropped [connection],
                run_holds_the_lock_while_the_work_runs [connection],
            }
            expiry {
                the_lock_of_a_dead_holder_is_granted_after_its_ttl [core dialect],
                an_expired_lock_is_free_for_a_try [exclusive connection],
                expired_lease_is_not_revived [core],
                an_expired_holder_cannot_release_the_next_grant [exclusive connection],
                a_renewal_restores_the_full_ttl [exclusive connection],
                a_grant_read_too_late_is_not_returned [connection],
                holder_and_first_waiter_die_together [spread exclusive connection],
                a_ticket_that_is_not_renewed_expires [exclusive connection],
                a_grant_after_an_expired_lease_has_a_new_token [exclusive connection],
                a_ttl_out_of_range_is_refused [connection],
            }
            renewal {
                a_lock_is_held_over_many_ttls [core],
                a_release_stops_the_renewals [connection],
                the_second_holder_is_renewed_after_the_first_releases [exclusive connection],
                a_new_grant_after_a_loss_is_renewed [exclusive connection],
                a_hung_renewal_does_not_delay_the_loss [connection],
                failing_renewals_do_not_extend_the_lease [connection],
                a_blocked_observer_does_not_hide_a_loss_from_others,
                max_hold_ends_a_lease_that_could_be_renewed [connection],
                run_cancels_the_work_when_the_lock_is_lost [connection],
            }
            release {
                a_released_lock_is_free [core],
                a_dropped_guard_releases_its_lock [connection],
                a_program_that_exits_after_dropping_its_guard_leaves_no_lock [connection],
                stale_owner_cannot_release [core],
                a_late_release_does_not_touch_the_next_grant [exclusive connection],
                a_failed_release_does_not_remove_the_next_owner [exclusive connection],
                a_lost_release_is_sent_again [exclusive connection],
                a_dropped_release_completes [exclusive connection],
                the_release_of_a_lost_lock_fails_with_the_reason [exclusive connection],
            }
            waiting {
                waiters_are_granted_in_queue_order [core dialect],
                a_try_does_not_overtake_the_queue [core],
                a_waiter_that_times_out_leaves_the_queue [exclusive],
                a_wait_of_zero_does_not_join_the_queue [connection],
                cancelled_waiter_leaves_the_queue [core dialect],
                a_dead_waiter_does_not_delay_the_next_by_its_ttl [exclusive connection],
                a_renewed_ticket_outlives_its_ttl [exclusive connection],
                a_release_wakes_one_waiter [spread exclusive connection],
                a_lost_push_is_recovered_by_the_heartbeat [features exclusive connection],
                a_repeated_push_grants_once [connection],
                many_waiters_are_granted_one_by_one [exclusive connection],
                a_waiter_dropped_before_it_reads_its_grant_releases_it [connection],
            }
            hand_over {
                a_release_hands_over_in_one_step [spread],
                a_lock_is_handed_over_between_clients [features exclusive connection],
                a_handed_over_lock_is_renewed_in_time [spread exclusive connection],
                a_paused_waiter_does_not_return_an_old_grant [exclusive connection],
                a_grant_to_a_cancelled_waiter_goes_to_its_successor [exclusive connection],
                a_grant_unknown_to_its_client_is_released [spread exclusive connection],
                a_choice_unknown_to_its_client_is_released,
                closing_hands_over_to_the_successor [spread exclusive connection],
                readers_granted_at_once_are_all_woken [readers],
                names_released_at_once_are_all_handed_over [connection],
            }
            fencing {
                tokens_rise_over_releases [exclusive connection],
                tokens_rise_over_every_end_of_a_grant [core],
                a_renewal_keeps_the_token [exclusive connection],
                a_writer_has_a_larger_token_than_the_readers_before_it [readers],
                the_token_of_several_names_is_newer_for_each_name,
                clients_see_the_same_storage_id [features exclusive connection],
            }
            modes {
                readers_share_and_block_the_writer [readers],
                a_writer_blocks_readers [readers],
                readers_do_not_overtake_a_waiting_writer [features readers],
                queued_readers_are_granted_together [dialect readers],
                a_semaphore_admits_as_many_as_it_has_permits [features dialect],
                the_permit_of_a_dead_holder_becomes_free,
                many_shared_holders_are_all_renewed_in_time [readers],
                contradicting_modes_are_a_conflict [dialect],
                an_idle_lock_may_change_its_mode,
                a_semaphore_without_permits_is_refused [readers],
            }
            several_names {
                all_names_are_held_and_released_together [several dialect],
                one_held_name_blocks_the_grant_of_all,
                opposite_order_does_not_deadlock [several dialect],
                a_waiter_for_all_is_not_starved,
                a_dead_waiter_for_many_names_does_not_delay_the_next_by_its_ttl,
                a_cancelled_waiter_for_all_leaves_every_queue,
                any_acquires_a_free_name,
                any_waits_for_the_first_that_becomes_free [several dialect],
                many_waiters_for_any_are_granted_one_by_one,
                several_names_are_broken_together [several dialect],
                several_names_expire_together,
                an_empty_list_of_names_is_refused [connection],
            }
            cell {
                what_the_holder_writes_every_client_reads [features],
                a_cell_while_held_ends_with_its_grant [features dialect],
                a_cell_for_a_time_expires,
                an_always_kept_cell_outlives_its_grant [features dialect],
                a_write_after_a_loss_is_refused,
                the_backend_rejects_writes_without_a_grant [features],
                a_cell_has_a_maximum_size,
                a_kept_cell_is_listed_and_blocks_no_client,
            }
            cancellation {
                a_dropped_try_acquires_nothing [exclusive connection],
                a_dropped_acquire_acquires_nothing [exclusive connection],
                a_dropped_waiter_leaves_no_ticket [exclusive connection],
                a_waiter_dropped_when_granted_releases_its_grant [exclusive connection],
                a_dropped_release_completes [exclusive connection],
                queries_may_be_dropped [connection],
                a_dropped_break_is_atomic [exclusive connection],
                the_wait_for_a_loss_may_be_dropped,
                a_dropped_run_releases_the_lock [connection],
                a_dropped_close_completes [connection],
                a_dropped_connect_leaves_nothing [connection],
                the_remaining_waiters_are_granted [exclusive connection],
            }
            admin {
                inspect_shows_holders_and_the_queue [features dialect readers],
                reading_leaves_nothing_behind [features connection],
                a_list_comes_in_pages [features exclusive connection],
                a_prefix_is_matched_literally [spread exclusive connection],
                a_list_shows_holders_and_waiters [dialect],
                a_broken_holder_is_notified [core],
                break_is_refused_when_the_token_moved_on [exclusive connection],
                a_broken_holder_without_pushes_is_lost_at_its_renewal [exclusive connection],
                one_of_several_readers_is_broken [readers],
                a_read_only_client_creates_nothing [connection],
                a_diagnosis_finds_no_problem_and_changes_nothing [exclusive connection],
            }
            failure {
                a_short_outage_goes_unnoticed [exclusive],
                a_long_outage_loses_the_lock_permanently [exclusive],
                waiters_keep_their_positions_through_a_short_outage [exclusive],
                waiters_survive_a_long_outage [exclusive],
                a_try_during_an_outage_fails_and_leaves_nothing [exclusive connection],
                a_stolen_lock_is_lost [core],
                closing_releases_everything [several connection],
                closing_ends_although_the_backend_is_unreachable [connection],
                closing_does_not_wait_for_a_query [connection],
                a_closed_client_refuses_everything [connection],
                an_acquire_with_a_lost_reply_is_granted_once [exclusive dialect connection],
                a_waiter_with_a_lost_reply_has_one_ticket [exclusive connection],
                validity_counts_from_the_send_that_succeeded [connection],
                an_acquire_that_arrives_after_its_undo_does_nothing,
                a_delayed_try_that_was_answered_busy_does_nothing,
                a_wait_ends_in_time_without_a_reply [connection],
            }
            names {
                hostile_names_are_taken_literally [spread exclusive connection],
                case_is_not_folded [exclusive connection],
                unicode_is_not_normalized [exclusive connection],
                long_names_are_kept_in_full [exclusive connection],
                a_name_and_a_name_below_it_are_independent,
                internal_names_are_ordinary_names [spread exclusive connection],
                an_invalid_name_is_refused [connection],
            }
            batching {
                replies_are_in_the_order_of_operations [features exclusive connection],
                operations_of_one_flight_see_each_other,
                one_failing_operation_does_not_fail_the_others,
                an_empty_flight_has_no_replies [connection],
                many_tasks_get_their_own_replies [spread exclusive connection],
            }
            contract {
                acquire_is_idempotent [connection],
                acquire_of_several_names_is_idempotent,
                late_acquire_is_defeated [core],
                leaving_after_the_grant_changes_nothing,
                a_holder_that_leaves_keeps_its_grant [connection],
                leaving_removes_the_ticket [exclusive connection],
                a_check_returns_the_grant [exclusive connection],
                a_waiter_is_told_when_to_check_again [spread connection],
                an_owner_acquires_again_after_its_grant_was_broken [connection],
                an_owner_acquires_several_names_again_after_one_was_broken,
                a_try_leaves_no_trace [connection],
                a_try_of_several_names_leaves_no_trace,
                a_backend_describes_itself [exclusive connection],
            }
            executors {
                a_blocked_runtime_keeps_its_leases [connection],
                every_call_works_without_tokio [connection],
                a_client_outlives_the_runtime_that_made_it [connection],
                a_guard_may_be_dropped_anywhere [connection],
            }
            stress {
                holders_never_overlap [exclusive connection],
            }
        }
    };
}

/// Runs every behaviour on a faulty network: one `#[test]` each, as [`behavior_suite!`](crate::behavior_suite) does.
///
/// The first argument names the module, the second creates a [`WireBench`](crate::WireBench): `wire_suite!(redis_wire,
/// RedisBench::plain);`
#[macro_export]
macro_rules! wire_suite {
    ($wire:ident, $make:expr) => {
        $crate::behaviors_in_groups! { $wire [$make] [all]
            silence {
                a_cut_of_less_than_half_a_lease_goes_unnoticed,
                silence_of_less_than_half_a_lease_goes_unnoticed,
                silence_of_the_server_goes_unnoticed,
                silence_towards_the_server_goes_unnoticed,
                a_slow_wire_keeps_its_locks,
                a_silent_wire_loses_the_lock_at_its_deadline,
            }
            lost_replies {
                an_acquire_without_a_reply_is_granted_once,
                a_try_without_a_reply_is_granted_once,
                a_waiter_without_a_reply_has_one_ticket,
                an_acquire_whose_caller_is_gone_leaves_no_orphan,
                a_release_without_a_reply_is_not_a_loss,
                an_acquire_that_arrives_much_later_does_not_block_the_lock,
            }
            reconnect {
                waiters_keep_their_positions_over_a_reset,
                a_lock_released_while_disconnected_is_granted_after_the_reconnect,
                connections_closed_at_any_moment_leave_nothing,
            }
            network_faults {
                network_faults_never_make_two_holders,
            }
        }
    };
}

/// Runs what ends or limits locks that live in sessions of the server, and those behaviours on a faulty network that do not need
/// a lease beside the session.
///
/// The first argument names the module, the second creates a [`SessionBench`](crate::SessionBench). The test crate calls
/// [`scripted_process!`](macro@crate::scripted_process), too.
#[macro_export]
macro_rules! session_suite {
    ($module:ident, $make:expr) => {
        $crate::behaviors_in_groups! { $module [$make] [all]
            session_ends {
                a_terminated_holder_is_lost,
                an_outage_loses_the_holder_and_keeps_the_waiters,
                a_stopped_holder_loses_the_lock_after_its_ttl,
                a_stopped_waiter_delays_the_next_by_its_ttl_at_most,
                a_killed_process_leaves_no_lock_and_no_waiter,
                a_silent_holder_is_lost_before_the_server_frees_the_lock,
                a_silent_waiter_does_not_show_an_old_grant,
            }
            session_limits {
                what_sessions_do_not_have_is_refused,
                more_locks_than_connections_wait_in_the_client,
                names_with_the_same_key_are_a_conflict,
            }
            silence {
                silence_of_less_than_half_a_lease_goes_unnoticed,
                silence_of_the_server_goes_unnoticed,
                silence_towards_the_server_goes_unnoticed,
                a_slow_wire_keeps_its_locks,
                a_silent_wire_loses_the_lock_at_its_deadline,
            }
            lost_replies {
                an_acquire_without_a_reply_is_granted_once,
                a_try_without_a_reply_is_granted_once,
                a_waiter_without_a_reply_has_one_ticket,
                a_release_without_a_reply_is_not_a_loss,
            }
            reconnect {
                a_lock_released_while_disconnected_is_granted_after_the_reconnect,
                connections_closed_at_any_moment_leave_nothing,
            }
            network_faults {
                silence_never_makes_two_holders,
            }
        }
    };
}

/// Expands to a module of tests for the listed behaviours that have one of the tags.
#[doc(hidden)]
#[macro_export]
macro_rules! behaviors_in_groups {
    ($module:ident [$make:expr] $tags:tt $($group:ident { $($name:ident $([$($tag:ident)*])?,)* })*) => {
        mod $module {
            #[allow(unused_imports, reason = "a configuration may select nothing of a group")]
            use super::*;
            $(
                mod $group {
                    #[allow(unused_imports, reason = "a configuration may select nothing of a group")]
                    use super::*;
                    const _: &[$crate::list::Tag] = &[$($($($crate::list::Tag::$tag,)*)?)*];
                    $(
                        $crate::if_tagged! { $tags [$($($tag)*)?] {
                            #[test]
                            fn $name() {
                                let path = concat!(module_path!(), "::", stringify!($name));
                                $crate::suite::run(path, $make, $crate::behaviors::$group::$name);
                            }
                        } }
                    )*
                }
            )*
        }
    };
}

/// `if_tagged! { [selected …] [tag …] { item } }` expands to the item if one of the tags is selected. A macro cannot compare
/// two identifiers, so there is a rule for each tag.
#[doc(hidden)]
#[macro_export]
macro_rules! if_tagged {
    ([$first:ident $($more:ident)*] $tags:tt $item:tt) => {
        $crate::if_tagged! { $first [$($more)*] $tags $tags $item }
    };
    (all $more:tt $tags:tt $left:tt { $($item:tt)* }) => { $($item)* };
    (core $more:tt $tags:tt [core $($left:tt)*] { $($item:tt)* }) => { $($item)* };
    (features $more:tt $tags:tt [features $($left:tt)*] { $($item:tt)* }) => { $($item)* };
    (several $more:tt $tags:tt [several $($left:tt)*] { $($item:tt)* }) => { $($item)* };
    (spread $more:tt $tags:tt [spread $($left:tt)*] { $($item:tt)* }) => { $($item)* };
    (exclusive $more:tt $tags:tt [exclusive $($left:tt)*] { $($item:tt)* }) => { $($item)* };
    (dialect $more:tt $tags:tt [dialect $($left:tt)*] { $($item:tt)* }) => { $($item)* };
    (connection $more:tt $tags:tt [connection $($left:tt)*] { $($item:tt)* }) => { $($item)* };
    (readers $more:tt $tags:tt [readers $($left:tt)*] { $($item:tt)* }) => { $($item)* };
    ($wanted:ident $more:tt $tags:tt [$other:ident $($left:tt)*] $item:tt) => {
        $crate::if_tagged! { $wanted $more $tags [$($left)*] $item }
    };
    ($wanted:ident [] $tags:tt [] $item:tt) => {};
    ($wanted:ident [$next:ident $($more:ident)*] $tags:tt [] $item:tt) => {
        $crate::if_tagged! { $next [$($more)*] $tags $tags $item }
    };
}

/// Runs what locks in a table of another program guarantee: leases, exclusion and release, and a queue within one client.
/// Clients do not see each other's waiters, and nothing is pushed between them.
#[macro_export]
macro_rules! table_suite {
    ($module:ident, $make:expr) => {
        $crate::behaviors_in_groups! { $module [$make] [all]
            exclusion {
                a_free_lock_is_granted,
                a_held_lock_is_not_granted_to_another_client,
                a_held_lock_is_not_granted_to_the_same_client,
                locks_with_different_names_are_independent,
                two_acquires_in_one_flight_have_one_holder,
                one_of_many_racers_wins,
                increments_under_the_lock_are_never_lost,
                a_shared_guard_holds_until_its_last_share_is_dropped,
                run_holds_the_lock_while_the_work_runs,
            }
            expiry {
                the_lock_of_a_dead_holder_is_granted_after_its_ttl,
                an_expired_lock_is_free_for_a_try,
                expired_lease_is_not_revived,
                an_expired_holder_cannot_release_the_next_grant,
                a_renewal_restores_the_full_ttl,
                a_grant_read_too_late_is_not_returned,
                a_grant_after_an_expired_lease_has_a_new_token,
                a_ttl_out_of_range_is_refused,
            }
            renewal {
                a_lock_is_held_over_many_ttls,
                a_release_stops_the_renewals,
                the_second_holder_is_renewed_after_the_first_releases,
                a_new_grant_after_a_loss_is_renewed,
                a_hung_renewal_does_not_delay_the_loss,
                failing_renewals_do_not_extend_the_lease,
                max_hold_ends_a_lease_that_could_be_renewed,
                run_cancels_the_work_when_the_lock_is_lost,
            }
            release {
                a_released_lock_is_free,
                a_dropped_guard_releases_its_lock,
                a_program_that_exits_after_dropping_its_guard_leaves_no_lock,
                stale_owner_cannot_release,
                a_late_release_does_not_touch_the_next_grant,
                a_failed_release_does_not_remove_the_next_owner,
                a_lost_release_is_sent_again,
                a_dropped_release_completes,
                the_release_of_a_lost_lock_fails_with_the_reason,
            }
            waiting {
                a_waiter_that_times_out_leaves_the_queue,
                a_wait_of_zero_does_not_join_the_queue,
                cancelled_waiter_leaves_the_queue,
                a_repeated_push_grants_once,
                many_waiters_are_granted_one_by_one,
                a_waiter_dropped_before_it_reads_its_grant_releases_it,
            }
            hand_over {
                a_handed_over_lock_is_renewed_in_time,
                closing_hands_over_to_the_successor,
            }
            fencing {
                tokens_rise_over_releases,
                tokens_rise_over_every_end_of_a_grant,
                a_renewal_keeps_the_token,
                clients_see_the_same_storage_id,
            }
            cancellation {
                a_dropped_try_acquires_nothing,
                a_dropped_waiter_leaves_no_ticket,
                a_waiter_dropped_when_granted_releases_its_grant,
                a_dropped_release_completes,
                a_dropped_break_is_atomic,
                the_wait_for_a_loss_may_be_dropped,
                a_dropped_run_releases_the_lock,
                a_dropped_close_completes,
                a_dropped_connect_leaves_nothing,
                the_remaining_waiters_are_granted,
            }
            admin {
                a_list_comes_in_pages,
                a_prefix_is_matched_literally,
                break_is_refused_when_the_token_moved_on,
                a_broken_holder_without_pushes_is_lost_at_its_renewal,
                a_diagnosis_finds_no_problem_and_changes_nothing,
            }
            failure {
                a_short_outage_goes_unnoticed,
                a_long_outage_loses_the_lock_permanently,
                waiters_survive_a_long_outage,
                a_try_during_an_outage_fails_and_leaves_nothing,
                a_stolen_lock_is_lost,
                closing_ends_although_the_backend_is_unreachable,
                closing_does_not_wait_for_a_query,
                an_acquire_with_a_lost_reply_is_granted_once,
                validity_counts_from_the_send_that_succeeded,
                a_wait_ends_in_time_without_a_reply,
            }
            names {
                hostile_names_are_taken_literally,
                case_is_not_folded,
                unicode_is_not_normalized,
                internal_names_are_ordinary_names,
            }
            batching {
                replies_are_in_the_order_of_operations,
                an_empty_flight_has_no_replies,
                many_tasks_get_their_own_replies,
            }
            contract {
                late_acquire_is_defeated,
                leaving_removes_the_ticket,
                a_check_returns_the_grant,
                a_backend_describes_itself,
            }
            executors {
                a_blocked_runtime_keeps_its_leases,
                a_client_outlives_the_runtime_that_made_it,
                a_guard_may_be_dropped_anywhere,
            }
            stress {
                holders_never_overlap,
            }
        }
    };
}
