//! [`behavior_suite!`](crate::behavior_suite) and [`wire_suite!`](crate::wire_suite): every behaviour, listed once.
//!
//! A backend runs all of them once. Its other set-ups select those that depend on what is different, by [`Tag`]. What has no
//! tag depends on the client alone, or on what all set-ups of a backend have in common.

/// Which set-ups of a backend run a behaviour, besides the one that runs all.
#[expect(non_camel_case_types, reason = "they are words of `behavior_suite!`")]
#[derive(Clone, Copy, Debug)]
pub enum Tag {
    /// Every behaviour.
    all,
    /// Each kind of request about one exclusive lock: for any set-up.
    core,
    /// Modes, cells, lists, pushes between clients: for set-ups that change which requests are allowed or complete.
    features,
    /// Several names at once: the same, for set-ups that keep all locks in one place.
    several,
    /// Names, flights and pushes: for set-ups that keep locks on several servers.
    spread,
    /// The rest of what a backend must do for an exclusive lock: for set-ups that store it in another form.
    exclusive,
    /// What depends on the names of entries: for set-ups that name them in another way.
    dialect,
}

/// Runs every behaviour on a storage: one `#[test]` each, in a module per group, so that a failure reads
/// `memory::waiting::cancelled_waiter_leaves_the_line`.
///
/// The first argument names the module, the second makes a fresh [`TestBench`](crate::TestBench):
/// `behavior_suite!(memory, MemoryBench::new);`
///
/// A backend that passes all of it may be set up in other ways too. For these a part is enough, which is selected by
/// [`Tag`](crate::list::Tag): `behavior_suite!(memory_again, MemoryBench::again, only [core several]);`
#[macro_export]
macro_rules! behavior_suite {
    ($storage:ident, $make:expr) => {
        $crate::behavior_suite!($storage, $make, only[all]);
    };
    ($storage:ident, $make:expr, only [$($wanted:ident)+]) => {
        const _: &[$crate::list::Tag] = &[$($crate::list::Tag::$wanted),+];
        $crate::behaviors_in_groups! { $storage [$make] [$($wanted)+]
            exclusion {
                a_free_lock_is_granted [core],
                a_held_lock_is_not_granted_to_another_client [core],
                a_held_lock_is_not_granted_to_the_same_client [exclusive],
                names_do_not_disturb_each_other [exclusive],
                two_acquires_in_one_flight_have_one_holder [core],
                one_of_many_racers_wins [exclusive dialect],
                increments_under_the_lock_are_never_lost [core dialect],
                a_shared_guard_holds_until_its_last_share_goes,
                run_holds_the_lock_while_the_work_runs,
            }
            expiry {
                a_dead_holder_makes_room_after_its_ttl [core dialect],
                an_ended_lease_is_free_for_a_try [exclusive],
                expired_lease_is_not_revived [core],
                an_expired_holder_does_not_release_the_next [exclusive],
                a_renewal_gives_the_whole_ttl_again [exclusive],
                a_grant_that_is_read_too_late_is_not_shown,
                holder_and_first_waiter_die_together [spread exclusive],
                a_ticket_that_is_not_renewed_ends [exclusive],
                a_grant_after_the_end_of_a_lease_has_a_new_token [exclusive],
                a_ttl_out_of_range_is_refused,
            }
            renewal {
                a_lock_is_held_over_many_ttls [core],
                release_stops_the_keeper,
                the_next_holder_is_renewed_after_the_first_has_gone [exclusive],
                a_new_grant_after_a_loss_is_renewed [exclusive],
                a_hung_renewal_does_not_delay_the_loss,
                failing_renewals_let_the_time_run_out,
                everybody_sees_a_loss_whatever_the_first_does,
                max_hold_ends_what_could_be_renewed,
                run_cancels_the_work_when_the_lock_is_lost,
            }
            release {
                a_released_lock_is_free [core],
                a_dropped_guard_gives_its_lock_back,
                a_program_that_ends_after_its_guard_leaves_no_lock,
                stale_owner_cannot_release [core],
                a_late_release_does_not_touch_the_next_grant [exclusive],
                a_failed_release_does_not_clear_the_next_owner [exclusive],
                a_lost_release_is_sent_again [exclusive],
                a_dropped_release_goes_on [exclusive],
                the_release_of_a_lost_lock_says_so [exclusive],
            }
            waiting {
                waiters_enter_in_the_order_they_joined [core dialect],
                a_try_does_not_overtake_the_line [core],
                a_waiter_that_waits_out_leaves_the_line [exclusive],
                a_wait_of_zero_does_not_join_the_line,
                cancelled_waiter_leaves_the_line [core dialect],
                a_dead_waiter_costs_nobody_its_ttl [exclusive],
                a_place_in_line_outlives_its_ttl [exclusive],
                a_release_wakes_one_waiter [spread exclusive],
                a_lost_push_is_found_by_the_heartbeat [features exclusive],
                a_repeated_push_is_harmless,
                a_crowd_is_served_one_by_one [exclusive],
                a_waiter_that_sleeps_on_its_grant_gives_it_back,
            }
            hand_over {
                a_release_hands_over_in_one_step [spread],
                a_lock_travels_between_clients [features exclusive],
                a_handed_over_lock_is_renewed_in_time [spread exclusive],
                a_stopped_waiter_does_not_show_an_old_grant [exclusive],
                a_grant_to_somebody_who_left_goes_on_to_the_next [exclusive],
                a_grant_that_the_client_does_not_know_is_given_back [spread exclusive],
                a_choice_that_the_client_does_not_know_is_given_back,
                closing_hands_over_to_the_next [spread exclusive],
                readers_granted_at_once_all_enter,
                names_released_at_once_are_all_handed_over,
            }
            fencing {
                tokens_rise_over_releases [exclusive],
                tokens_rise_over_every_end_of_a_grant [core],
                a_renewal_keeps_the_token [exclusive],
                a_writer_has_a_larger_token_than_the_readers_before_it,
                the_token_of_several_names_fits_each_of_them,
                clients_agree_on_the_storage [features exclusive],
            }
            modes {
                readers_share_and_keep_the_writer_out,
                a_writer_keeps_readers_out,
                readers_do_not_overtake_a_waiting_writer [features],
                readers_in_line_enter_together [dialect],
                a_semaphore_admits_as_many_as_it_has_slots [features dialect],
                the_slot_of_a_dead_holder_becomes_free,
                many_shared_holders_are_all_renewed_in_time,
                modes_that_contradict_each_other_are_a_conflict [dialect],
                an_idle_lock_may_become_something_else,
                a_semaphore_of_nothing_is_refused,
            }
            several_names {
                all_names_are_held_and_released_together [several dialect],
                one_name_that_is_taken_keeps_all_from_being_granted,
                opposite_order_does_not_deadlock [several dialect],
                a_waiter_for_all_is_not_starved,
                a_dead_waiter_for_many_names_costs_nobody_its_ttl,
                a_waiter_for_all_that_leaves_frees_every_line,
                any_takes_one_that_is_free,
                any_waits_for_the_first_that_becomes_free [several dialect],
                a_crowd_for_any_is_served_one_by_one,
                several_names_are_broken_together [several dialect],
                several_names_expire_together,
                no_name_is_refused,
            }
            cell {
                what_the_holder_writes_all_can_read [features],
                a_cell_while_held_ends_with_its_grant [features dialect],
                a_cell_for_a_time_ends_after_it,
                a_cell_for_always_stays [features dialect],
                a_write_after_a_loss_is_refused,
                the_storage_checks_who_writes [features],
                a_cell_has_a_largest_size,
                a_kept_cell_is_listed_and_in_nobodys_way,
            }
            cancellation {
                a_dropped_try_takes_nothing [exclusive],
                a_dropped_acquire_takes_nothing [exclusive],
                a_dropped_waiter_leaves_no_ticket [exclusive],
                a_waiter_dropped_at_its_turn_gives_it_back [exclusive],
                a_dropped_release_goes_on [exclusive],
                questions_may_be_dropped,
                a_dropped_break_is_done_or_not [exclusive],
                the_wait_for_a_loss_may_be_dropped,
                a_dropped_run_gives_the_lock_back,
                a_dropped_closing_goes_on,
                a_dropped_connect_leaves_nothing,
                whoever_stays_is_served [exclusive],
            }
            admin {
                inspect_shows_holders_and_the_line [features dialect],
                looking_leaves_nothing_behind [features],
                a_list_comes_in_pages [features exclusive],
                a_prefix_means_itself [spread exclusive],
                a_list_shows_holders_and_waiters [dialect],
                a_broken_holder_learns_of_it [core],
                break_is_refused_when_the_token_moved_on [exclusive],
                a_deaf_broken_holder_finds_out_by_its_renewal [exclusive],
                one_of_several_readers_is_broken,
                a_client_that_only_looks_makes_nothing,
                an_examination_finds_no_problem_and_changes_nothing [exclusive],
            }
            failure {
                a_short_absence_goes_unnoticed [exclusive],
                a_long_absence_loses_the_lock_for_ever [exclusive],
                waiters_keep_their_places_through_a_short_absence [exclusive],
                waiters_outlast_a_long_absence [exclusive],
                a_try_while_away_fails_and_leaves_nothing [exclusive],
                a_stolen_lock_is_lost [core],
                closing_releases_everything [several],
                closing_ends_although_the_storage_is_away,
                closing_does_not_wait_for_a_question,
                a_closed_client_refuses_everything,
                a_lost_answer_to_an_acquire_is_one_grant [exclusive dialect],
                a_lost_answer_to_a_waiter_is_one_place [exclusive],
                validity_counts_from_the_send_that_succeeded,
                an_acquire_that_arrives_after_its_undo_does_nothing,
                a_stuck_try_that_was_answered_busy_does_nothing,
                a_wait_ends_in_time_although_nobody_answers,
            }
            names {
                hostile_names_mean_themselves [spread exclusive],
                case_is_not_folded [exclusive],
                unicode_is_not_normalized [exclusive],
                long_names_are_kept_in_full [exclusive],
                a_name_and_one_below_it_are_independent,
                internal_names_are_ordinary_names [spread exclusive],
                what_is_no_name_is_refused,
            }
            batching {
                answers_come_in_order [features exclusive],
                operations_of_one_flight_see_each_other,
                one_failing_operation_does_not_fail_the_others,
                an_empty_flight_is_answered_by_nothing,
                many_tasks_get_their_own_answers [spread exclusive],
            }
            contract {
                acquire_is_idempotent,
                late_acquire_is_defeated [core],
                leaving_too_late_changes_nothing,
                leaving_gives_up_the_place [exclusive],
                a_check_is_answered_with_the_grant [exclusive],
                a_waiter_is_told_when_to_look_again [spread],
                an_owner_comes_anew_after_its_grant_was_broken,
                a_try_leaves_no_trace,
                a_storage_says_what_it_is [exclusive],
            }
            executors {
                a_blocked_runtime_keeps_its_leases,
                every_call_works_without_tokio,
                a_client_outlives_the_runtime_that_made_it,
                a_guard_may_be_dropped_anywhere,
            }
            stress {
                holders_never_overlap [exclusive],
            }
        }
    };
}

/// Runs every behaviour on a broken network: one `#[test]` each, as [`behavior_suite!`](crate::behavior_suite) does.
///
/// The first argument names the module, the second makes a fresh [`WireBench`](crate::WireBench):
/// `wire_suite!(redis_wire, RedisBench::plain);`
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
            network_faults {
                no_network_makes_two_holders,
            }
        }
    };
}

/// Makes a module of tests from a list of behaviours: those with one of the tags.
#[doc(hidden)]
#[macro_export]
macro_rules! behaviors_in_groups {
    ($storage:ident [$make:expr] $tags:tt $($group:ident { $($name:ident $([$($tag:ident)*])?,)* })*) => {
        mod $storage {
            #[allow(unused_imports, reason = "a set-up may select nothing of a group")]
            use super::*;
            $(
                mod $group {
                    #[allow(unused_imports, reason = "a set-up may select nothing of a group")]
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

/// `if_tagged! { [wanted …] [tag …] { item } }` is the item if one of the tags is wanted. A macro cannot compare two words, so
/// there is a rule for each tag.
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
    ($wanted:ident $more:tt $tags:tt [$other:ident $($left:tt)*] $item:tt) => {
        $crate::if_tagged! { $wanted $more $tags [$($left)*] $item }
    };
    ($wanted:ident [] $tags:tt [] $item:tt) => {};
    ($wanted:ident [$next:ident $($more:ident)*] $tags:tt [] $item:tt) => {
        $crate::if_tagged! { $next [$($more)*] $tags $tags $item }
    };
}
