/// The one list of the cases for stores: `group { case, ... }`, with the capability that a case needs. Hands the list
/// to the macro named first, after the tokens that belong to it.
#[macro_export]
macro_rules! store_cases {
    ([$($then:tt)*] $($own:tt)*) => {
        $($then)*! { [$($own)*]
            event {
                every_byte_comes_back_as_it_was_published,
                an_event_lies_in_the_lane_of_its_key_or_of_its_own_id,
                an_id_given_by_the_caller_is_kept,
                an_event_carries_the_time_of_its_publication,
                what_is_out_of_bounds_is_refused_before_anything_is_written,
                an_operators_publish_keeps_to_the_limits_too: own_log,
            }
            outbox {
                a_committed_event_is_read,
                a_rolled_back_event_is_never_read,
                an_event_of_a_transaction_that_was_dropped_is_never_read,
                an_event_is_not_read_before_its_transaction_commits,
                events_of_a_transaction_come_in_the_order_of_their_publication,
                pages_of_any_size_bring_every_event_once,
                a_page_is_bounded_by_bytes_and_brings_at_least_one_row,
                lanes_without_rows_end_where_the_others_end,
                a_page_brings_only_the_lanes_asked_for,
                a_window_stays_frozen_while_it_is_paged: own_log,
                a_position_in_the_middle_of_a_window_resumes_there,
                a_late_commit_is_not_skipped: concurrent_writers,
                a_late_commit_between_the_pages_of_a_window_is_not_skipped: concurrent_writers && own_log,
                a_long_open_transaction_holds_nobody_back: concurrent_writers,
                in_any_interleaving_every_event_comes_once_and_keys_stay_in_order: own_log,
                readers_of_several_processes_at_once_miss_nothing,
                two_subscriptions_have_their_own_cursors: own_log,
                a_subscription_from_the_beginning_gets_everything,
                a_subscription_from_now_gets_only_what_commits_from_now_on: own_log,
                a_transaction_open_at_a_start_from_now_is_not_missed: concurrent_writers && own_log,
                a_subscription_from_a_time_misses_nothing_that_committed_after_it: own_log,
                a_transaction_open_at_the_time_of_a_start_is_not_missed: concurrent_writers && own_log,
                a_new_subscription_has_a_cursor_for_every_lane,
                a_peek_shows_what_committed_and_delivers_nothing: own_log,
                a_commit_rings_the_doorbell: doorbell,
                migrating_twice_applies_nothing_the_second_time,
                processes_that_start_at_once_migrate_once,
                another_process_reads_the_same_log: shared_by_processes,
                a_probe_names_the_server_and_the_schema,
            }
            retention {
                what_every_cursor_is_past_goes_when_it_is_old_enough: own_log,
                what_a_cursor_still_needs_stays: own_log,
                a_log_without_subscriptions_keeps_everything: own_log,
                what_commits_after_the_log_was_cleaned_up_is_not_lost: concurrent_writers && own_log,
                a_parked_event_survives_its_segment: own_log,
                a_dead_letter_survives_its_segment: own_log,
                processes_that_keep_house_at_once_are_no_harm: own_log,
                the_tick_a_cursor_stands_at_stays: own_log,
                a_plan_names_who_holds_the_log_and_changes_nothing: own_log,
            }
            relay {
                a_lane_is_taken_only_with_the_token_that_was_seen,
                a_take_of_several_lanes_gets_those_that_still_match,
                of_many_that_take_a_lane_at_once_one_gets_it,
                a_lane_loads_only_under_the_token_in_force,
                a_released_lane_is_nobodys_and_its_token_is_void,
                a_release_with_an_old_token_is_passed_over,
                beats_are_counted_and_show_everybody,
                subscriptions_have_their_own_members_and_leases,
                a_forgotten_member_is_gone,
                an_unknown_subscription_gives_no_lanes,
                subscribing_again_leaves_cursors_and_leases_alone: own_log,
                hostile_names_of_subscriptions_and_members_are_only_names,
            }
            operators {
                a_pause_fences_owners_off_until_it_is_resumed,
                a_pause_survives_a_restart_of_the_relay,
                a_rewind_to_the_beginning_brings_everything_again,
                a_rewind_to_now_leaves_out_what_came_before: own_log,
                a_rewind_to_a_time_brings_all_that_committed_after_it: own_log,
                a_rewind_unparks_what_it_brings_again,
                a_removed_subscription_leaves_only_its_dead_letters,
                status_shows_backlog_parked_keys_and_dead_letters: own_log,
                status_counts_parked_events_and_dead_letters,
                a_subscription_at_work_is_not_named_as_forgotten: own_log,
                a_members_note_is_shown,
                a_healthy_store_has_no_problem,
            }
            inbox {
                a_record_moves_the_cursor_of_its_lane,
                a_record_under_an_old_token_is_stale_and_leaves_nothing,
                a_record_from_another_position_is_stale_and_leaves_nothing,
                changes_of_several_lanes_are_all_or_nothing,
                of_two_records_at_once_one_happens,
                a_parked_key_is_due_by_the_stores_clock,
                what_waits_behind_a_key_comes_in_delivery_order,
                a_late_commit_waits_behind_what_was_read_before_it: concurrent_writers,
                a_drain_removes_what_took_effect_and_then_the_key,
                a_key_parked_again_has_the_newest_figures,
                the_same_event_cannot_wait_twice,
                subscriptions_park_a_key_each_for_itself,
                hostile_keys_are_parked_and_drained,
                a_lane_with_too_many_parked_keys_loads_one_more_than_asked,
                a_skip_keeps_its_reason,
                a_take_over_finds_the_lane_as_it_was_recorded,
            }
            dead_letters {
                a_dead_letter_keeps_the_event_and_the_reason: own_log,
                a_parked_event_that_dies_knows_when_it_first_failed: own_log,
                events_that_die_together_have_a_letter_each,
                a_filter_finds_the_letters_it_means,
                the_list_of_dead_letters_is_read_in_pages,
                an_archived_letter_is_set_aside,
                archiving_releases_a_held_key,
                dead_letters_past_their_retention_go,
                a_letter_that_is_not_there_cannot_be_replayed,
            }
            replay {
                a_replay_is_carried_out_by_the_lanes_owner,
                replayed_events_are_in_order_among_themselves,
                a_replayed_event_comes_before_what_still_waits,
                replaying_twice_is_refused_or_harmless,
                a_replayed_event_may_die_again,
                the_set_of_a_replay_is_frozen_when_it_is_asked_for,
                a_filter_that_ends_at_a_number_leaves_out_what_died_later,
                a_replay_keeps_to_its_rate,
                a_cancelled_replay_leaves_the_rest_dead,
                a_request_cancelled_meanwhile_puts_nothing_back,
                an_unknown_replay_is_refused,
                an_edited_copy_has_its_own_id_and_bytes,
                an_edited_copy_that_dies_is_still_a_copy,
                an_edited_copy_and_its_original_wait_at_one_place,
                an_edit_out_of_bounds_is_refused,
                a_replay_releases_a_held_key,
                a_request_is_shown_to_its_own_subscription,
                a_letter_of_a_removed_subscription_is_not_replayed,
            }
            horizon {
                a_rewind_behind_the_horizon_is_refused: own_log,
                a_rewind_behind_the_horizon_is_carried_out_for_who_insists: own_log,
                a_rewind_to_what_is_proven_is_allowed: own_log,
                what_a_subscription_does_not_want_needs_no_proof: own_log,
                a_direct_handler_is_rewound_without_proof: own_log,
                a_dead_letter_behind_the_horizon_is_not_replayed: own_log,
                an_edited_copy_needs_no_proof: own_log,
                a_direct_handlers_dead_letter_needs_no_proof: own_log,
                proof_is_kept_longer_than_what_can_be_brought_again: own_log,
                proof_stays_while_a_rewind_is_under_way: own_log,
                proof_stays_while_a_replay_is_under_way: own_log,
            }
            why {
                an_event_that_was_never_published_is_unknown: own_log,
                a_rolled_back_event_is_unknown: own_log,
                an_event_inside_an_open_transaction_is_unknown_yet: own_log,
                a_known_event_is_described: own_log,
                an_event_in_a_lane_that_nobody_has_waits_for_a_worker: own_log,
                an_event_in_a_lane_that_is_leased_names_the_owner: own_log,
                an_event_the_cursor_is_past_was_delivered: own_log,
                a_late_event_below_the_cursor_was_not_delivered: concurrent_writers && own_log,
                a_parked_event_says_until_when_and_why: own_log,
                an_event_behind_a_held_dead_letter_names_it: own_log,
                a_dead_event_names_its_letter: own_log,
                a_replayed_event_is_no_longer_dead: own_log,
                an_event_of_a_paused_subscription_says_who_paused_it: own_log,
                a_parked_event_of_a_paused_subscription_says_the_pause_first: own_log,
                an_event_whose_destination_is_down_shows_the_breaker: own_log,
                an_event_that_a_subscription_does_not_want_is_filtered_out: own_log,
                an_event_from_before_a_subscriptions_start_says_so: own_log,
                an_event_left_out_by_a_rewind_says_so_until_it_is_brought_again: own_log,
                an_event_that_retention_dropped_is_past_retention: own_log,
            }
        }
    };
}

/// The cases that show a "no": each runs only where the store declares that it lacks the capability.
#[macro_export]
macro_rules! store_no_cases {
    ([$($then:tt)*] $($own:tt)*) => {
        $($then)*! { [$($own)*]
            a_second_writer_waits_for_the_first: concurrent_writers,
            there_is_no_bell_to_wait_for: doorbell,
            a_handler_with_a_transaction_of_its_own_is_refused: direct_effects,
            a_subscription_to_some_of_it_is_refused: own_log,
        }
    };
}

/// A module of the given name with a `#[test]` for each case of [`store_cases!`](crate::store_cases), each against a
/// fresh store of the [`StoreHarness`](crate::conformance::StoreHarness).
#[macro_export]
macro_rules! store_conformance {
    ($name:ident, $harness:expr) => {
        mod $name {
            use super::*;
            $crate::store_cases! { [$crate::store_case_tests] $harness }
            $crate::store_no_cases! { [$crate::store_no_tests] $harness }
        }
    };
}

/// What [`store_conformance!`](crate::store_conformance) makes of the list.
#[doc(hidden)]
#[macro_export]
macro_rules! store_case_tests {
    ([$harness:expr] $($group:ident { $($case:ident $(: $($need:ident)&&+)?,)* })*) => {
        $(mod $group {
            use super::*;
            $(#[test]
            fn $case() {
                #[allow(unused_mut, unused_assignments)]
                let mut need = None;
                $(need = Some($crate::conformance::Need::of(stringify!($($need),+), |can| $(can.$need)&&+));)?
                let name = concat!(stringify!($group), "::", stringify!($case));
                $crate::conformance::run(&$harness, name, need, $crate::conformance::$group::$case);
            })*
        })*
    };
}

/// What [`store_conformance!`](crate::store_conformance) makes of [`store_no_cases!`](crate::store_no_cases).
#[doc(hidden)]
#[macro_export]
macro_rules! store_no_tests {
    ([$harness:expr] $($case:ident: $lacks:ident,)*) => {
        mod no {
            use super::*;
            $(#[test]
            fn $case() {
                let need = $crate::conformance::Need::lack(stringify!($lacks), |can| !can.$lacks);
                let name = concat!("no::", stringify!($case));
                $crate::conformance::run(&$harness, name, Some(need), $crate::conformance::no::$case);
            })*
        }
    };
}
