//! Existing outbox tables, relayed in place: every case on SQLite and on two PostgreSQLs.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_tests::adopt::{Database, Kind};

macro_rules! on_every_database {
    ($($module:ident { $($case:ident,)* })*) => {
        $($(mod $case {
            use super::*;

            async fn on(kind: Kind) {
                if let Some(db) = Database::fresh(kind).await {
                    relevo_tests::adopt::$module::$case(db).await;
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                on(Kind::Sqlite).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres_15() {
                on(Kind::Postgres(15)).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres_18() {
                on(Kind::Postgres(18)).await;
            }
        })*)*
    };
}

on_every_database! {
    cases {
        a_committed_row_is_published_and_marked_and_a_rolled_back_one_is_not,
        a_failure_is_told_in_the_owners_columns_and_holds_back_its_key_only,
        what_fails_for_good_moves_to_the_owners_dead_letters_and_comes_back_when_replayed,
        a_dead_letter_that_dies_again_is_again_where_its_owner_looks,
        a_row_that_its_owner_puts_back_is_relayed_again,
        a_row_that_makes_no_event_is_a_dead_letter_and_keeps_nobody_back,
        a_row_that_is_not_due_waits_for_its_time,
        ticketflows_table_has_its_key_in_the_payload,
        rows_that_must_not_be_changed_never_are_and_come_once,
        states_may_be_words_and_confirmed_rows_may_be_deleted,
        a_mapping_that_does_not_fit_is_refused_with_its_reason,
        a_native_subscription_of_the_same_log_never_gets_adopted_rows,
    }
    chaos {
        relays_that_die_lose_nothing_and_keep_the_order_of_every_key,
        relays_that_die_lose_nothing_and_keep_the_order_where_rows_must_not_be_changed,
        a_claim_that_outlives_its_owner_comes_back,
        a_table_of_strange_names_is_relayed_by_its_mapping_alone,
    }
    publishing {
        no_transaction_is_open_and_no_row_locked_while_one_is_published,
        updated_at_moves_with_every_mark,
        updated_at_is_its_owners_where_the_mapping_does_not_name_it,
    }
    why {
        a_row_that_nobody_claimed_yet_says_what_it_waits_for,
        a_row_that_is_not_due_says_until_when,
        a_row_is_answered_for_from_its_insert_until_its_row_goes,
        a_row_that_failed_for_good_is_not_said_to_be_delivered,
        a_row_that_its_owner_put_back_is_pending_again_whatever_the_log_says,
        a_row_whose_id_is_no_uuid_is_answered_for_by_either_id,
        of_very_many_rows_that_come_first_not_all_are_counted,
        a_claimed_row_is_in_the_hands_of_its_relay,
    }
}
