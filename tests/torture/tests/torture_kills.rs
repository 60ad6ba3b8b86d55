//! Kills of processes and of servers, at random moments with work in flight.

#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use relevo_testkit::services;
use relevo_torture::scenarios::{self, adopting, on_postgres, on_sqlite};

/// Kills of relays with work in flight. A test whose kills found nothing in flight fails.
const ON_SQLITE: usize = 45;
const ON_POSTGRES_15: usize = 45;
const ON_POSTGRES_18: usize = 30;
/// Kills of a server with all its children, likewise.
const OF_EACH_SERVER: usize = 10;

#[test]
fn the_test_command_kills_as_often_as_it_says() {
    const { assert!(ON_SQLITE + ON_POSTGRES_15 + ON_POSTGRES_18 >= 120) };
    const { assert!(2 * OF_EACH_SERVER >= 20) };
    let all = common::kills(100) >= 100 || std::env::var_os("CI").is_none();
    assert!(all, "RELEVO_TORTURE_KILLS leaves some out");
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_relays_on_sqlite_lose_nothing() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let kills = common::kills(ON_SQLITE);
    scenarios::kills(&common::run(1), "kills on SQLite", on_sqlite(folder.path()), kills)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_relays_on_postgres_15_lose_nothing() {
    let _turn = common::turn().await;
    let Some(server) = services::require(scenarios::server(15)) else { return };
    let (kills, database) = (common::kills(ON_POSTGRES_15), on_postgres(&server).unwrap());
    scenarios::kills(&common::run(2), "kills on PostgreSQL 15", database, kills)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_relays_on_postgres_18_lose_nothing() {
    let _turn = common::turn().await;
    let Some(server) = services::require(scenarios::server(18)) else { return };
    let (kills, database) = (common::kills(ON_POSTGRES_18), on_postgres(&server).unwrap());
    scenarios::kills(&common::run(3), "kills on PostgreSQL 18", database, kills)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_postgres_15_with_its_children_lose_nothing() {
    let _turn = common::turn().await;
    let Some(server) = services::require(scenarios::server(15)) else { return };
    let kills = common::kills(OF_EACH_SERVER) as u64;
    let (name, database) = ("kills of PostgreSQL 15", on_postgres(&server).unwrap());
    let outcome = scenarios::server_kills(&common::run(4), name, &server, database, kills).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_postgres_18_with_its_children_lose_nothing() {
    let _turn = common::turn().await;
    let Some(server) = services::require(scenarios::server(18)) else { return };
    let kills = common::kills(OF_EACH_SERVER) as u64;
    let (name, database) = ("kills of PostgreSQL 18", on_postgres(&server).unwrap());
    let outcome = scenarios::server_kills(&common::run(5), name, &server, database, kills).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_that_the_server_lost_with_their_cursor_are_done_again() {
    let _turn = common::turn().await;
    let Some(server) = services::require(scenarios::server(15)) else { return };
    let name = "kills of PostgreSQL 15 under asynchronous handlers";
    let (kills, database) = (common::kills(4) as u64, on_postgres(&server).unwrap());
    let run = common::run(6);
    let outcome =
        scenarios::server_kills_of_asynchronous_handlers(&run, name, &server, database, kills);
    outcome.await.unwrap().expect_clean();
}

async fn adopted_on_postgres(major: u16, seed: u64) {
    let _turn = common::turn().await;
    let Some(server) = services::require(scenarios::server(major)) else { return };
    let (kills, database) = (common::kills(8), on_postgres(&server).unwrap());
    let name = format!("an adopted table on PostgreSQL {major}");
    let outcome = scenarios::adopted(&common::run(seed), &name, database, kills).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_relays_lose_nothing_of_an_adopted_table_on_postgres_15() {
    // Its rows have words for every end.
    adopted_on_postgres(15, 46).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_relays_lose_nothing_of_an_adopted_table_on_postgres_18() {
    // It has no word for what failed for good.
    adopted_on_postgres(18, 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_relays_lose_nothing_of_an_adopted_table_on_sqlite() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let (kills, database) = (common::kills(6), on_sqlite(folder.path()));
    let name = "an adopted table on SQLite";
    // Its rows are deleted.
    let outcome = scenarios::adopted(&common::run(49), name, database, kills).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_postgres_lose_nothing_of_an_adopted_table() {
    let _turn = common::turn().await;
    let Some(server) = services::require(scenarios::server(15)) else { return };
    // Its rows are deleted.
    let run = common::run(61);
    let (kills, database) =
        (common::kills(4) as u64, adopting(&run, on_postgres(&server).unwrap()));
    let name = "kills of PostgreSQL 15 under an adopted table";
    let outcome = scenarios::server_kills(&run, name, &server, database, kills).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_consumers_lose_nothing_and_do_nothing_twice_on_postgres() {
    let _turn = common::turn().await;
    let Some(server) = services::require(scenarios::server(18)) else { return };
    let (kills, database) = (common::kills(20), on_postgres(&server).unwrap());
    let name = "kills of consumers on PostgreSQL 18";
    let outcome = scenarios::consumers(&common::run(44), name, database, kills).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_consumers_lose_nothing_and_do_nothing_twice_on_sqlite() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let (kills, database) = (common::kills(14), on_sqlite(folder.path()));
    let name = "kills of consumers on SQLite";
    let outcome = scenarios::consumers(&common::run(45), name, database, kills).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_postgres_under_consumers_lose_nothing_and_do_nothing_twice() {
    let _turn = common::turn().await;
    let Some(server) = services::require(scenarios::server(15)) else { return };
    let (run, kills) = (common::run(48), common::kills(3) as u64);
    let (name, database) =
        ("kills of PostgreSQL 15 under consumers", on_postgres(&server).unwrap());
    let outcome =
        scenarios::server_kills_under_consumers(&run, name, &server, database, kills).await;
    outcome.unwrap().expect_clean();
}
