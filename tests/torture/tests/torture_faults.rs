//! Every other fault: sleepers, networks, disks, conflicts, commit order, another cluster.

#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use relevo_torture::scenarios::{self, Source, adopting, on_postgres, on_sqlite};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn sleepers_that_wake_after_their_lease_change_nothing_on_postgres() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let database = on_postgres(&server).unwrap();
    scenarios::zombies(&common::run(11), "zombies on PostgreSQL 15", database, 5)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn sleepers_that_wake_after_their_lease_change_nothing_on_sqlite() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let database = on_sqlite(folder.path());
    scenarios::zombies(&common::run(12), "zombies on SQLite", database, 3)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeper_that_holds_one_lane_does_not_hold_the_others() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let database = on_postgres(&server).unwrap();
    let name = "a sleeper with a lock on PostgreSQL 15";
    let outcome = scenarios::sleeper_with_a_lock(&common::run(25), name, database, 2).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeper_is_fenced_off_at_every_step_that_matters() {
    let _turn = common::turn().await;
    let Some(server) = common::server(18) else { return };
    let database = on_postgres(&server).unwrap();
    let steps = ["take", "page", "handle", "fence", "commit", "record"];
    let name = "zombies at chosen steps on PostgreSQL 18";
    scenarios::zombies_at_steps(&common::run(13), name, database, &steps)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_and_sigterm_at_every_step_lose_nothing() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let database = on_postgres(&server).unwrap();
    let name = "signals at every step on PostgreSQL 15";
    scenarios::signals_at_steps(&common::run(14), name, database, 1).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_at_random_moments_hands_the_lanes_on() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let database = on_postgres(&server).unwrap();
    scenarios::terminations(&common::run(15), "SIGTERM on PostgreSQL 15", database, 10)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_half_open_slow_and_forgetful_connections_lose_nothing() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let name = "network faults on PostgreSQL 15";
    let (run, database) = (common::run(16), on_postgres(&server).unwrap());
    scenarios::network(&run, name, &server, database, 1, false).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_serialization_failures_timeouts_and_a_small_pool_lose_nothing() {
    let _turn = common::turn().await;
    // Of its own: what it counts stands in the server's log.
    let Some(server) = relevo_testkit::services::require(scenarios::server(15)) else { return };
    let time = common::seconds(6);
    scenarios::conflicts(&common::run(17), "conflicts on PostgreSQL 15", &server, time)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing() {
    let _turn = common::turn().await;
    if relevo_testkit::services::require(scenarios::SmallDisk::available()).is_none() {
        return;
    }
    scenarios::disk_full_on_sqlite(&common::run(18), "disk full on SQLite", Source::Log, 2)
        .await
        .unwrap()
        .expect_clean();
    let Some(server) = common::server(15) else { return };
    let name = "disk full on PostgreSQL 15";
    scenarios::disk_full_on_postgres(&common::run(18), name, &server, Source::Log, 2)
        .await
        .unwrap()
        .expect_clean();
}

async fn commit_order_on(major: u16, seed: u64, hold: Duration) {
    let _turn = common::turn().await;
    let Some(server) = common::server(major) else { return };
    let time = common::seconds(7);
    let name = format!("commit order on PostgreSQL {major}");
    let database = on_postgres(&server).unwrap();
    scenarios::commit_order(&common::run(seed), &name, database, time, hold)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_order_is_kept_on_postgres_15() {
    commit_order_on(15, 20, Duration::from_secs(4)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_order_is_kept_on_postgres_18() {
    commit_order_on(18, 21, Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_forgets_refuses_and_goes_away_gets_everything_in_order() {
    let _turn = common::turn().await;
    let Some(server) = common::server(18) else { return };
    let database = on_postgres(&server).unwrap();
    scenarios::outside(&common::run(22), "an outside broker", database, 10)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_restored_into_another_cluster_goes_on_there() {
    dump_and_restore_on(15, 23).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_of_postgres_18_restored_into_another_cluster_goes_on_there() {
    dump_and_restore_on(18, 28).await;
}

async fn dump_and_restore_on(major: u16, seed: u64) {
    let _turn = common::turn().await;
    let Some(from) = common::server(major) else { return };
    let Some(to) = relevo_testkit::services::require(scenarios::server(major)) else { return };
    let (run, log) = (common::run(seed), Source::Log);
    let name = format!("dump and restore on PostgreSQL {major}");
    for outcome in scenarios::restore(&run, &name, &from, &to, log).await.unwrap() {
        outcome.expect_clean();
    }
    let name = format!("a move under running relays on PostgreSQL {major}");
    let moved = scenarios::moved_under_relays(&run, &name, &from, &to, log).await;
    moved.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_lags_and_is_promoted_delivers_all_that_had_reached_it_on_postgres_15() {
    promotion_on(15, 36).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_lags_and_is_promoted_delivers_all_that_had_reached_it_on_postgres_18() {
    promotion_on(18, 37).await;
}

async fn promotion_on(major: u16, seed: u64) {
    let _turn = common::turn().await;
    // Of its own: it stops for a moment while the standby is made, and dies.
    let Some(primary) = relevo_testkit::services::require(scenarios::server(major)) else { return };
    let name = format!("a promoted standby of PostgreSQL {major}");
    let outcome =
        scenarios::promoted_under_relays(&common::run(seed), &name, &primary, Source::Log).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_moves_under_old_and_new_programs_loses_nothing_on_postgres() {
    let _turn = common::turn().await;
    let Some(server) = common::server(18) else { return };
    let database = on_postgres(&server).unwrap();
    let name = "a rolling change of schema on PostgreSQL 18";
    scenarios::rolling_schema(&common::run(26), name, database).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_moves_under_old_and_new_programs_loses_nothing_on_sqlite() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let name = "a rolling change of schema on SQLite";
    let database = on_sqlite(folder.path());
    scenarios::rolling_schema(&common::run(27), name, database).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_with_sqlites_write_lock_only_delays() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let hold = Duration::from_secs(7);
    let name = "SQLite busy";
    scenarios::sqlite_busy(&common::run(24), name, on_sqlite(folder.path()), 1, hold)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_networks_lose_nothing_of_an_adopted_table() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let run = common::run(62);
    let database = adopting(&run, on_postgres(&server).unwrap());
    let name = "network faults under an adopted table on PostgreSQL 15";
    let outcome = scenarios::network(&run, name, &server, database, 1, false).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_and_sigterm_at_every_step_lose_nothing_of_an_adopted_table() {
    let _turn = common::turn().await;
    let Some(server) = common::server(18) else { return };
    let run = common::run(63);
    let database = adopting(&run, on_postgres(&server).unwrap());
    let name = "signals at every step under an adopted table on PostgreSQL 18";
    scenarios::signals_at_steps(&run, name, database, 1).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeper_with_rows_of_an_adopted_table_is_fenced_off_at_every_step_that_matters() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let run = common::run(66);
    let database = adopting(&run, on_postgres(&server).unwrap());
    let steps = ["take", "page", "parked", "record"];
    let name = "zombies at chosen steps under an adopted table on PostgreSQL 15";
    scenarios::zombies_at_steps(&run, name, database, &steps).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_order_of_an_adopted_table_is_kept() {
    let _turn = common::turn().await;
    let Some(server) = common::server(18) else { return };
    let run = common::run(64);
    let database = adopting(&run, on_postgres(&server).unwrap());
    let (name, hold) =
        ("commit order of an adopted table on PostgreSQL 18", Duration::from_secs(3));
    let outcome = scenarios::commit_order(&run, name, database, common::seconds(5), hold).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_at_random_moments_hands_an_adopted_table_on() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let run = common::run(65);
    let database = adopting(&run, on_sqlite(folder.path()));
    let name = "SIGTERM under an adopted table on SQLite";
    scenarios::terminations(&run, name, database, 4).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn upkeep_that_is_cut_short_again_and_again_loses_nothing_on_postgres() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let (name, database) = ("upkeep on PostgreSQL 15", on_postgres(&server).unwrap());
    scenarios::upkeep(&common::run(38), name, database, 8).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn upkeep_that_is_cut_short_again_and_again_loses_nothing_on_sqlite() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let (name, database) = ("upkeep on SQLite", on_sqlite(folder.path()));
    scenarios::upkeep(&common::run(39), name, database, 6).await.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_order_is_kept_on_sqlite() {
    let _turn = common::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let (time, hold) = (common::seconds(5), Duration::from_millis(1500));
    let (name, database) = ("commit order on SQLite", on_sqlite(folder.path()));
    scenarios::commit_order(&common::run(40), name, database, time, hold)
        .await
        .unwrap()
        .expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_file_that_is_at_work_goes_on_by_itself() {
    let _turn = common::turn().await;
    for (source, seed) in [(Source::Log, 41), (Source::Adopted, 42)] {
        let (run, name) = (common::run(seed), format!("a copy of a file ({source:?})"));
        for outcome in scenarios::restore_of_a_file(&run, &name, source).await.unwrap() {
            outcome.expect_clean();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_and_sigterm_at_a_consumers_steps_lose_nothing_and_do_nothing_twice() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let database = on_postgres(&server).unwrap();
    // The other steps are the campaign's.
    let steps = ["begin", "savepoint", "handle", "undo", "seal", "commit"];
    let name = "signals at steps of consumers on PostgreSQL 15";
    let outcome =
        scenarios::signals_at_steps_of_consumers(&common::run(43), name, database, &steps).await;
    outcome.unwrap().expect_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_networks_of_consumers_lose_nothing_and_do_nothing_twice() {
    let _turn = common::turn().await;
    let Some(server) = common::server(18) else { return };
    let (run, database) = (common::run(47), on_postgres(&server).unwrap());
    let name = "network faults of consumers on PostgreSQL 18";
    let outcome = scenarios::network_under_consumers(&run, name, &server, database, 1).await;
    outcome.unwrap().expect_clean();
}
