//! What else is done to the log, done to an outbox table of somebody else's: its owner's locks, disks, another cluster,
//! another schema, commits that the server loses.

#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use relevo_testkit::services;
use relevo_torture::scenarios::{self, Source, adopting, on_postgres, on_sqlite};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_fights_over_its_rows_loses_none_of_them() {
    let _turn = common::turn().await;
    // Of its own: what it counts stands in the server's log.
    let Some(server) = services::require(scenarios::server(15)) else { return };
    let (run, time) = (common::run(71), common::seconds(5));
    let name = "conflicts with the owner of an adopted table on PostgreSQL 15";
    let outcome = scenarios::conflicts_with_owners(&run, name, &server, time).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing_of_an_adopted_table_on_sqlite() {
    let _turn = common::turn().await;
    if services::require(scenarios::SmallDisk::available()).is_none() {
        return;
    }
    let name = "disk full under an adopted table on SQLite";
    let outcome = scenarios::disk_full_on_sqlite(&common::run(72), name, Source::Adopted, 1).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing_of_an_adopted_table_on_postgres() {
    let _turn = common::turn().await;
    if services::require(scenarios::SmallDisk::available()).is_none() {
        return;
    }
    let Some(server) = common::server(18) else { return };
    let (run, source) = (common::run(73), Source::Adopted);
    let name = "disk full under an adopted table on PostgreSQL 18";
    let outcome = scenarios::disk_full_on_postgres(&run, name, &server, source, 1).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_moves_loses_nothing_of_an_adopted_table_on_postgres() {
    let _turn = common::turn().await;
    let Some(server) = common::server(18) else { return };
    let run = common::run(74);
    let database = adopting(&run, on_postgres(&server).unwrap());
    let name = "a rolling change of schema beside an adopted table on PostgreSQL 18";
    scenarios::rolling_schema(&run, name, database).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_moves_loses_nothing_of_an_adopted_table_on_sqlite() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let run = common::run(75);
    let database = adopting(&run, on_sqlite(folder.path()));
    let name = "a rolling change of schema beside an adopted table on SQLite";
    scenarios::rolling_schema(&run, name, database).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_is_promoted_delivers_what_it_has_of_an_adopted_table() {
    let _turn = common::turn().await;
    // Of its own: it stops for a moment while the standby is made, and dies.
    let Some(primary) = services::require(scenarios::server(18)) else { return };
    let (run, name) = (common::run(76), "a promoted standby with an adopted table, PostgreSQL 18");
    let outcome = scenarios::promoted_under_relays(&run, name, &primary, Source::Adopted).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_table_restored_into_another_cluster_is_relayed_there() {
    let _turn = common::turn().await;
    let Some(from) = common::server(15) else { return };
    let Some(to) = services::require(scenarios::server(15)) else { return };
    let (run, source) = (common::run(77), Source::Adopted);
    let name = "dump and restore of an adopted table on PostgreSQL 15";
    for outcome in scenarios::restore(&run, name, &from, &to, source).await.unwrap() {
        outcome.expect_clean();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_table_that_moves_under_running_relays_is_relayed_where_it_is() {
    let _turn = common::turn().await;
    let Some(from) = common::server(18) else { return };
    let Some(to) = services::require(scenarios::server(18)) else { return };
    let (run, source) = (common::run(78), Source::Adopted);
    let name = "a move of an adopted table under running relays on PostgreSQL 18";
    let moved = scenarios::moved_under_relays(&run, name, &from, &to, source).await;
    moved.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_with_sqlites_write_lock_only_delays_an_adopted_table() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let run = common::run(79);
    let database = adopting(&run, on_sqlite(folder.path()));
    let (name, hold) = ("SQLite busy under an adopted table", Duration::from_secs(7));
    scenarios::sqlite_busy(&run, name, database, 1, hold).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_and_marks_that_the_server_lost_are_made_again() {
    let _turn = common::turn().await;
    let Some(server) = services::require(scenarios::server(15)) else { return };
    let run = common::run(80);
    let (kills, database) =
        (common::kills(3) as u64, adopting(&run, on_postgres(&server).unwrap()));
    let name = "kills of PostgreSQL 15 under asynchronous relays of an adopted table";
    let outcome =
        scenarios::server_kills_of_asynchronous_handlers(&run, name, &server, database, kills);
    outcome.await.unwrap().expect_clean();
}
