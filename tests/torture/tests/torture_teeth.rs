//! The checker has teeth: workers and writers that are wrong on purpose turn it red.

#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use relevo_testkit::services::Postgres;
use relevo_torture::adopted::Table;
use relevo_torture::broker::Broker;
use relevo_torture::database::Database;
use relevo_torture::report::Outcome;
use relevo_torture::rig::{Relays, Rig};
use relevo_torture::scenarios::on_postgres;
use relevo_torture::story::{Fate, Published};
use relevo_torture::worker::Broken;
use std::time::{Duration, Instant};

/// Where something is missing for good, it is waited for no longer than this.
const PATIENCE: Duration = Duration::from_secs(5);
/// However slow the machine is.
const LONG: Duration = Duration::from_secs(120);
/// Every event has an effect, so whatever batch meets the wire has something to lose or to repeat.
const WRITERS: [&str; 3] = ["--plain", "--pause-ms", "150"];

async fn rig(server: &Postgres, name: &str, seed: u64) -> Rig {
    let mut rig = Rig::new(&common::run(seed), name, on_postgres(server).unwrap()).await.unwrap();
    rig.patience = PATIENCE;
    rig
}

fn broken(how: Broken) -> Relays {
    Relays { broken: Some(how), ..Relays::default() }
}

fn tripped(how: Broken, trip: &str) -> Relays {
    Relays { trip: Some(trip.parse().unwrap()), ..broken(how) }
}

/// Works for a while with one worker that meets its tripwire, and a sound one of the same kind.
async fn work_past_a_wire(
    server: &Postgres,
    name: &str,
    seed: u64,
    how: Broken,
    trip: &str,
) -> Outcome {
    let mut rig = rig(server, name, seed).await;
    rig.start_writers(8, &WRITERS).unwrap();
    let mut victim = rig.spawn_relay(&tripped(how, trip)).unwrap();
    assert!(victim.wait_end(LONG), "{trip} was not reached");
    rig.start_relays(1, &broken(how)).unwrap();
    rig.work(Duration::from_millis(500)).await;
    rig.finish().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_drops_an_event_is_caught() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let mut rig = rig(&server, "an event dropped", 31).await;
    rig.start_relays(1, &broken(Broken::Drop)).unwrap();
    rig.start_writers(8, &WRITERS).unwrap();
    rig.work_until(200).await.unwrap();
    let outcome = rig.finish().await.unwrap();
    assert!(!outcome.verdict.missing.is_empty(), "{outcome}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_before_the_effect_is_caught() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let outcome = work_past_a_wire(
        &server,
        "recorded first",
        32,
        Broken::RecordFirst,
        "commit:before:4:kill",
    )
    .await;
    assert!(!outcome.verdict.missing.is_empty(), "{outcome}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_after_the_effect_is_caught() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let outcome =
        work_past_a_wire(&server, "recorded last", 33, Broken::RecordLast, "commit:after:4:kill")
            .await;
    assert!(!outcome.verdict.twice.is_empty(), "{outcome}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeper_without_a_fence_is_caught() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let mut rig = rig(&server, "no fence", 34).await;
    rig.start_writers(8, &WRITERS).unwrap();
    let sleeper =
        tripped(Broken::RecordLast, "commit:before:4:stop").arg("--idle-limit-ms", 600_000);
    let mut sleeper = rig.spawn_relay(&sleeper).unwrap();
    assert!(sleeper.wait_paused(LONG), "the sleeper never came to its commit");
    rig.start_relays(1, &Relays::default()).unwrap();
    // Something later of every lane has its effect: so has what the sleeper has in hand.
    rig.measure_takeover(Instant::now()).await.unwrap();
    sleeper.resume();
    sleeper.terminate(LONG).unwrap();
    let outcome = rig.finish().await.unwrap();
    assert!(!outcome.verdict.twice.is_empty(), "{outcome}");
}

/// Waits until a cursor says that something was delivered: what was confirmed is recorded a little later.
async fn is_recorded(database: &Database) -> bool {
    let Database::Postgres(database) = database else { return false };
    let began = Instant::now();
    while began.elapsed() < LONG {
        let sql = "SELECT 1 FROM relevo.cursor WHERE delivered > 0";
        if !database.query(sql, &[]).await.unwrap().is_empty() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

/// A relay that answers for what still lies in its buffer is killed.
async fn a_confirm_too_early_is_missed(mut rig: Rig) {
    rig.start_writers(8, &WRITERS).unwrap();
    let mut victim = rig.spawn_relay(&broken(Broken::ConfirmEarly)).unwrap();
    assert!(is_recorded(&rig.database).await, "nothing was recorded");
    victim.kill();
    rig.start_relays(1, &Relays::default()).unwrap();
    rig.work(Duration::from_millis(500)).await;
    let outcome = rig.finish().await.unwrap();
    assert!(!outcome.verdict.missing.is_empty(), "{outcome}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirm_before_the_broker_has_stored_is_caught() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let mut rig = rig(&server, "confirmed early", 35).await;
    rig.towards(Broker::start(35).await.unwrap());
    a_confirm_too_early_is_missed(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_beside_its_transaction_is_caught() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let mut rig = rig(&server, "published apart", 36).await;
    rig.start_relays(1, &Relays::default()).unwrap();
    rig.start_writers(8, &["--pause-ms", "50", "--broken", "publish-apart"]).unwrap();
    rig.work_until(300).await.unwrap();
    let outcome = rig.finish().await.unwrap();
    assert!(!outcome.verdict.ghosts.is_empty(), "{outcome}");
    assert!(outcome.verdict.twice.is_empty(), "{outcome}");
}

async fn adopting(server: &Postgres, name: &str, seed: u64) -> Rig {
    let database = on_postgres(server).unwrap().adopting(Table::drawn(seed, true));
    let mut rig = Rig::new(&common::run(seed), name, database).await.unwrap();
    rig.patience = PATIENCE;
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_an_adopted_table_that_were_marked_before_the_broker_had_them_are_missed() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let rig = adopting(&server, "marked early", 37).await;
    a_confirm_too_early_is_missed(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_table_whose_key_was_overlooked_is_seen_to_be_out_of_order() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let mut rig = adopting(&server, "key overlooked", 38).await;
    rig.start_writers(8, &["--pause-ms", "20", "--trouble"]).unwrap();
    rig.start_relays(1, &broken(Broken::KeyOverlooked)).unwrap();
    rig.work_until(300).await.unwrap();
    let outcome = rig.finish().await.unwrap();
    assert!(!outcome.verdict.out_of_order.is_empty(), "{outcome}");
    assert!(outcome.verdict.missing.is_empty(), "{outcome}");
}

/// A row that Relevo took for a dead letter, and which its owner finds pending again.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_who_sees_other_rows_than_it_should_is_heard() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let mut rig = adopting(&server, "the owner's eyes", 39).await;
    rig.start_relays(1, &Relays::default()).unwrap();
    rig.start_writers(4, &WRITERS).unwrap();
    rig.work_until(30).await.unwrap();
    rig.end_writers().await.unwrap();
    rig.come_to_rest().await.unwrap();
    rig.end_relays();
    let (table, Database::Postgres(database)) =
        (rig.database.adopted().unwrap().clone(), &rig.database)
    else {
        return;
    };
    // Whoever inserts now, nobody relays it any more.
    let row = Published {
        id: uuid::Uuid::now_v7(),
        key: "k".into(),
        fate: Fate::Plain,
        version: 1,
        place: 0,
        locked: true,
        begun_ns: 0,
    };
    database.query(&table.insert(&[row]), &[]).await.unwrap();
    let outcome = rig.finish().await.unwrap();
    let heard =
        outcome.problems.iter().any(|problem| problem.contains("the owner sees 1 rows pending"));
    assert!(heard, "{outcome}");
}

/// Works with one consumer that meets its tripwire, and a sound one after it.
async fn consume_past_a_wire(server: &Postgres, seed: u64, how: Broken, trip: &str) -> Outcome {
    let mut rig = rig(server, trip, seed).await;
    rig.by_way_of(Broker::with_queues(seed).await.unwrap());
    rig.start_relays(1, &Relays::default()).unwrap();
    rig.start_writers(8, &WRITERS).unwrap();
    let mut victim = rig.spawn_consumer(&tripped(how, trip)).unwrap();
    assert!(victim.wait_end(LONG), "{trip} was not reached");
    rig.start_consumers(1, &Relays::default()).unwrap();
    rig.work(Duration::from_millis(500)).await;
    rig.finish().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_acknowledges_first_is_caught() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let how = Broken::AcknowledgeFirst;
    let outcome = consume_past_a_wire(&server, 46, how, "commit:before:3:kill").await;
    assert!(!outcome.verdict.missing.is_empty(), "{outcome}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_whose_effect_is_apart_from_its_note_is_caught() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let how = Broken::EffectApart;
    let outcome = consume_past_a_wire(&server, 47, how, "commit:after:1:kill").await;
    assert!(!outcome.verdict.twice.is_empty(), "{outcome}");
}
