//! Existing outbox tables, relayed in place: every case on SQLite and on two PostgreSQLs.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_core::outbox::adopt::{Adopt, KeyOrder, Mapping, Role, RowNumber, TableName};
use relevo_stores::sqlite::SqliteStore;
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
        a_row_without_an_id_stays_pending_and_keeps_nobody_back,
        a_time_may_be_a_number_of_milliseconds,
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
    order {
        rows_come_as_they_were_inserted_as_long_as_nobody_gives_them_numbers,
        a_number_that_its_owner_gives_a_row_is_its_place_and_it_was_said,
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

/// Which column is a row's own number, and whether it comes again: SQLite knows it by small things.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rows_own_number_is_known_in_whatever_way_sqlite_has_it() {
    let db = Database::fresh(Kind::Sqlite).await.unwrap();
    let store = SqliteStore::open(&db.url).unwrap();
    let number = |comes_again| Some(RowNumber { column: "id".into(), comes_again });
    for (n, (columns, wanted, in_order)) in [
        ("(id INTEGER PRIMARY KEY, _rowid_ text)", number(true), true),
        ("(id integer, body text, PRIMARY KEY (id))", number(true), true),
        ("(id INTEGER PRIMARY KEY AUTOINCREMENT)", number(false), true),
        ("(id INTEGER PRIMARY KEY, no_autoincrement int)", number(true), true),
        ("(id INTEGER PRIMARY KEY /* AUTOINCREMENT */)", number(true), true),
        ("(id INT PRIMARY KEY)", None, true),
        ("(id INTEGER PRIMARY KEY DESC)", None, true),
        ("(id INTEGER, body text, PRIMARY KEY (id, body))", None, true),
        ("(id text PRIMARY KEY)", None, true),
        ("(id INTEGER PRIMARY KEY) WITHOUT ROWID", None, false),
        ("(id text PRIMARY KEY, _RowId_ int)", None, false),
    ]
    .into_iter()
    .enumerate()
    {
        db.run(&format!("CREATE TABLE t{n} {columns}")).await;
        let shape = store.table_shape(&TableName::parse(&format!("t{n}")).unwrap()).await.unwrap();
        assert_eq!(shape.row_number, wanted, "{columns}");
        assert_eq!(shape.rows_are_in_commit_order, in_order, "{columns}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_an_id_that_comes_again_is_refused_where_rows_are_deleted() {
    let db = Database::fresh(Kind::Sqlite).await.unwrap();
    let store = SqliteStore::open(&db.url).unwrap();
    let mapping = |table: &str| Mapping::new(TableName::parse(table).unwrap()).delete();
    let columns = "topic text NOT NULL, payload text NOT NULL";
    db.run(&format!("CREATE TABLE again (id INTEGER PRIMARY KEY, {columns})")).await;
    let error = store.adopt("again", mapping("again")).await.unwrap_err().to_string();
    assert!(error.contains("it needs AUTOINCREMENT"), "{error}");
    db.run(&format!("CREATE TABLE once (id INTEGER PRIMARY KEY AUTOINCREMENT, {columns})")).await;
    let adopted = store.adopt("once", mapping("once")).await.unwrap();
    assert_eq!(*adopted.order(), KeyOrder::RowNumber);
    // Without a name for it, nothing tells the order.
    let columns = columns.replace("topic", "_rowid_");
    db.run(&format!("CREATE TABLE hidden (id text PRIMARY KEY, {columns})")).await;
    let verdict = store.judge_mapping(&mapping("hidden").with(Role::Topic, "_rowid_")).await;
    let order = verdict.unwrap().order;
    assert_eq!(order, KeyOrder::Approximate { columns: vec!["id".into()] });
}
