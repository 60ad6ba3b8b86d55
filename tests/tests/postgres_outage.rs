//! No daemon ran for a month: publishing went on all the time, and everything is delivered when one is back.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_core::dead_letters::{Level, Operate};
use relevo_core::outbox::{Retention, Store, Subscription};
use relevo_stores::postgres::PostgresStore;
use relevo_testkit::eventually;
use relevo_testkit::services::{self, Postgres};
use relevo_tests::engine::run;
use relevo_tests::script::Script;
use relevo_tests::world::{PgHandlers, PostgresWorld, World, by_key, effects, event, relay, stop};
use std::time::Duration;

async fn publish(world: &PostgresWorld, from: usize, to: usize) {
    for n in (from..to).step_by(10) {
        world.publish((n..n + 10).map(|n| event(&format!("key-{}", n % 7), n)).collect()).await;
    }
}

async fn sql(store: &PostgresStore, sql: &str) {
    store.pool().get().await.unwrap().batch_execute(sql).await.unwrap();
}

fn warns(found: &[relevo_core::dead_letters::Finding], text: &str) -> bool {
    found.iter().any(|found| found.level == Level::Warning && found.text.contains(text))
}

#[test]
fn a_daemon_that_stood_still_for_a_month_makes_no_publish_fail_and_loses_nothing() {
    // A server of its own: what others leave open holds back what is known to be decided.
    let Some(server) = services::require(Postgres::start(15)) else { return };
    let url = server.create_database().unwrap();
    run(async || {
        let world = PostgresWorld::at(&url, &url, PgHandlers::Deadpool).await;
        let store = PostgresStore::connect(&url).await.unwrap();
        store.subscribe(&Subscription::new("s")).await.unwrap();
        publish(&world, 0, 50).await;
        // Eight segments of a hundred thousand are ahead: nearly all of a month's numbers are drawn at once.
        sql(&store, "SELECT setval('relevo.outbox_seq', 799950)").await;
        publish(&world, 50, 150).await;
        assert!(warns(&store.doctor().await.unwrap(), "into the default segment"));
        let running = relay(&world, "s", &Script::done()).await;
        effects(&world, 150).await;
        // A reader that holds a lock for a moment puts it off to the next round.
        eventually("the log is back in segments", async || {
            store.upkeep(&Retention::default()).await.unwrap();
            (!warns(&store.doctor().await.unwrap(), "into the default segment")).then_some(())
        })
        .await;
        publish(&world, 150, 250).await;
        let rows = effects(&world, 250).await;
        for (key, payloads) in by_key(&rows) {
            let order: Vec<usize> =
                payloads.iter().map(|payload| payload.parse().unwrap()).collect();
            assert!(order.is_sorted(), "{key}: {order:?}");
        }
        emptied(&store).await;
        stop(running).await;
    });
}

/// What all have had goes when it is old, out of the default segment too.
async fn emptied(store: &PostgresStore) {
    let mut at_once = Retention::default();
    at_once.events = Duration::ZERO;
    eventually("the default segment is empty", async || {
        store.upkeep(&at_once).await.unwrap();
        (!warns(&store.doctor().await.unwrap(), "default segment")).then_some(())
    })
    .await;
}
