/// The one list of the cases for brokers: `group { case, ... }`, with the capabilities that a case needs. Hands the
/// list to the macro named first, after the tokens that belong to it.
#[macro_export]
macro_rules! broker_cases {
    ([$($then:tt)*] $($own:tt)*) => {
        $($then)*! { [$($own)*]
            publish {
                what_is_confirmed_is_stored: publishes,
                an_empty_batch_has_no_answers: publishes,
                batches_at_once_are_all_stored: publishes,
                a_message_that_leads_nowhere_is_refused_for_good: publishes refuses_unroutable,
                each_message_gets_its_own_answer: publishes refuses_unroutable,
                a_deleted_destination_confirms_nothing_until_it_is_back: publishes refuses_unroutable,
                a_full_destination_refuses_until_there_is_room: publishes refuses_when_full consumes,
                an_oversize_payload_is_poison_without_harm_to_its_neighbours: publishes,
                the_same_id_may_be_published_twice: publishes,
                a_second_copy_of_an_id_is_dropped: publishes drops_duplicates,
                no_more_messages_than_the_window_are_unconfirmed: publishes windowed,
                no_more_bytes_than_the_window_are_unconfirmed: publishes windowed,
                what_gets_no_turn_in_time_is_down_and_never_sent: publishes windowed,
                publishing_after_the_close_is_down: publishes,
                closing_twice_is_closing_once: publishes,
                closing_hands_over_what_is_on_its_way: publishes windowed,
                closing_in_the_middle_leaves_nothing_unknown: publishes,
            }
            consume {
                what_is_published_arrives: publishes consumes,
                events_of_a_key_arrive_in_their_order: publishes consumes ordered,
                no_more_than_the_limit_is_unsettled: publishes consumes,
                no_more_bytes_than_the_limit_are_unsettled: publishes consumes,
                a_consumer_that_stands_still_is_sent_no_more_than_its_window: publishes consumes,
                a_message_over_the_limit_comes_alone: publishes consumes,
                settling_twice_does_nothing: publishes consumes,
                deliveries_out_of_order_are_settled_each_for_itself: publishes consumes,
                what_is_settled_does_not_come_again: publishes consumes,
                a_retry_comes_again_and_not_too_early: publishes consumes,
                a_retry_waits_at_the_broker_and_outlives_its_receiver: publishes consumes delays_at_broker,
                a_retry_comes_before_what_followed_it: publishes consumes order_on_retry,
                a_dead_message_keeps_its_bytes_headers_and_reason: publishes consumes,
                a_dead_message_of_another_program_is_as_it_came: consumes,
                a_paused_source_gives_nothing_until_it_is_resumed: publishes consumes,
                while_a_source_is_paused_the_others_go_on: publishes consumes several_sources,
                a_settlement_that_is_dropped_loses_nothing: publishes consumes,
                a_settlement_that_is_dropped_can_be_made_again: publishes consumes,
                a_receiver_that_closes_gives_everything_back: publishes consumes,
                a_receiver_that_is_dropped_gives_everything_back: publishes consumes,
                a_call_of_next_that_is_dropped_loses_nothing: publishes consumes,
                two_consumers_share_the_work: publishes consumes,
                a_source_has_one_consumer_at_a_time: publishes consumes exclusive_sources,
                who_takes_over_begins_where_the_other_was: publishes consumes exclusive_sources ordered,
                a_message_keeps_its_place: publishes consumes stable_position,
                a_deleted_destination_ends_its_receivers: publishes consumes,
            }
            headers {
                attributes_are_where_the_specification_says: publishes consumes,
                an_event_comes_back_as_it_was: publishes consumes,
                a_foreign_message_comes_in_through_the_mapping: consumes,
                a_malformed_message_stops_nobody: consumes,
            }
            faults {
                an_answer_that_got_lost_is_unknown_and_the_event_is_published_again: publishes consumes,
                while_the_broker_cannot_be_reached_everything_is_down: publishes,
                a_connection_that_breaks_loses_nothing: publishes consumes,
                a_receiver_whose_connection_breaks_ends_and_the_next_gets_all: publishes consumes,
                a_receiver_whose_connection_falls_silent_notices_and_nothing_is_lost: publishes consumes,
                a_publish_dropped_in_the_middle_harms_no_later_one: publishes,
                closing_while_nothing_answers_comes_to_an_end: publishes,
                a_receiver_closes_while_nothing_answers: publishes consumes,
            }
            restart {
                nothing_confirmed_is_lost_by_a_restart_while_counting: publishes consumes durable,
            }
        }
    };
}

/// A module of the given name with a `#[test]` for each case of [`broker_cases!`](crate::broker_cases), each in a
/// fresh world of the [`BrokerHarness`](crate::conformance::broker::BrokerHarness).
#[macro_export]
macro_rules! broker_conformance {
    ($name:ident, $harness:expr) => {
        mod $name {
            use super::*;
            $crate::broker_cases! { [$crate::broker_case_tests] $harness }
        }
    };
}

/// What [`broker_conformance!`](crate::broker_conformance) makes of the list.
#[doc(hidden)]
#[macro_export]
macro_rules! broker_case_tests {
    ([$harness:expr] $($group:ident { $($case:ident: $($need:ident)*,)* })*) => {
        $(mod $group {
            use super::*;
            use $crate::conformance::broker::{self, Need};
            $(#[test]
            fn $case() {
                let needs = [$(Need { name: stringify!($need), met: |can| can.$need }),*];
                broker::run(&$harness, stringify!($group), stringify!($case), &needs, broker::$group::$case);
            })*
        })*
    };
}
