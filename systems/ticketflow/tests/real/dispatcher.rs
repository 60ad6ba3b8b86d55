//! How the dispatcher looks at `Outbox`: how often, and how much it takes.

use crate::rig::Rig;
use crate::{is_well, make_queues, open_ticket};
use async_trait::async_trait;
use relevo::Event;
use relevo::broker::{Confirm, Publisher};
use relevo_testkit::eventually;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use ticketflow::clock::Clock;
use ticketflow::dispatcher::Dispatcher;

const PENDING: &str = r#"SELECT count(*) FROM "Outbox" WHERE "DispatchedAt" IS NULL"#;

async fn until_so_many_wait(rig: &Rig, rows: i64) {
    eventually("so many wait", async || (rig.count(PENDING).await == rows).then_some(())).await;
}

/// Confirms everything, and remembers how much it was given at once.
#[derive(Clone, Default)]
struct Sizes(Arc<Mutex<Vec<usize>>>);

#[async_trait]
impl Publisher for Sizes {
    fn name(&self) -> &'static str {
        "sizes"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        self.0.lock().expect("nobody panicked").push(events.len());
        vec![Confirm::Stored; events.len()]
    }
}

/// A claim is a transaction, and the log knows which one a row came with. While others hold rows, a look goes past them
/// and finds more than a page: what it finds once they let go must not be one claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_and_a_batch_have_a_hundred_rows_at_most() {
    const LARGEST_CLAIM: &str =
        "SELECT max(rows) FROM (SELECT count(*) AS rows FROM relevo.outbox GROUP BY xid) AS claims";
    let Some(rig) = Rig::shared().await else { return };
    rig.say(
        r#"INSERT INTO "Outbox" ("Id", "Type", "PayloadJson", "CorrelationId", "OccurredAt")
        SELECT gen_random_uuid(), 'ticket.created', json_build_object('ticketId', 't-' || n)::text, 'c',
               now() - interval '1 minute' + n * interval '1 millisecond' FROM generate_series(1, 330) AS n"#,
    )
    .await;
    let mut others = rig.database.connect().await.expect("a connection");
    let hold = r#"BEGIN; SELECT FROM "Outbox" ORDER BY "OccurredAt" LIMIT 120 FOR UPDATE"#;
    others.batch(hold).await.expect("held");
    let sizes = Sizes::default();
    let often = Duration::from_millis(50);
    let started = Dispatcher::start(&rig.database, sizes.clone(), often, Clock::default());
    let dispatcher = started.await.expect("it starts");
    until_so_many_wait(&rig, 120).await;
    others.batch("ROLLBACK").await.expect("free");
    until_so_many_wait(&rig, 0).await;
    dispatcher.stop().await.expect("it stops");
    let sizes = sizes.0.lock().expect("nobody panicked").clone();
    assert_eq!(sizes.iter().sum::<usize>(), 330);
    assert!(sizes.iter().all(|size| *size <= 100), "{sizes:?}");
    assert_eq!(rig.count(LARGEST_CLAIM).await, 100);
}

/// Something new comes all the time, so some of it comes right after a look, and waits for the next one.
#[tokio::test(flavor = "multi_thread")]
async fn the_pause_between_two_looks_is_what_the_environment_says() {
    const PAUSE_MS: i64 = 3000;
    const LONGEST: &str = r#"SELECT (extract(epoch FROM max("DispatchedAt" - "OccurredAt")) * 1000)::bigint
        FROM (SELECT * FROM "Outbox" ORDER BY "OccurredAt" OFFSET 1) AS later"#;
    const SHORTEST: &str = r#"SELECT (extract(epoch FROM min("DispatchedAt" - "OccurredAt")) * 1000)::bigint
        FROM (SELECT * FROM "Outbox" ORDER BY "OccurredAt" OFFSET 1) AS later"#;
    let Some(rig) = Rig::shared().await else { return };
    make_queues(&rig).await;
    let api = rig.api_every(PAUSE_MS);
    is_well(&api).await;
    open_ticket(&api).await;
    // The first one may have waited for RabbitMQ's topology, too.
    until_so_many_wait(&rig, 0).await;
    for _ in 0..50 {
        open_ticket(&api).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    until_so_many_wait(&rig, 0).await;
    let (longest, shortest) = (rig.count(LONGEST).await, rig.count(SHORTEST).await);
    assert!(longest >= PAUSE_MS * 2 / 3, "{longest} ms");
    assert!(shortest < PAUSE_MS, "{shortest} ms");
}
