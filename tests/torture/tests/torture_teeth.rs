//! The checker has teeth: workers and writers that are wrong on purpose turn it red.

#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use relevo_testkit::services::Postgres;
use relevo_torture::broker::Broker;
use relevo_torture::database::Database;
use relevo_torture::report::Outcome;
use relevo_torture::rig::{Relays, Rig};
use relevo_torture::scenarios::on_postgres;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_confirm_before_the_broker_has_stored_is_caught() {
    let _turn = common::turn().await;
    let Some(server) = common::server(15) else { return };
    let mut rig = rig(&server, "confirmed early", 35).await;
    rig.towards(Broker::start(35).await.unwrap());
    rig.start_writers(8, &WRITERS).unwrap();
    let mut victim = rig.spawn_relay(&broken(Broken::ConfirmEarly)).unwrap();
    assert!(is_recorded(&rig.database).await, "nothing was recorded");
    // What it answered for still lies in its buffer.
    victim.kill();
    rig.start_relays(1, &Relays::default()).unwrap();
    rig.work(Duration::from_millis(500)).await;
    let outcome = rig.finish().await.unwrap();
    assert!(!outcome.verdict.missing.is_empty(), "{outcome}");
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
