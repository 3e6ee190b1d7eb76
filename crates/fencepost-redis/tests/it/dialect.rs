//! Locks in another library's form: what they promise, and that the other library finds what it expects.

mod bench;
mod formats;
mod rights;
mod strangers;
mod tracking;

use bench::DialectBench;

/// What is promised of exclusive locks of one name without a cell: the behaviours of the suite that need no more. Those
/// that hand a lock over in one step are not among them.
macro_rules! exclusive_suite {
    ($dialect:ident) => {
        fencepost_testkit::behavior_suite!($dialect, DialectBench::$dialect, only {
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
                a_lock_travels_between_clients,
                a_handed_over_lock_is_renewed_in_time,
                a_stopped_waiter_does_not_show_an_old_grant,
                a_grant_to_somebody_who_left_goes_on_to_the_next,
                a_grant_that_the_client_does_not_know_is_given_back,
                closing_hands_over_to_the_next,
            }
            fencing {
                tokens_rise_over_releases,
                tokens_rise_over_every_end_of_a_grant,
                a_renewal_keeps_the_token,
                clients_agree_on_the_storage,
            }
            cancellation {
                a_dropped_try_takes_nothing,
                a_dropped_acquire_takes_nothing,
                a_dropped_waiter_leaves_no_ticket,
                a_waiter_dropped_at_its_turn_gives_it_back,
                a_dropped_release_goes_on,
                a_dropped_break_is_done_or_not,
                the_wait_for_a_loss_may_be_dropped,
                a_dropped_run_gives_the_lock_back,
                a_dropped_closing_goes_on,
                a_dropped_connect_leaves_nothing,
                whoever_stays_is_served,
            }
            admin {
                an_examination_finds_no_problem_and_changes_nothing,
                a_list_comes_in_pages,
                a_prefix_means_itself,
                a_broken_holder_learns_of_it,
                break_is_refused_when_the_token_moved_on,
                a_deaf_broken_holder_finds_out_by_its_renewal,
            }
            failure {
                a_short_absence_goes_unnoticed,
                a_long_absence_loses_the_lock_for_ever,
                waiters_keep_their_places_through_a_short_absence,
                waiters_outlast_a_long_absence,
                a_try_while_away_fails_and_leaves_nothing,
                a_stolen_lock_is_lost,
                closing_ends_although_the_storage_is_away,
                closing_does_not_wait_for_a_question,
                a_closed_client_refuses_everything,
                a_lost_answer_to_an_acquire_is_one_grant,
                a_lost_answer_to_a_waiter_is_one_place,
                validity_counts_from_the_send_that_succeeded,
                a_wait_ends_in_time_although_nobody_answers,
            }
            names {
                hostile_names_mean_themselves,
                case_is_not_folded,
                unicode_is_not_normalized,
                long_names_are_kept_in_full,
                internal_names_are_ordinary_names,
                what_is_no_name_is_refused,
            }
            batching {
                answers_come_in_order,
                an_empty_flight_is_answered_by_nothing,
                many_tasks_get_their_own_answers,
            }
            contract {
                late_acquire_is_defeated,
                leaving_gives_up_the_place,
                a_check_is_answered_with_the_grant,
                a_storage_says_what_it_is,
            }
            executors {
                a_blocked_runtime_keeps_its_leases,
                a_client_outlives_the_runtime_that_made_it,
                a_guard_may_be_dropped_anywhere,
            }
            stress {
                holders_never_overlap,
            }
        });
    };
}

// One that looks now and then, and one that waits for a signal.
exclusive_suite!(redis_py);
exclusive_suite!(python_redis_lock);
